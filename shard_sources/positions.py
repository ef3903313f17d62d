"""Places in a shard: as people write them, as counted records, and as the shard still has them."""

from __future__ import annotations

import itertools
from datetime import datetime

from dagster_leasehold.lease_store.errors import CursorExpired, CursorInvalid, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.times import parse_time
from dagster_leasehold.shard_sources.source import Limits, Position, ReadRange, ShardSource

OFFSET_MAX = 2**63 - 1
_DIGITS_MAX = len(str(OFFSET_MAX))


def parse_position(text: str) -> Position | datetime | None:
    """Return the place that `begin`, `end` or a time names; None for any other text."""
    if text in (Position.BEGIN, Position.END):
        return Position(text)
    return parse_time(text)


def parse_offset(shard: ShardId, cursor: str) -> int:
    """Return the offset that a cursor is.

    Raises:
        CursorInvalid: it is not of that form.
    """
    if cursor.isascii() and cursor.isdecimal() and len(cursor) <= _DIGITS_MAX:
        offset = int(cursor)
        if offset <= OFFSET_MAX:
            return offset
    raise CursorInvalid(f"{shown(cursor)} is not a cursor of shard {shard}.")


def divide_offsets(range_: ReadRange, parts: int) -> list[ReadRange]:
    """Cut a range whose cursors are offsets into at most so many parts, even and in order.

    Raises:
        CursorInvalid: an end of the range is no offset.
    """
    shard = range_.shard
    start, end = parse_offset(shard, range_.start), parse_offset(shard, range_.end)
    length = max(0, end - start)
    parts = max(1, min(parts, length))
    cuts = [start + length * number // parts for number in range(parts)] + [end]
    return [
        ReadRange(shard, str(low), str(high), max(0, high - low))
        for low, high in itertools.pairwise(cuts)
    ]


def clamped(source: ShardSource, shard: ShardId, cursor: str) -> str:
    """Return a cursor that somebody chose, or the nearest that the shard can be read from.

    Raises:
        CursorInvalid: it is no cursor of the shard at all.
        SourceError: the source does not answer.
    """
    try:
        source.plan(shard, cursor, Limits(records_max=1, bytes_max=1))
    except CursorExpired:
        return source.bounds([shard])[shard].begin
    except CursorInvalid:
        end = source.bounds([shard])[shard].end
        # Only cursors that count records can be told apart from text that is no cursor.
        if cursor.isdecimal() and end.isdecimal() and int(cursor) > int(end):
            return end
        raise
    return cursor
