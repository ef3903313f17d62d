"""The tasks of the Arrow way: each reads, transforms and writes ranges where it stands.

Records never cross into the JVM: Spark hands each task a number, the task looks its ranges up in
what was sent along, and returns one row for each. A range that fails stops no other one.

Spark's workers import this module by name.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dagster_leasehold.assets.arrow_transform import ArrowTransform, checked
from dagster_leasehold.assets.consuming.exact_records import add, portions
from dagster_leasehold.assets.consuming.range_rows import RangeRow
from dagster_leasehold.assets.errors import TransformError, TransformUnusable
from dagster_leasehold.assets.output.attempts import file_name
from dagster_leasehold.assets.output.shard_files import RangeFiles, unwritable
from dagster_leasehold.assets.output.worker_results import RangeStatistics, sent_back
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
    """The tasks of one job; an instance travels to each of them whole.

    Attributes:
        source_options: the options of the reader.
        tasks: the ranges of each task, by its number.
        folder: the attempt's folder.
        numbers: the batches that are made, by shard.
        positions: the place of each range within its batch.
        transform: the pickled transform; None keeps records as they are.
        transform_name: its name, for errors.
    """

    source_options: Mapping[str, str]
    tasks: tuple[tuple[ReadRange, ...], ...]
    folder: OutputPlace
    numbers: Mapping[ShardId, range]
    positions: Mapping[ReadRange, int]
    transform: bytes | None
    transform_name: str

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Carry out the tasks of these numbers; yield a row for each of their ranges."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield sent_back([row.text() for row in self.rows(number)])

    def rows(self, number: int) -> list[RangeRow]:
        """Carry out one task; its files are durable when this returns."""
        ranges = self.tasks[number]
        try:
            reader = reader_from_options(dict(self.source_options))
            transform = self._transform()
        except Exception as error:
            failure = error if isinstance(error, LeaseholdError) else _reading_failed(error)
            return [RangeRow.failed(range_, failure) for range_ in ranges]
        task = _Task(reader, transform, self.transform_name, self.folder)
        # While files become durable, the next ranges are read and written.
        results = [task.make(range_, self._names(range_)) for range_ in ranges]
        rows = [task.settled(row, files) for row, files in results]
        if any(row.files for row in rows):
            self.folder.sync_folder()
        return rows

    def _names(self, range_: ReadRange) -> Callable[..., str]:
        """Return the names of the files of one try of a range."""
        shard, rest = range_.shard, f"{self.positions[range_]:04d}-{uuid.uuid4().hex}"
        return partial(file_name, shard, self.numbers[shard], rest)

    def _transform(self) -> ArrowTransform | None:
        if self.transform is None:
            return None
        try:
            return pickle.loads(self.transform)  # noqa: S301  # from the run itself
        except Exception as error:
            raise TransformUnusable(
                f"The transform {self.transform_name} cannot be loaded in Spark's workers "
                f"({users_error(error)}): let them import what it needs."
            ) from error


class _Task:
    """One task under way."""

    def __init__(
        self, reader: ShardReader, transform: ArrowTransform | None, name: str, folder: OutputPlace
    ) -> None:
        self._reader = reader
        self._transform = transform
        self._name = name
        self._folder = folder
        self._moving = MovingRecords(folder)

    def make(self, range_: ReadRange, names: Callable[..., str]) -> tuple[RangeRow, RangeFiles]:
        """Read, transform and write one range; return what became of it, and its files."""
        files = RangeFiles(self._folder, names, range_.shard, self._name)
        try:
            return self._made(range_, files), files
        except Exception as error:
            return self._failed(range_, files, error), files
        except BaseException:
            files.abandon()
            raise
        finally:
            # A source that refuses one shard after the other takes its time, and is at work.
            self._moving.moved()

    def settled(self, row: RangeRow, files: RangeFiles) -> RangeRow:
        """Return the row of a range once its files are durable, or the row of its failure."""
        try:
            files.settle()
        except Exception as error:
            return self._failed(row.part, files, error)
        return row

    def _failed(self, range_: ReadRange, files: RangeFiles, error: Exception) -> RangeRow:
        files.abandon()
        if isinstance(error, LeaseholdError):
            return RangeRow.failed(range_, error)
        whose = f"The output of shard {range_.shard}"
        return RangeRow.failed(range_, unwritable(whose, self._folder, error))

    def _made(self, range_: ReadRange, files: RangeFiles) -> RangeRow:
        read = RangeStatistics()
        first = last = ""
        for records in self._read(range_):
            read = add(read, records)
            cursors = records.column("cursor")
            first, last = first or cursors[0].as_py(), cursors[-1].as_py()
            for rows in self._transformed(range_, records).to_batches():
                files.add(rows)
        return RangeRow(range_, read, tuple(files.finish()), first, last)

    def _read(self, range_: ReadRange) -> Iterator[pa.Table]:
        """Yield the records of a range in portions; errors of a reader are the source's."""
        tables = portions(self._moved(self._reader.read(range_)))
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

    def _moved(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._moving.moved()
            yield batch

    def _transformed(self, range_: ReadRange, records: pa.Table) -> pa.Table:
        if self._transform is None:
            return records
        try:
            output: object = self._transform(records)
        except TransformError:
            raise
        except Exception as error:
            refused = (
                f"records of shard {range_.shard} between cursors {range_.start} and {range_.end}"
            )
            if cursor := self._refused_record(records):
                refused = f"the record at cursor {cursor} of shard {range_.shard}"
            raise TransformError(
                f"The transform {self._name} raised {users_error(error)}, for {refused}."
            ) from error
        return checked(output, range_.shard, self._name)

    def _refused_record(self, records: pa.Table) -> str | None:
        """Return the cursor of the first record where the transform raises.

        It is None if the transform raises only at several records together. The records are halved,
        so that it sees each about twice.
        """
        if not self._raises_at(records):
            return None
        while records.num_rows > 1:
            middle = records.num_rows // 2
            halves = records.slice(0, middle), records.slice(middle)
            refused = next(filter(self._raises_at, halves), None)
            if refused is None:
                return None
            records = refused
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
