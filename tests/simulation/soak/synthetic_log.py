"""A sharded log in memory: appends, splits, merges, retention, and a service that may be away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from dagster_leasehold.lease_store.errors import CursorExpired, SourceUnavailable
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.shard_sources.positions import (
    GONE,
    removed_bounds,
    removed_lag,
    removed_plan,
)
from dagster_leasehold.shard_sources.source import (
    Limits,
    PlannedRange,
    Position,
    ReadRange,
    ShardBounds,
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records `[start, end)` of one shard that have the same event time.

    `late` marks records whose hour was over long before they were appended.
    """

    start: int
    end: int
    event_time: datetime
    late: bool = False


@dataclass
class LogShard:
    """One shard of the log; cursors are numbers of records.

    Attributes:
        gone: True once retention has removed the shard itself, not only records of it.
    """

    shard: ShardId
    parents: tuple[ShardId, ...] = ()
    begin: int = 0
    end: int = 0
    closed: bool = False
    gone: bool = False
    chunks: list[Chunk] = field(default_factory=list)


class SyntheticLog:
    """A `ShardSource` of numbers; `down` holds a sentence while its service does not answer."""

    def __init__(self, shards: int) -> None:
        self.shards = {shard: LogShard(shard) for shard in map(ShardId, map(str, range(shards)))}
        self.down = ""

    # -- what the soak does ---------------------------------------------------------------------

    def append(self, shard: ShardId, records: int, at: datetime, *, late: bool = False) -> None:
        """Append records of one event time to an open shard."""
        entry = self.shards[shard]
        if entry.closed or entry.gone:
            return
        entry.chunks.append(Chunk(entry.end, entry.end + records, at, late))
        entry.end += records

    def open_shards(self) -> list[ShardId]:
        """Return the shards that take records."""
        return [entry.shard for entry in self.shards.values() if not entry.closed]

    def replace(self, parents: Sequence[ShardId], children: int) -> list[ShardId]:
        """Split one shard or merge two: the parents are closed, their children are open."""
        made: list[ShardId] = []
        for parent in parents:
            self.shards[parent].closed = True
        for _ in range(children):
            child = ShardId(str(len(self.shards)))
            self.shards[child] = LogShard(child, tuple(parents))
            made.append(child)
        return made

    def trim(self, shard: ShardId) -> None:
        """Retention removes all records of a shard, read or unread."""
        self.shards[shard].begin = self.shards[shard].end

    def remove(self, shard: ShardId) -> None:
        """Retention removes a closed shard with its records."""
        self.trim(shard)
        self.shards[shard].closed = self.shards[shard].gone = True

    def unread(self, shard: ShardId, check_point: str | None) -> int:
        """Count the records that a reader at a checkpoint has not read, gone ones included."""
        return 0 if check_point == GONE else self.shards[shard].end - int(check_point or 0)

    def chunks_of(self, range_: ReadRange) -> list[Chunk]:
        """Return the chunks of a range; those before it were committed, and are forgotten."""
        entry = self.shards[range_.shard]
        start, end = int(range_.start), int(range_.end)
        entry.chunks = [chunk for chunk in entry.chunks if chunk.end > start]
        return [
            Chunk(max(chunk.start, start), min(chunk.end, end), chunk.event_time, chunk.late)
            for chunk in entry.chunks
            if chunk.start < end
        ]

    # -- what a source answers ------------------------------------------------------------------

    def list_shards(self) -> list[ShardListing]:
        self._answer()
        return [
            ShardListing(entry.shard, entry.parents, read_only=entry.closed)
            for entry in self.shards.values()
            if not entry.gone
        ]

    def bounds(self, shards: Sequence[ShardId]) -> dict[ShardId, ShardBounds]:
        self._answer()
        return {shard: self._bounds(self.shards[shard]) for shard in shards}

    def cursor_at(self, shard: ShardId, position: Position | datetime) -> str:
        self._answer()
        bounds = self._bounds(self.shards[shard])
        return bounds.begin if position == Position.BEGIN else bounds.end

    def plan(self, shard: ShardId, start: str, limits: Limits) -> PlannedRange:
        self._answer()
        entry = self.shards[shard]
        if entry.gone:
            return removed_plan(shard, start)
        if int(start) < entry.begin:
            raise CursorExpired(
                f"Shard {shard} begins at {entry.begin}: retention removed the records from "
                f"{start} on before they were read."
            )
        end = min(entry.end, int(start) + limits.records_max)
        return PlannedRange(str(end), end - int(start), entry.closed and end == entry.end)

    def lag(self, shard: ShardId, cursor: str, bounds: ShardBounds) -> int | None:
        gone = self.shards[shard].gone
        return removed_lag(cursor) if gone else int(bounds.end) - int(cursor)

    def spark_options(self) -> Mapping[str, str]:
        return {}

    def read(self, range_: ReadRange) -> Iterator[object]:
        raise AssertionError("the soak's sweeper reads chunks, not records")

    @staticmethod
    def _bounds(entry: LogShard) -> ShardBounds:
        if entry.gone:
            return removed_bounds("0")
        return ShardBounds(str(entry.begin), str(entry.end), entry.closed, "0")

    def _answer(self) -> None:
        if self.down:
            raise SourceUnavailable(self.down)
