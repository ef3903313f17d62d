"""The Spark data source that reads ranges of shards: one job for all shards of a run.

Spark's workers import this module by name, so its classes stand at module level and it imports
Spark there; everything else imports this module inside functions.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition  # noqa: TID253

from dagster_leasehold.assets.consuming.exact_records import add, exact
from dagster_leasehold.assets.consuming.task_packing import pack
from dagster_leasehold.assets.output.attempt_reports import (
    REPORTS_AT_ONCE,
    MovingRecords,
    report_error,
    report_read,
)
from dagster_leasehold.assets.output.output_file import RECORD_DDL
from dagster_leasehold.assets.output.worker_results import RangeStatistics
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import ReadRange, ShardReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMAT = "leasehold_shards"
RANGES, READER, TASKS, FOLDER = "ranges", "reader", "tasks", "folder"


@dataclass
class RangesOfTask(InputPartition):
    """The ranges that one task reads, one after the other."""

    ranges: tuple[ReadRange, ...]

    def __init__(self, ranges: tuple[ReadRange, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


def read_options(
    source_options: Mapping[str, str],
    ranges: Sequence[ReadRange],
    tasks_max: int,
    folder: OutputPlace,
) -> dict[str, str]:
    """Return the options that carry a sweep's ranges to Spark; `folder` takes the reports."""
    return {
        READER: json.dumps(dict(source_options)),
        RANGES: json.dumps([asdict(range_) for range_ in ranges]),
        TASKS: str(tasks_max),
        FOLDER: str(folder),
    }


class ShardDataSource(DataSource):
    """Reads the ranges named in its options through the source named there."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of every source."""
        return RECORD_DDL

    def reader(self, schema: StructType) -> ShardRangesReader:
        """Return the reader of these options."""
        del schema
        return ShardRangesReader(dict(self.options))


class ShardRangesReader(DataSourceReader):
    """Yields the records of ranges as Arrow batches, and reports the statistics of each range."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._reader_options: dict[str, str] = json.loads(options[READER])
        self._ranges = tuple(
            ReadRange(ShardId(item["shard"]), item["start"], item["end"], item["records"])
            for item in json.loads(options[RANGES])
        )
        self._tasks_max = int(options[TASKS])
        self._folder = output_place(options[FOLDER])

    def partitions(self) -> Sequence[InputPartition]:
        """Return one part per task; a single empty one if there is nothing to read."""
        packed = pack(self._ranges, self._tasks_max) if self._ranges else [()]
        return [RangesOfTask(ranges) for ranges in packed]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a task's ranges, each range in order."""
        from dagster_leasehold.shard_sources.registry import reader_from_options

        assert isinstance(partition, RangesOfTask)
        if not partition.ranges:
            return
        shard: ShardId | None = None
        try:
            reader: ShardReader = reader_from_options(self._reader_options)
            # While reports go to the store, the next ranges are read.
            with ThreadPoolExecutor(REPORTS_AT_ONCE) as reporting:
                reports: list[Future[None]] = []
                for range_ in partition.ranges:
                    shard = range_.shard
                    statistics = yield from self._read_range(reader, range_)
                    # Reached only if the consumer asked for all: a `limit` stops the generator.
                    reports.append(reporting.submit(report_read, self._folder, shard, statistics))
                for report in reports:
                    report.result()
        except LeaseholdError as error:
            # What is raised here reaches the driver as text: the report keeps type and shard.
            report_error(self._folder, shard, error)
            raise
        except (OSError, ValueError) as error:
            report_error(self._folder, shard, error)
            raise

    def _read_range(
        self, reader: ShardReader, range_: ReadRange
    ) -> Generator[pa.RecordBatch, None, RangeStatistics]:
        statistics, moving = RangeStatistics(), MovingRecords(self._folder)
        for batch in reader.read(range_):
            for part in exact(batch):
                statistics = add(statistics, part)
                moving.moved()
                yield part
        return statistics
