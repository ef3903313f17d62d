"""The tasks of `range_job`: each reads, transforms and writes its ranges in a Python worker.

Records never enter the JVM: a task receives only its number from Spark, and returns one row for
each of its ranges. A range that fails does not affect the others. Spark's workers import this
module by name.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from dagster_leasehold.assets.arrow_transform import ArrowTransform, checked, decodes, schemas_of
from dagster_leasehold.assets.consuming.exact_records import add, portions
from dagster_leasehold.assets.consuming.range_rows import RangeRow
from dagster_leasehold.assets.errors import TransformError, TransformUnusable
from dagster_leasehold.assets.output.attempts import file_name
from dagster_leasehold.assets.output.shard_files import RangeFiles, unwritable
from dagster_leasehold.assets.output.worker_results import RangeStatistics, result_rows
from dagster_leasehold.assets.partition_fields import UNDIVIDED, Partitioning
from dagster_leasehold.assets.places.place import MovingRecords, OutputPlace
from dagster_leasehold.assets.spark.users_code import users_error
from dagster_leasehold.lease_store.errors import LeaseholdError, SourceError, one_line
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.registry import reader_from_options
from dagster_leasehold.shard_sources.source import ReadRange, ShardReader

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class RangeTasks:
    """The tasks of one job; Spark sends a copy of the whole instance to each task.

    Attributes:
        tasks: the ranges of each task, by task number.
        numbers: the batch numbers of each shard.
        positions: the position of each range in its batch.
        transform: the pickled transform; None to keep the records as they are.
        transform_name: the transform's name, for errors.
        partitioning: the fields that divide the rows of a range.
    """

    source_options: Mapping[str, str]
    tasks: tuple[tuple[ReadRange, ...], ...]
    folder: OutputPlace
    numbers: Mapping[ShardId, range]
    positions: Mapping[ReadRange, int]
    transform: bytes | None
    transform_name: str
    partitioning: Partitioning = UNDIVIDED

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the tasks with these numbers; yield the rows of each task's ranges."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield result_rows([row.text() for row in self.rows(number)])

    def rows(self, number: int) -> list[RangeRow]:
        """Run one task; its files are durable when this returns."""
        ranges = self.tasks[number]
        try:
            reader = reader_from_options(dict(self.source_options))
            transform = self._transform()
        except Exception as error:
            failure = error if isinstance(error, LeaseholdError) else _reading_failed(error)
            return [RangeRow.failed(range_, failure) for range_ in ranges]
        files = partial(
            RangeFiles, self.folder, transform=self.transform_name, partitioning=self.partitioning
        )
        task = _Task(reader, transform, self.transform_name, self.folder, files)
        # Files become durable in the background while the next ranges are read and written.
        results = [task.run(range_, self._names(range_)) for range_ in ranges]
        rows = [task.sync(row, files) for row, files in results]
        if any(row.files for row in rows):
            self.folder.sync_folder()
        return rows

    def _names(self, range_: ReadRange) -> Callable[..., str]:
        """Return a function that returns a new name for each file of a range."""
        shard, position = range_.shard, self.positions[range_]

        def name(*, quarantine: bool, part: int, route: str) -> str:
            rest = f"{position:04d}-{uuid.uuid4().hex}"
            numbers = self.numbers[shard]
            return file_name(shard, numbers, rest, quarantine=quarantine, part=part, route=route)

        return name

    def _transform(self) -> ArrowTransform | None:
        if self.transform is None:
            return None
        try:
            return pickle.loads(self.transform)  # noqa: S301  # from the run itself
        except Exception as error:
            raise TransformUnusable(
                f"The transform {self.transform_name} cannot be loaded in Spark's workers "
                f"({users_error(error)}): install the modules that it imports on the workers."
            ) from error


class _Task:
    def __init__(
        self,
        reader: ShardReader,
        transform: ArrowTransform | None,
        name: str,
        folder: OutputPlace,
        new_files: Callable[..., RangeFiles],
    ) -> None:
        self._reader = reader
        self._transform = transform
        self._name = name
        self._folder = folder
        self._new_files = new_files
        self._moving = MovingRecords(folder)

    def run(self, range_: ReadRange, names: Callable[..., str]) -> tuple[RangeRow, RangeFiles]:
        """Read, transform and write one range; return its row and its files."""
        columns_vary = decodes(self._transform)
        files = self._new_files(names=names, shard=range_.shard, columns_vary=columns_vary)
        try:
            return self._process(range_, files), files
        except Exception as error:
            return self._abandon(range_, files, error), files
        except BaseException:
            files.abandon()
            raise
        finally:
            # Each range counts as progress, even if the source fails slowly.
            self._moving.moved()

    def sync(self, row: RangeRow, files: RangeFiles) -> RangeRow:
        """Wait until a range's files are durable; return its row, or the row of its failure."""
        try:
            files.sync()
        except Exception as error:
            return self._abandon(row.part, files, error)
        return row

    def _abandon(self, range_: ReadRange, files: RangeFiles, error: Exception) -> RangeRow:
        files.abandon()
        if isinstance(error, LeaseholdError):
            return RangeRow.failed(range_, error)
        output = f"The output of shard {range_.shard}"
        return RangeRow.failed(range_, unwritable(output, self._folder, error))

    def _process(self, range_: ReadRange, files: RangeFiles) -> RangeRow:
        read = RangeStatistics()
        first = last = ""
        for records in self._read(range_):
            read = add(read, records)
            cursors = records.column("cursor")
            first, last = first or cursors[0].as_py(), cursors[-1].as_py()
            for rows in self._transformed(range_, records).to_batches():
                files.add(rows)
        schemas = schemas_of(self._transform)
        written = tuple(replace(file, schemas=schemas) for file in files.finish())
        return RangeRow(range_, read, written, first, last)

    def _read(self, range_: ReadRange) -> Iterator[pa.Table]:
        """Yield the records of a range in portions; convert any error to a `LeaseholdError`."""
        tables = portions(self._with_progress(self._reader.read(range_)))
        while True:
            try:
                table = next(tables, None)
            except LeaseholdError:
                raise
            except Exception as error:
                raise _reading_failed(error) from error
            if table is None:
                return
            if table.num_rows:
                yield table

    def _with_progress(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._moving.moved()
            yield batch

    def _transformed(self, range_: ReadRange, records: pa.Table) -> pa.Table:
        if self._transform is None:
            return records
        try:
            output: object = self._transform(records)
        except LeaseholdError:
            raise
        except Exception as error:
            culprit = (
                f"records of shard {range_.shard} between cursors {range_.start} and {range_.end}"
            )
            if cursor := self._bad_record(records):
                culprit = f"the record at cursor {cursor} of shard {range_.shard}"
            raise TransformError(
                f"The transform {self._name} raised {users_error(error)}, for {culprit}."
            ) from error
        return checked(output, range_.shard, self._name)

    def _bad_record(self, records: pa.Table) -> str | None:
        """Return the cursor of the first record for which the transform raises, found by halving.

        The result is None if the transform raises only for several records together.
        """
        if not self._raises_at(records):
            return None
        while records.num_rows > 1:
            middle = records.num_rows // 2
            halves = records.slice(0, middle), records.slice(middle)
            bad_half = next(filter(self._raises_at, halves), None)
            if bad_half is None:
                return None
            records = bad_half
        return records["cursor"][0].as_py()

    def _raises_at(self, records: pa.Table) -> bool:
        assert self._transform is not None
        self._moving.moved()
        try:
            self._transform(records)
        except Exception:
            return True
        return False


def _reading_failed(error: Exception) -> SourceError:
    return SourceError(f"Reading failed with {type(error).__name__}: {one_line(str(error))}")
