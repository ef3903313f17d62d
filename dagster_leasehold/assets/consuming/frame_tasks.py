"""The tasks of `frame_job`: some read ranges into Spark, others write rows into files.

The user's transform of DataFrames runs between reading and writing. Spark's workers import this
module by name.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_leasehold.assets.arrow_transform import SHARD_COLUMN
from dagster_leasehold.assets.consuming.exact_records import add, exact
from dagster_leasehold.assets.output.shard_files import ShardFiles, unwritable
from dagster_leasehold.assets.output.worker_results import (
    RangeStatistics,
    WorkerFailed,
    result_rows,
)
from dagster_leasehold.assets.partition_fields import UNDIVIDED, Partitioning
from dagster_leasehold.assets.places.place import MovingRecords, OutputPlace
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.registry import reader_from_options
from dagster_leasehold.shard_sources.source import ReadRange, ShardReader, record_schema

if TYPE_CHECKING:
    import pyarrow as pa

IS_RECORD = f"{SHARD_COLUMN} IS NOT NULL"
REPORT = f"CASE WHEN {SHARD_COLUMN} IS NULL THEN value END"
"""The report in a row, as Spark SQL; null for a record."""


@dataclass(frozen=True)
class RangesRead:
    """Reads the ranges of the tasks whose numbers it receives.

    A report follows the records of each range. It is a row without a shard, whose value contains
    the shard and the statistics of the records. If a range fails, the task still reads its other
    ranges, and then fails with the names of the failed shards.

    Attributes:
        tasks: the ranges of each task, by task number.
        folder: the attempt's folder, where the task writes signs of progress.
    """

    source_options: Mapping[str, str]
    tasks: tuple[tuple[ReadRange, ...], ...]
    folder: OutputPlace

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records of these tasks: each range in order, followed by its report.

        Raises:
            WorkerFailed: some ranges could not be read.
        """
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self._task(self.tasks[number])

    def _task(self, ranges: tuple[ReadRange, ...]) -> Iterator[pa.RecordBatch]:
        try:
            reader = reader_from_options(dict(self.source_options))
        except Exception as error:
            raise WorkerFailed({"": error}) from error
        errors: dict[str, Exception] = {}
        for range_ in ranges:
            try:
                yield from self._range(reader, range_)
            except Exception as error:
                errors[range_.shard] = error
        if errors:
            raise WorkerFailed(errors)

    def _range(self, reader: ShardReader, range_: ReadRange) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        read, moving = RangeStatistics(), MovingRecords(self.folder)
        for batch in reader.read(range_):
            for part in exact(batch):
                read = add(read, part)
                moving.moved()
                yield part
        schema = record_schema()
        report = pa.RecordBatch.from_arrays(
            [pa.nulls(1, kind) for kind in schema.types], schema.names
        )
        value = json.dumps([range_.shard, read.plain()]).encode()
        at = schema.get_field_index("value")
        yield report.set_column(at, "value", pa.array([value], schema.field(at).type))


def statistics_of(report: bytes) -> tuple[ShardId, RangeStatistics]:
    """Return the shard and the statistics in a report."""
    shard, values = json.loads(report)
    return ShardId(shard), RangeStatistics.of(values)


@dataclass(frozen=True)
class RowsWritten:
    """Writes the rows of a task into one file per shard, and yields a row that lists the files.

    Spark's own Parquet writer would mix shards in a file, or need a shuffle or a sort.

    Attributes:
        numbers: the batch numbers of each shard.
        transform: the name of the transform that made the rows, for errors.
        partitioning: the fields that divide the rows of a shard.
    """

    folder: OutputPlace
    numbers: Mapping[ShardId, range]
    transform: str
    partitioning: Partitioning = UNDIVIDED

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all rows of a task; if that fails, delete its files.

        Raises:
            WorkerFailed: some rows could not be written.
        """
        name = uuid.uuid4().hex
        files = ShardFiles(self.folder, name, self.numbers, self.transform, self.partitioning)
        moving = MovingRecords(self.folder)
        try:
            for batch in batches:
                with self._writing():
                    files.add(batch)
                moving.moved()
            with self._writing():
                written = [file.plain() for file in files.close()]
        except BaseException:
            files.abandon()
            raise
        yield result_rows([json.dumps(written)])

    @contextmanager
    def _writing(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise WorkerFailed({"": unwritable("The output", self.folder, error)}) from error
        except LeaseholdError as error:
            raise WorkerFailed({"": error}) from error
