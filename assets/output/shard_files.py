"""One Parquet file per shard and task, written as Arrow batches come, with bounded memory.

Knows Arrow alone: Spark calls it through `assets.output.parquet_sink`. A file that exists under
its name is durable in content; it counts if the ledger names it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from dagster_leasehold.assets.arrow_transform import ERROR_COLUMN, QUARANTINE_COLUMNS, SHARD_COLUMN
from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.output.attempt_reports import WrittenFile, earliest, latest
from dagster_leasehold.assets.output.transform_mark import marked
from dagster_leasehold.lease_store.durable_files import make_folder, sync_file, sync_folder
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.lease_store.identifiers import ShardId

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

RECORD_DDL = (
    "shard_id string, cursor string, event_time timestamp, key binary, value binary, "
    "attributes map<string, string>"
)
"""The columns of records as Spark knows them: those of `shard_sources.source.record_schema`."""
TIME_COLUMN = "event_time"
COMPRESSION = "zstd"
ROW_GROUP_BYTES = 32 * 1024 * 1024
BUFFERED_BYTES_MAX = 128 * 1024 * 1024
RUNS_PER_SHARD_MAX = 4


@dataclass
class _OpenFile:
    """A file that is being written, and the rows that wait to become its next row group."""

    shard: ShardId
    path: Path
    quarantine: bool
    file: BinaryIO
    writer: pq.ParquetWriter
    records: int = 0
    buffered: list[pa.RecordBatch] = field(default_factory=list)
    buffered_bytes: int = 0
    first_event_time: datetime | None = None
    last_event_time: datetime | None = None

    def see(self, rows: pa.RecordBatch) -> None:
        """Widen the bounds of the event times by these rows."""
        first, last = event_times(rows)
        self.first_event_time = earliest(self.first_event_time, first)
        self.last_event_time = latest(self.last_event_time, last)

    def flush(self) -> None:
        """Write the waiting rows as one row group."""
        import pyarrow as pa

        if self.buffered:
            self.writer.write_table(pa.Table.from_batches(self.buffered))
        self.buffered, self.buffered_bytes = [], 0


class ShardFiles:
    """The files of one task.

    Args:
        folder: the attempt's folder; nobody else writes these names into it.
        task: the number of the task within its job.
        attempt: the number of this try of the task.
        shards: the shards that the sweep reads; rows of any other are refused.
        transform: the name of the transform that made the rows, which each file bears.
    """

    def __init__(
        self,
        folder: Path,
        task: int,
        attempt: int,
        shards: Collection[ShardId],
        transform: str = "",
    ) -> None:
        self._folder = folder
        self._transform = transform
        self._prefix = f"{task:05d}-{attempt}"
        self._shards = frozenset(shards)
        self._open: dict[tuple[str, bool], _OpenFile] = {}
        self._buffered_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows for the files of their shards; rows with an error go to quarantine.

        Raises:
            TransformError: a row names no shard of the sweep.
        """
        import pyarrow.compute

        # Its functions are made when it is imported, where a type checker cannot see them.
        pc: Any = pyarrow.compute

        for shard, rows in by_shard(batch):
            if shard not in self._shards:
                raise TransformError(
                    f"The transform put {shown(shard)} into the column {SHARD_COLUMN}, which is no "
                    "shard that it was given: leave this column as it is."
                )
            if ERROR_COLUMN not in rows.schema.names:
                self._take(shard, rows, quarantine=False)
                continue
            failed = pc.is_valid(rows.column(ERROR_COLUMN))
            bad = rows.filter(failed).select(list(QUARANTINE_COLUMNS))
            self._take(shard, bad.rename_columns([*QUARANTINE_COLUMNS[:-1], "error"]), True)
            self._take(shard, rows.filter(pc.invert(failed)).drop_columns([ERROR_COLUMN]), False)

    def close(self) -> list[WrittenFile]:
        """Finish all files, make them durable, and return them in order of their first rows."""
        written: list[WrittenFile] = []
        while self._open:
            key = next(iter(self._open))
            open_file = self._open.pop(key)
            open_file.flush()
            open_file.writer.close()
            # The commit that names this file is durable: so must the file be, and its name below.
            sync_file(open_file.file)
            open_file.file.close()
            size = open_file.path.stat().st_size
            written.append(
                WrittenFile(
                    open_file.shard,
                    open_file.path.name,
                    open_file.records,
                    size,
                    open_file.quarantine,
                    open_file.first_event_time,
                    open_file.last_event_time,
                )
            )
        if written:
            sync_folder(self._folder)
        return written

    def abandon(self) -> None:
        """Close and delete what was begun."""
        for open_file in self._open.values():
            # A full disk may be why; what cannot be finished is deleted all the same.
            with contextlib.suppress(OSError):
                open_file.writer.close()
            with contextlib.suppress(OSError):
                open_file.file.close()
            open_file.path.unlink(missing_ok=True)
        self._open = {}

    def _take(self, shard: str, rows: pa.RecordBatch, quarantine: bool) -> None:
        if rows.num_rows == 0:
            return
        target = self._open.get((shard, quarantine)) or self._begin(shard, rows, quarantine)
        target.buffered.append(rows)
        target.buffered_bytes += rows.nbytes
        target.records += rows.num_rows
        target.see(rows)
        self._buffered_bytes += rows.nbytes
        if target.buffered_bytes >= ROW_GROUP_BYTES:
            self._buffered_bytes -= target.buffered_bytes
            target.flush()
        elif self._buffered_bytes >= BUFFERED_BYTES_MAX:
            for open_file in self._open.values():
                open_file.flush()
            self._buffered_bytes = 0

    def _begin(self, shard: str, rows: pa.RecordBatch, quarantine: bool) -> _OpenFile:
        import pyarrow.parquet as pq

        make_folder(self._folder, exist_ok=True)
        # The number keeps apart shards whose names differ in case only, on file systems that
        # do not see the difference.
        kind = ".quarantine" if quarantine else ""
        name = f"{ShardId(shard)}.{self._prefix}-{len(self._open)}{kind}.parquet"
        path = self._folder / name
        file = path.open("xb")
        schema = marked(rows.schema, self._transform)
        writer = pq.ParquetWriter(file, schema, compression=COMPRESSION)
        open_file = _OpenFile(ShardId(shard), path, quarantine, file, writer)
        self._open[shard, quarantine] = open_file
        return open_file


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


def event_times(rows: pa.RecordBatch) -> tuple[datetime | None, datetime | None]:
    """Return the smallest and largest event time of rows; None if the column has no moments."""
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute

    at = rows.schema.get_field_index(TIME_COLUMN)
    if at < 0 or not (pa.types.is_timestamp(kind := rows.schema.field(at).type) and kind.tz):
        return None, None
    bounds = pc.min_max(rows.column(at).cast(pa.timestamp("us", tz="UTC"), safe=False)).as_py()
    return bounds["min"], bounds["max"]
