"""A local log as a source: its shards, their bounds, the ends of batches, and exact reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.shard_sources import positions
from dagster_leasehold.shard_sources.local_log.catalog import load_catalog
from dagster_leasehold.shard_sources.local_log.reading import ShardFolder
from dagster_leasehold.shard_sources.source import (
    Limits,
    PlannedRange,
    Position,
    ReadRange,
    ShardBounds,
)

if TYPE_CHECKING:
    import pyarrow as pa

SOURCE_NAME = "local_log"
ORIGIN = "0"


class LocalLogReader:
    """Reads ranges of a local log, on a Spark worker: it can be pickled."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.root)!r})"

    def _folder(self, shard: ShardId) -> ShardFolder:
        load_catalog(self.root)  # a log that is not there is not one that lost its heads
        return ShardFolder(shard, self.root)

    def read(self, range_: ReadRange) -> Iterator[pa.RecordBatch]:
        """The records of a range, in order, in batches of `record_schema()`."""
        catalog = load_catalog(self.root)
        if catalog.removed(range_.shard):
            if range_.start == range_.end == positions.GONE:
                return
            raise positions.removed_error(range_.shard)
        yield from self._folder(catalog.find(range_.shard).shard).read(range_)


def reader_of(options: Mapping[str, str]) -> LocalLogReader:
    """Return the reader that `LocalLogSource.spark_options` describes."""
    return LocalLogReader(options["root"])


class LocalLogSource(LocalLogReader):
    """A local log as a source; nothing is written through it."""

    def list_shards(self) -> list[ShardListing]:
        """All shards of the log, in order of creation."""
        catalog = load_catalog(self.root)
        return [
            ShardListing(
                shard=entry.shard,
                parents=entry.parents,
                hash_begin=entry.hash_begin,
                hash_end=entry.hash_end,
                read_only=entry.read_only,
                gone_parents=tuple(each for each in entry.parents if catalog.removed(each)),
            )
            for entry in catalog.shards
        ]

    def log_identity(self) -> str | None:
        """Return the identity that the log was made with; None of one of an earlier version."""
        return load_catalog(self.root).log or None

    def bounds(self, shards: Sequence[ShardId]) -> dict[ShardId, ShardBounds]:
        """The bounds of these shards, from the head of each."""
        # The catalog first: a shard that it calls read-only had its last append before that.
        catalog = load_catalog(self.root)
        bounds: dict[ShardId, ShardBounds] = {}
        for shard in shards:
            if catalog.removed(shard):
                bounds[shard] = positions.removed_bounds(ORIGIN)
                continue
            finished = catalog.find(shard).read_only
            extent = self._folder(shard).extent()
            bounds[shard] = ShardBounds(str(extent.begin), str(extent.end), finished, ORIGIN)
        return bounds

    def cursor_at(self, shard: ShardId, position: Position | datetime) -> str:
        """The cursor of the first record at or after a position; the end if there is none."""
        catalog = load_catalog(self.root)
        if catalog.removed(shard):
            return positions.GONE
        folder = self._folder(catalog.find(shard).shard)
        if isinstance(position, datetime):
            return str(folder.at_time(position))
        extent = folder.extent()
        return str(extent.begin if position is Position.BEGIN else extent.end)

    def times_at(self, cursors: Mapping[ShardId, str]) -> dict[ShardId, datetime]:
        """The event times of the records at these cursors: the log keeps no other times."""
        catalog = load_catalog(self.root)
        return {
            shard: time
            for shard, cursor in cursors.items()
            if not catalog.removed(shard)
            and (time := self._folder(catalog.find(shard).shard).time_at(cursor)) is not None
        }

    def plan(self, shard: ShardId, start: str, limits: Limits) -> PlannedRange:
        """Where a batch that starts at `start` ends: exact in records and bytes, at least one."""
        catalog = load_catalog(self.root)
        if catalog.removed(shard):
            return positions.removed_plan(shard, start)
        entry = catalog.find(shard)
        return self._folder(entry.shard).plan(start, limits, finished=entry.read_only)

    def divide(self, range_: ReadRange, parts: int) -> list[ReadRange]:
        """Cut a range by its offsets, which have no holes."""
        return positions.divide_offsets(range_, parts)

    def lag(self, shard: ShardId, cursor: str, bounds: ShardBounds) -> int | None:
        """Records between a cursor and the end; None where a removed shard might have had some."""
        if bounds.removed:
            return positions.removed_lag(cursor)
        return positions.offsets_left(shard, cursor, bounds)

    def spark_options(self) -> Mapping[str, str]:
        """Return the options of the reader in a Spark worker."""
        return {"source": SOURCE_NAME, "root": str(self.root)}
