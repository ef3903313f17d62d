"""Cursors that count the records of a shard: decimal digits, and nothing else."""

from __future__ import annotations

from dagster_leasehold.lease_store.errors import CursorInvalid, shown
from dagster_leasehold.lease_store.identifiers import ShardId

OFFSET_MAX = 2**63 - 1
_DIGITS_MAX = len(str(OFFSET_MAX))


def parse_offset(shard: ShardId, cursor: str) -> int:
    """A cursor as an offset.

    Raises:
        CursorInvalid: it is not of that form.
    """
    if cursor.isascii() and cursor.isdecimal() and len(cursor) <= _DIGITS_MAX:
        offset = int(cursor)
        if offset <= OFFSET_MAX:
            return offset
    raise CursorInvalid(f"{shown(cursor)} is not a cursor of shard {shard}.")
