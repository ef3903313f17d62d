"""Exact ranges of Kinesis shards, for Spark's Python workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.errors import CursorExpired, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.kinesis.cursors import Place, Side
from dagster_leasehold.shard_sources.kinesis.pace import Pace
from dagster_leasehold.shard_sources.kinesis.paging import RECORDS_PER_CALL_MAX, Page, ShardPages
from dagster_leasehold.shard_sources.kinesis.planned_ranges import PlannedRanges
from dagster_leasehold.shard_sources.kinesis.service import KinesisOptions, KinesisService
from dagster_leasehold.shard_sources.kinesis.shard_list import Shards
from dagster_leasehold.shard_sources.kinesis.user_records import (
    MAGIC,
    UserRecord,
    add_record,
    user_records,
)
from dagster_leasehold.shard_sources.record_columns import batches_of
from dagster_leasehold.shard_sources.source import ReadRange

if TYPE_CHECKING:
    import pyarrow as pa

SOURCE_NAME = "kinesis"


class KinesisReader:
    """Reads ranges of a Kinesis stream; picklable, and without secrets."""

    def __init__(self, options: KinesisOptions, stream: str, folder: Path) -> None:
        self.options = options
        self.stream = stream
        self._folder = folder
        self._service = KinesisService(options, stream)
        self._shards = Shards(self._service)
        self._ranges = PlannedRanges(folder / "kept")
        self._pages = ShardPages(
            self._service,
            Pace(folder / "pace", options.shard_calls_per_s, options.shard_bytes_per_s),
            self._shards.retention_s,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._service})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.options, self.stream, self._folder)

    def read(self, range_: ReadRange) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range in order, in batches of `record_schema()`."""
        start = Place.parse(range_.shard, range_.start)
        end = Place.parse(range_.shard, range_.end)
        batches = self._ranges.read(range_.shard, range_.start, range_.end)
        if batches is None:
            records = self._between(range_.shard, start, end)
            batches = batches_of(range_.shard, records, add_record)
        yield from batches

    def _between(self, shard: ShardId, start: Place, end: Place) -> Iterator[UserRecord]:
        if end.order <= start.order:
            if start.side is Side.AT:
                # Nothing is read, but a number that the shard never had is still an error.
                next(self._pages.from_place(shard, start, limit=1))
            return
        for item in self._items(shard, start):
            if isinstance(item, UserRecord):
                if item.place.order >= end.order:
                    return
                yield item
            elif item.end is not None and item.end.order >= end.order:
                return
            elif item.closed or (item.at_tip and not item.records):
                break
        raise CursorExpired(
            f"Shard {shown(shard)} of {self._service} ends before {end}: records up to there have "
            "been removed."
        )

    def _items(
        self, shard: ShardId, place: Place, limit: int = RECORDS_PER_CALL_MAX
    ) -> Iterator[UserRecord | Page]:
        """Yield the records from a position on, and each page after its last record."""
        for page in self._pages.from_place(shard, place, limit=limit):
            for record in self._users(shard, page):
                if record.place.order >= place.order:
                    yield record
            yield page

    def _users(self, shard: ShardId, page: Page) -> Iterator[UserRecord]:
        # Only packed records need the shard's hashes, which take a request.
        has_packed = any(record.data.startswith(MAGIC) for record in page.records)
        hashes = self._shards.hashes(shard) if has_packed else None
        for record in page.records:
            yield from user_records(record, hashes)

    def spark_options(self) -> Mapping[str, str]:
        """Return the options of the reader in a Spark worker."""
        return {
            "source": SOURCE_NAME,
            "stream": self.stream,
            "folder": str(self._folder),
            "options": self.options.model_dump_json(exclude_defaults=True),
        }
