"""One Parquet file per shard and task, written as Arrow batches come, with bounded memory.

Knows Arrow alone: Spark calls it through `assets.output.parquet_sink`, with the rows of any of the
sweep's shards in any order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.arrow_transform import SHARD_COLUMN
from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.output.output_file import (
    SYNCED_AT_ONCE,
    OutputFile,
    quarantined_and_good,
)
from dagster_leasehold.assets.output.worker_results import WrittenFile
from dagster_leasehold.lease_store.durable_files import make_folder, sync_folder
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.lease_store.identifiers import ShardId

if TYPE_CHECKING:
    import pyarrow as pa

BUFFERED_BYTES_MAX = 128 * 1024 * 1024
RUNS_PER_SHARD_MAX = 4


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
        self._open: dict[tuple[str, bool], OutputFile] = {}
        self._buffered_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows for the files of their shards; rows with an error go to quarantine.

        Raises:
            TransformError: a row names no shard of the sweep.
        """
        for shard, rows in by_shard(batch):
            if shard not in self._shards:
                raise TransformError(
                    f"The transform put {shown(shard)} into the column {SHARD_COLUMN}, which is no "
                    "shard that it was given: leave this column as it is."
                )
            bad, good = quarantined_and_good(rows)
            if bad is not None:
                self._take(shard, bad, quarantine=True)
            self._take(shard, good, quarantine=False)

    def close(self) -> list[WrittenFile]:
        """Finish all files, make them durable, and return them in order of their first rows."""
        files = [*self._open.values()]
        written = [file.finish() for file in files]
        if written:
            with ThreadPoolExecutor(SYNCED_AT_ONCE) as syncs:
                deque(syncs.map(OutputFile.sync, files), maxlen=0)
            sync_folder(self._folder)
        self._open = {}
        return written

    def abandon(self) -> None:
        """Close and delete what was begun."""
        for file in self._open.values():
            file.abandon()
        self._open = {}

    def _take(self, shard: str, rows: pa.RecordBatch, *, quarantine: bool) -> None:
        if rows.num_rows == 0:
            return
        file = self._open.get((shard, quarantine)) or self._begin(shard, rows, quarantine)
        self._buffered_bytes -= file.buffered_bytes
        file.add(rows)
        self._buffered_bytes += file.buffered_bytes
        if self._buffered_bytes >= BUFFERED_BYTES_MAX:
            for each in self._open.values():
                each.flush()
            self._buffered_bytes = 0

    def _begin(self, shard: str, rows: pa.RecordBatch, quarantine: bool) -> OutputFile:
        make_folder(self._folder, exist_ok=True)
        # The number keeps apart shards whose names differ in case only, on file systems that
        # do not see the difference.
        kind = ".quarantine" if quarantine else ""
        path = self._folder / f"{ShardId(shard)}.{self._prefix}-{len(self._open)}{kind}.parquet"
        file = self._open[shard, quarantine] = OutputFile(
            ShardId(shard), path, rows.schema, quarantine=quarantine, transform=self._transform
        )
        return file


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
