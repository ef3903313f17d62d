"""One Parquet file per shard and task, or per range, written as Arrow batches come.

Rows that never leave the process which read them come range by range, all of one shard and in
order. With a transform of DataFrames, a task gets rows of any of the sweep's shards in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.arrow_transform import SHARD_COLUMN
from dagster_leasehold.assets.errors import OutputUnwritable, TransformError
from dagster_leasehold.assets.output.file_names import FileNames, file_name
from dagster_leasehold.assets.output.output_file import OutputFile, quarantined_and_good, settling
from dagster_leasehold.assets.output.worker_results import WrittenFile
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store.errors import one_line, shown
from dagster_leasehold.lease_store.identifiers import ShardId

if TYPE_CHECKING:
    import pyarrow as pa

BUFFERED_BYTES_MAX = 128 * 1024 * 1024
RUNS_PER_SHARD_MAX = 4


class RangeFiles:
    """The files of one range, begun with their first rows.

    Args:
        folder: the attempt's folder.
        names: gives the name of the file of records, and with `quarantine=True` that of its
            quarantine; no other process uses them.
        shard: the shard that every row belongs to.
        transform: the name of the transform that made the rows; empty where there is none.
    """

    def __init__(
        self, folder: OutputPlace, names: FileNames, shard: ShardId, transform: str
    ) -> None:
        self._folder = folder
        self._names = names
        self._shard = shard
        self._transform = transform
        self._open: dict[bool, OutputFile] = {}
        self._schemas: dict[bool, pa.Schema] = {}
        self._settling: list[Future[None]] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows in their order; rows with an error go to quarantine.

        Raises:
            TransformError: they have other columns than the rows before.
            OSError: they cannot be written.
        """
        bad, good = quarantined_and_good(rows)
        if bad is not None:
            self._take(bad, quarantine=True)
        self._take(good, quarantine=False)

    @property
    def buffered_bytes(self) -> int:
        """The bytes of rows that wait in memory."""
        return sum(file.buffered_bytes for file in self._open.values())

    def flush(self) -> None:
        """Write the rows that wait.

        Raises:
            OSError: they cannot be written.
        """
        for file in self._open.values():
            file.flush()

    def finish(self) -> list[WrittenFile]:
        """Write all that is left, and begin to make it durable.

        Raises:
            OSError: it cannot be written.
        """
        files = [self._open[kind] for kind in sorted(self._open)]
        written = [file.finish() for file in files]
        self._settling = [settling().submit(file.settle) for file in files]
        return written

    def settle(self) -> None:
        """Wait until the content of finished files is durable; their names are not yet.

        Raises:
            OSError: it cannot be made durable.
        """
        wait(self._settling)
        for each in self._settling:
            each.result()

    def abandon(self) -> None:
        """Close and delete the unfinished files."""
        for file in self._open.values():
            file.abandon()
        self._open = {}

    def _take(self, rows: pa.RecordBatch, *, quarantine: bool) -> None:
        if rows.num_rows == 0:
            return
        if quarantine not in self._open:
            self._folder.make_folder(exist_ok=True)
            self._schemas[quarantine] = rows.schema
            self._open[quarantine] = OutputFile(
                self._shard,
                self._folder / self._names(quarantine=quarantine),
                rows.schema,
                quarantine=quarantine,
            )
        elif not rows.schema.equals(self._schemas[quarantine]):
            raise TransformError(
                f"The transform {self._transform} returned the columns "
                f"{_columns(rows.schema)} for some records of shard {self._shard}, and "
                f"{_columns(self._schemas[quarantine])} for records before them: return the same "
                "columns of the same types for every table."
            )
        self._open[quarantine].add(rows)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


class ShardFiles:
    """The files of one task: one for the rows of each shard.

    Args:
        folder: the attempt's folder.
        name: a unique part of the files' names.
        numbers: the batches that are made, by shard; rows of any other shard are refused.
        transform: the name of the transform that made the rows, which each file bears.
    """

    def __init__(
        self, folder: OutputPlace, name: str, numbers: Mapping[ShardId, range], transform: str = ""
    ) -> None:
        self._folder = folder
        self._name = name
        self._numbers = numbers
        self._transform = transform
        self._of: dict[str, RangeFiles] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows for the files of their shards; rows with an error go to quarantine.

        Raises:
            TransformError: a row names no shard of the sweep.
            OSError: rows cannot be written.
        """
        for shard, rows in by_shard(batch):
            self._files(shard).add(rows)
        if sum(files.buffered_bytes for files in self._of.values()) >= BUFFERED_BYTES_MAX:
            for files in self._of.values():
                files.flush()

    def close(self) -> list[WrittenFile]:
        """Finish all files and make them durable; return them in the order of their first rows.

        Raises:
            OSError: they cannot be written.
        """
        written = [file for files in self._of.values() for file in files.finish()]
        for files in self._of.values():
            files.settle()
        if written:
            self._folder.sync_folder()
        self._of = {}
        return written

    def abandon(self) -> None:
        """Close and delete the unfinished files."""
        for files in self._of.values():
            files.abandon()
        self._of = {}

    def _files(self, shard: str) -> RangeFiles:
        if shard not in self._of:
            if shard not in self._numbers:
                raise TransformError(
                    f"The transform put {shown(shard)} into the column {SHARD_COLUMN}, which is no "
                    "shard that it was given: leave this column as it is."
                )
            id_ = ShardId(shard)
            # The number keeps apart shards whose names differ in case only, on file systems that
            # do not see the difference.
            rest = f"{self._name}-{len(self._of)}"
            names = partial(file_name, id_, self._numbers[id_], rest)
            self._of[shard] = RangeFiles(self._folder, names, id_, self._transform)
        return self._of[shard]


def by_shard(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of a batch, shard by shard, each shard's rows in their order.

    Raises:
        TransformError: a row names no shard at all.
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
        # After a shuffle the shards are mixed; slices of a few rows each would cost more.
        for name in names:
            yield name, batch.filter(pc.equal(column, name))
        return
    starts = [0, *(change + 1 for change in changes)]
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        yield column[start].as_py(), batch.slice(start, end - start)


def unwritable(whose: str, folder: OutputPlace, error: Exception) -> OutputUnwritable:
    """Return the error of output that a worker cannot write into an attempt's folder."""
    return OutputUnwritable(
        f"{whose} cannot be written to {folder} ({type(error).__name__}: {one_line(str(error))}): "
        "see that Spark's workers can write there and that its disk has room."
    )
