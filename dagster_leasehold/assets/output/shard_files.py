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
from dagster_leasehold.assets.output.output_file import OutputFile, quarantined_and_good, sync_pool
from dagster_leasehold.assets.output.worker_results import WrittenFile
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store.errors import one_line, shown
from dagster_leasehold.lease_store.identifiers import ShardId

if TYPE_CHECKING:
    import pyarrow as pa

BUFFERED_BYTES_MAX = 128 * 1024 * 1024
RUNS_PER_SHARD_MAX = 4


@dataclass(slots=True)
class RangeFiles:
    """The files of one range: files of records, and of records in quarantine.

    If the columns of records can vary, records with other columns begin a new file.

    Attributes:
        names: returns a new unique name of a file, given `quarantine`.
        transform: the name of the transform; empty without one.
        columns_vary: True if records can have other columns than the records before.
    """

    folder: OutputPlace
    names: Callable[..., str]
    shard: ShardId
    transform: str
    columns_vary: bool = False
    _full: list[OutputFile] = field(default_factory=list["OutputFile"])
    _open: dict[bool, OutputFile] = field(default_factory=dict[bool, OutputFile])
    _schemas: dict[bool, pa.Schema] = field(default_factory=dict[bool, "pa.Schema"])
    _syncs: list[Future[None]] = field(default_factory=list["Future[None]"])

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows in order; rows with an error go to quarantine.

        Raises:
            TransformError: their columns differ from those of earlier rows.
        """
        bad, good = quarantined_and_good(rows)
        if bad is not None:
            self._take(bad, quarantine=True)
        self._take(good, quarantine=False)

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
        files = [*self._full, *(self._open[kind] for kind in sorted(self._open))]
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

    def _take(self, rows: pa.RecordBatch, *, quarantine: bool) -> None:
        if rows.num_rows == 0:
            return
        other_columns = not rows.schema.equals(self._schemas.get(quarantine, rows.schema))
        if other_columns and self.columns_vary and not quarantine:
            full = self._open.pop(quarantine)
            full.flush()
            self._full.append(full)
        if quarantine not in self._open:
            self.folder.make_folder(exist_ok=True)
            self._schemas[quarantine] = rows.schema
            self._open[quarantine] = OutputFile(
                self.shard,
                self.folder / self.names(quarantine=quarantine),
                rows.schema,
                quarantine=quarantine,
            )
        elif other_columns:
            raise TransformError(
                f"The transform {self.transform} returned the columns "
                f"{_columns(rows.schema)} for some records of shard {self.shard}, and "
                f"{_columns(self._schemas[quarantine])} for earlier records: return the same "
                "columns of the same types for every table."
            )
        self._open[quarantine].add(rows)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


@dataclass(slots=True)
class ShardFiles:
    """The files of one task, for the rows of each shard.

    Attributes:
        name: a unique part of the names of the files.
        numbers: the batch numbers of each shard; rows of other shards are refused.
    """

    folder: OutputPlace
    name: str
    numbers: Mapping[ShardId, range]
    transform: str = ""
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
            self._of[shard] = RangeFiles(self.folder, names, id_, self.transform)
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
