"""A cursor that somebody chose, moved to the nearest that the shard has."""

from __future__ import annotations

from dagster_leasehold.lease_store.errors import CursorExpired, CursorInvalid
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import Limits, ShardSource


def clamped(source: ShardSource, shard: ShardId, cursor: str) -> str:
    """`cursor`, or the nearest that the shard can be read from.

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
