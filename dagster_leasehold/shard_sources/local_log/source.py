"""A local log as a source: its shards, their bounds, the ends of batches, and exact ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.shard_sources import positions
from dagster_leasehold.shard_sources.local_log.catalog import Catalog, load_catalog
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
    """Reads ranges of a local log, on a Spark worker; picklable."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.root)!r})"

    def _open(self, shard: str, catalog: Catalog | None = None) -> ShardFolder | None:
        """Return a shard's folder; None if retention has removed the shard."""
        catalog = catalog or load_catalog(self.root)
        if catalog.removed(shard):
            return None
        entry = catalog.find(shard)
        return ShardFolder(entry.shard, self.root, entry.read_only)

    def read(self, range_: ReadRange) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range in order, in batches of `record_schema()`."""
        folder = self._open(range_.shard)
        if folder is not None:
            yield from folder.read(range_)
        elif not range_.start == range_.end == positions.GONE:
            raise positions.removed_error(range_.shard)


def reader_of(options: Mapping[str, str]) -> LocalLogReader:
    """Return the reader that `LocalLogSource.spark_options` describes."""
    return LocalLogReader(options["root"])


class LocalLogSource(LocalLogReader):
    """A local log as a source."""

    def list_shards(self) -> list[ShardListing]:
        """Return all shards of the log, in order of creation."""
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
        """Return the id that the log was created with."""
        return load_catalog(self.root).log or None

    def bounds(self, shards: Sequence[ShardId]) -> dict[ShardId, ShardBounds]:
        """Return the bounds of shards from their heads."""
        # The catalog is read first: a shard that it calls read-only had its last append before.
        catalog = load_catalog(self.root)
        bounds: dict[ShardId, ShardBounds] = {}
        for shard in shards:
            folder = self._open(shard, catalog)
            if folder is None:
                bounds[shard] = positions.removed_bounds(ORIGIN)
            else:
                begin, end = folder.extent()
                bounds[shard] = ShardBounds(str(begin), str(end), folder.finished, ORIGIN)
        return bounds

    def cursor_at(self, shard: ShardId, position: Position | datetime) -> str:
        """Return the cursor of the first record at or after a position, or the end."""
        folder = self._open(shard)
        if folder is None:
            return positions.GONE
        if isinstance(position, datetime):
            return str(folder.at_time(position))
        extent = folder.extent()
        return str(extent.begin if position is Position.BEGIN else extent.end)

    def times_at(self, cursors: Mapping[ShardId, str]) -> dict[ShardId, datetime]:
        """Return the event times of the records at these cursors, because others are not stored."""
        catalog = load_catalog(self.root)
        return {
            shard: time
            for shard, cursor in cursors.items()
            if (folder := self._open(shard, catalog)) is not None
            and (time := folder.time_at(cursor)) is not None
        }

    def plan(self, shard: ShardId, start: str, limits: Limits) -> PlannedRange:
        """Return the end of a batch; both limits are exact."""
        folder = self._open(shard)
        return (
            positions.removed_plan(shard, start) if folder is None else folder.plan(start, limits)
        )

    def divide(self, range_: ReadRange, parts: int) -> list[ReadRange]:
        """Divide a range by its offsets, which have no holes."""
        return positions.divide_offsets(range_, parts)

    def lag(self, shard: ShardId, cursor: str, bounds: ShardBounds) -> int | None:
        """Return the records from a cursor to the end; None if unknown in a removed shard."""
        if bounds.removed:
            return positions.removed_lag(cursor)
        return positions.offsets_left(shard, cursor, bounds)

    def spark_options(self) -> Mapping[str, str]:
        """Return the options of the reader in a Spark worker."""
        return {"source": SOURCE_NAME, "root": str(self.root)}
