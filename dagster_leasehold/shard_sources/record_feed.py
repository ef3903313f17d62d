"""Records of a source one by one, for clients that work without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from typing_extensions import override

from dagster_leasehold.lease_store.client.feed import Fetched, Record, ShardFeed
from dagster_leasehold.lease_store.errors import InvalidSetting, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.event_times import readable
from dagster_leasehold.shard_sources.positions import clamped, parse_position
from dagster_leasehold.shard_sources.source import Limits, ReadRange, ShardSource

BYTES_MAX_DEFAULT = 16 * 1024 * 1024


class SourceFeed(ShardFeed):
    """The `ShardFeed` of a source.

    Args:
        source: the log.
        bytes_max: the most bytes of one fetch, unless a single record is larger.
    """

    def __init__(self, source: ShardSource, *, bytes_max: int = BYTES_MAX_DEFAULT) -> None:
        self._source = source
        self._bytes_max = bytes_max

    @override
    def cursor_at(self, shard: ShardId, position: str) -> str:
        """Return the cursor at `begin`, `end` or an ISO 8601 time, or raise InvalidSetting."""
        place = parse_position(position)
        if place is None:
            raise InvalidSetting(
                f"{shown(position)} is not a position in a shard: use 'begin', 'end' or an ISO "
                "8601 time."
            )
        return self._source.cursor_at(shard, place)

    @override
    def first_cursor(self, shard: ShardId) -> str:
        bounds = self._source.bounds([shard])[shard]
        return bounds.begin if bounds.origin is None else bounds.origin

    @override
    def clamp(self, shard: ShardId, cursor: str) -> str:
        return clamped(self._source, shard, cursor)

    @override
    def fetch(self, shard: ShardId, cursor: str, *, records_max: int) -> Fetched:
        limits = Limits(records_max=records_max, bytes_max=self._bytes_max)
        plan = self._source.plan(shard, cursor, limits)
        if plan.end == cursor:
            return Fetched(cursor, cursor, last=plan.last)
        rows = list(self._rows(ReadRange(shard, cursor, plan.end, plan.records)))
        return Fetched(cursor, plan.end, _records(shard, rows, plan.end), plan.last)

    @override
    def fetch_between(self, shard: ShardId, start: str, end: str, *, records_max: int) -> Fetched:
        rows = list(islice(self._rows(ReadRange(shard, start, end)), records_max + 1))
        # The cursor of one extra row is the end of the fetch.
        stop = str(rows.pop()["cursor"]) if len(rows) > records_max else end
        return Fetched(start, stop, _records(shard, rows, stop))

    def _rows(self, range_: ReadRange) -> Iterator[Mapping[str, Any]]:
        for batch in self._source.read(range_):
            yield from readable(batch).to_pylist()


def _records(shard: ShardId, rows: Sequence[Mapping[str, Any]], end: str) -> tuple[Record, ...]:
    next_cursors = [str(row["cursor"]) for row in rows[1:]] + [end]
    return tuple(
        Record(
            shard=shard,
            cursor=row["cursor"],
            next_cursor=next_cursor,
            event_time=row["event_time"],
            key=row["key"],
            value=row["value"],
            attributes=dict(row["attributes"] or ()),
        )
        for row, next_cursor in zip(rows, next_cursors, strict=False)
    )
