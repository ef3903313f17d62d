"""Writes Arrow batches into one Parquet file per range, or per shard and task.

With an Arrow transform, the process that reads the rows also writes them, range by range and in
order. With a transform of DataFrames, a task gets rows of any shards in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.arrow_transform import SHARD_COLUMN
from dagster_leasehold.assets.errors import OutputUnwritable, TransformError
from dagster_leasehold.assets.output.attempts import file_name
from dagster_leasehold.assets.output.output_file import (
    OutputFile,
    in_stored_columns,
    quarantined_and_good,
    stored_columns,
    sync_pool,
)
from dagster_leasehold.assets.output.routed_rows import routed
from dagster_leasehold.assets.output.table.columns import Column, with_current_names
from dagster_leasehold.assets.output.table.partition_values import Partition, partitioned
from dagster_leasehold.assets.output.worker_results import WrittenFile
from dagster_leasehold.assets.partition_fields import UNDIVIDED, Partitioning
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store.errors import one_line, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import record_schema

if TYPE_CHECKING:
    import pyarrow as pa

_Kind = tuple[bool, str, Partition]
"""The place of rows: True for quarantine, then their route and partition."""
_QUARANTINE: _Kind = (True, "", ())
BUFFERED_BYTES_MAX = 128 * 1024 * 1024
RUNS_PER_SHARD_MAX = 4


@dataclass(slots=True)
class RangeFiles:
    """The files of one range: of records, by route and partition, and of records in quarantine.

    If the rows are not divided, there is at most one file of each kind. Once there are
    `partitioning.open_max` files, the rows of further partitions of a route go into one file.

    If the columns of records can vary, records with other columns begin a new file. A file of a
    route lacks the columns in which the route has only nulls, except columns of records.

    Attributes:
        names: returns a new unique name of a file, given `quarantine`, `part` and `route`.
        transform: the name of the transform; empty without one.
        columns_vary: True if records can have other columns than the records before.
        partitioning: the fields that divide the rows.
    """

    folder: OutputPlace
    names: Callable[..., str]
    shard: ShardId
    transform: str
    columns_vary: bool = False
    partitioning: Partitioning = UNDIVIDED
    _full: list[OutputFile] = field(default_factory=list["OutputFile"])
    _open: dict[_Kind, OutputFile] = field(default_factory=dict[_Kind, OutputFile])
    _schemas: dict[bool, pa.Schema] = field(default_factory=dict[bool, "pa.Schema"])
    _syncs: list[Future[None]] = field(default_factory=list["Future[None]"])
    _new_routes: set[str] = field(default_factory=set[str])
    _columns_of: dict[str, set[str]] = field(default_factory=dict[str, "set[str]"])

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows in order; rows with an error go to quarantine.

        Raises:
            TransformError: their columns differ from those of earlier rows.
        """
        bad, good = quarantined_and_good(rows)
        if bad is not None:
            self._begin(bad, quarantine=True)
            self._take(bad, _QUARANTINE)
        if not good.num_rows:
            return
        if self.partitioning.names:
            good = with_current_names(good, self.partitioning.names)
        if self.partitioning.routing is None or not self.columns_vary:
            self._begin(good, quarantine=False)
        if self.partitioning.routing is None:
            self._add_good(good, "")
        else:
            for route, own in routed(good, self.partitioning.routing, self._new_routes):
                if route is None:
                    self.add(own)
                else:
                    self._add_good(own, route)
        if self.partitioning.divides and self.buffered_bytes >= BUFFERED_BYTES_MAX:
            self.flush()

    def _add_good(self, good: pa.RecordBatch, route: str) -> None:
        full = stored_columns(good.schema) if route else ()
        good = self._with_values(good, route) if route else good
        if not self.partitioning.fields:
            self._take(good, (False, route, ()), full)
            return
        rows_by_part = partitioned(in_stored_columns(good), self.partitioning.fields)
        for partition, own in rows_by_part:
            kind = (False, route, partition)
            if kind not in self._open and len(self._open) >= self.partitioning.open_max:
                kind = (False, route, ())
            self._take(own, kind, full)

    def _with_values(self, rows: pa.RecordBatch, route: str) -> pa.RecordBatch:
        """Return rows without the columns in which the route had only nulls so far."""
        names = self._columns_of.setdefault(route, {*record_schema().names})
        columns = zip(rows.schema.names, rows.columns, strict=True)
        names |= {name for name, column in columns if column.null_count < len(column)}
        return rows.select([name for name in rows.schema.names if name in names])

    @property
    def buffered_bytes(self) -> int:
        """The size of the rows in memory."""
        return sum(file.buffered_bytes for file in self._open.values())

    def flush(self) -> None:
        """Write the rows in memory."""
        for file in self._open.values():
            file.flush()

    def finish(self) -> list[WrittenFile]:
        """Complete the files, and start to make them durable."""
        kinds = sorted(self._open, key=lambda kind: kind[0])
        files = [*self._full, *(self._open[kind] for kind in kinds)]
        written = [file.finish() for file in files]
        self._syncs = [sync_pool().submit(file.sync) for file in files]
        return written

    def sync(self) -> None:
        """Wait until the content of finished files is durable; the caller syncs the folder."""
        wait(self._syncs)
        for each in self._syncs:
            each.result()

    def abandon(self) -> None:
        """Close and delete the unfinished files."""
        for file in (*self._full, *self._open.values()):
            file.abandon()
        self._full, self._open = [], {}

    def _begin(self, rows: pa.RecordBatch, *, quarantine: bool) -> None:
        """Begin new files if rows have other columns than the rows before.

        Raises:
            TransformError: the columns must not vary.
        """
        before = self._schemas.setdefault(quarantine, rows.schema)
        if rows.schema.equals(before):
            return
        if quarantine or not self.columns_vary:
            raise TransformError(
                f"The transform {self.transform} returned the columns "
                f"{_columns(rows.schema)} for some records of shard {self.shard}, and "
                f"{_columns(before)} for earlier records: return the same "
                "columns of the same types for every table."
            )
        self._schemas[quarantine] = rows.schema
        for kind in [each for each in self._open if not each[0]]:
            self._close(kind)

    def _close(self, kind: _Kind) -> None:
        full = self._open.pop(kind)
        full.flush()
        self._full.append(full)

    def _take(self, rows: pa.RecordBatch, kind: _Kind, columns: tuple[Column, ...] = ()) -> None:
        """Add rows to their file; `columns` are all columns of the rows of a route."""
        if rows.num_rows == 0:
            return
        quarantine, route, partition = kind
        if route and kind in self._open and not self._open[kind].given.equals(rows.schema):
            self._close(kind)
        if kind not in self._open:
            self.folder.make_folder(exist_ok=True)
            part = len(self._full) + len(self._open) + 1 if self.partitioning.divides else 0
            self._open[kind] = OutputFile(
                self.shard,
                self.folder / self.names(quarantine=quarantine, part=part, route=route),
                rows.schema,
                quarantine=quarantine,
                partition=partition,
                route=route,
                columns=columns,
            )
        self._open[kind].add(rows)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


@dataclass(slots=True)
class ShardFiles:
    """The files of one task, for the rows of each shard.

    Attributes:
        name: a unique part of the names of the files.
        numbers: the batch numbers of each shard; rows of other shards are refused.
        transform: the name of the transform; empty without one.
        partitioning: the fields that divide the rows of a shard.
    """

    folder: OutputPlace
    name: str
    numbers: Mapping[ShardId, range]
    transform: str = ""
    partitioning: Partitioning = UNDIVIDED
    _of: dict[str, RangeFiles] = field(default_factory=dict[str, RangeFiles])

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows to the files of their shards; rows with an error go to quarantine.

        Raises:
            TransformError: a row belongs to no shard of the sweep.
        """
        for shard, rows in by_shard(batch):
            self._files(shard).add(rows)
        if sum(files.buffered_bytes for files in self._of.values()) >= BUFFERED_BYTES_MAX:
            for files in self._of.values():
                files.flush()

    def close(self) -> list[WrittenFile]:
        """Complete all files and make them durable; return them in order of their first rows."""
        written = [file for files in self._of.values() for file in files.finish()]
        for files in self._of.values():
            files.sync()
        if written:
            self.folder.sync_folder()
        self._of = {}
        return written

    def abandon(self) -> None:
        """Close and delete the unfinished files."""
        for files in self._of.values():
            files.abandon()
        self._of = {}

    def _files(self, shard: str) -> RangeFiles:
        if shard not in self._of:
            if shard not in self.numbers:
                raise TransformError(
                    f"The transform put {shown(shard)} into the column {SHARD_COLUMN}, which is "
                    "not a shard of its input: leave this column as it is."
                )
            id_ = ShardId(shard)
            # The number distinguishes shards whose names differ only in case, on file systems that
            # ignore case.
            rest = f"{self.name}-{len(self._of)}"
            names = partial(file_name, id_, self.numbers[id_], rest)
            self._of[shard] = RangeFiles(
                self.folder, names, id_, self.transform, partitioning=self.partitioning
            )
        return self._of[shard]


def by_shard(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of a batch by shard; the rows of each shard stay in order.

    Raises:
        TransformError: the shard of a row is null.
    """
    import pyarrow.compute

    pc: Any = pyarrow.compute

    if batch.num_rows == 0:
        return
    column = batch.column(SHARD_COLUMN)
    if column.null_count:
        raise TransformError(
            f"The transform put null into the column {SHARD_COLUMN}: leave this column as it is."
        )
    changes = pc.indices_nonzero(
        pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
    ).to_pylist()
    names: list[str] = pc.unique(column).to_pylist()
    if len(changes) + 1 > RUNS_PER_SHARD_MAX * len(names):
        # After a shuffle the shards are mixed, and slices of a few rows would be slower.
        for name in names:
            yield name, batch.filter(pc.equal(column, name))
        return
    starts = [0, *(change + 1 for change in changes)]
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        yield column[start].as_py(), batch.slice(start, end - start)


def unwritable(output: str, folder: OutputPlace, error: Exception) -> OutputUnwritable:
    """Return the error for output that a worker cannot write into an attempt's folder."""
    return OutputUnwritable(
        f"{output} cannot be written to {folder} ({type(error).__name__}: {one_line(str(error))}): "
        "make sure that Spark's workers can write there and that the disk has room."
    )
