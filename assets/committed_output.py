"""Committed output: the files that the ledger names, in its order, and nothing else.

What lies in the output folder besides was written by attempts that never counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lease_store.errors import LogCorrupt
from lease_store.identifiers import GroupKey, ShardId
from lease_store.records import Batch, DataFile
from lease_store.store import LeaseStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A file of committed output, and the batch that made it visible."""

    shard: ShardId
    batch: Batch
    path: Path
    file: DataFile


def committed_files(
    store: LeaseStore,
    key: GroupKey,
    output_root: Path,
    shard: ShardId | None = None,
    *,
    quarantine: bool = False,
) -> list[CommittedFile]:
    """The files of committed batches by shard and batch, of one shard or of all.

    With `quarantine`, those of the records that could not be parsed instead.
    """
    return [
        CommittedFile(batch.shard, batch, output_root / file.path, file)
        for batch in store.batches(key, shard)
        for file in batch.files
        if file.quarantine == quarantine
    ]


def committed_paths(
    store: LeaseStore, key: GroupKey, output_root: Path, shard: ShardId | None = None
) -> list[str]:
    """The paths of committed output, for DuckDB's `read_parquet` or an Arrow dataset."""
    return [str(file.path) for file in committed_files(store, key, output_root, shard)]


def iter_records(
    store: LeaseStore,
    key: GroupKey,
    output_root: Path,
    shard: ShardId | None = None,
    *,
    quarantine: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Committed records as Arrow batches, shard after shard, each shard's in order.

    Raises:
        LogCorrupt: a file that the ledger names is missing or damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    for committed in committed_files(store, key, output_root, shard, quarantine=quarantine):
        # What was handed out stays right if the file turns out to be damaged further on.
        try:
            with pq.ParquetFile(committed.path) as file:
                yield from file.iter_batches()
        except (OSError, pa.ArrowInvalid) as error:
            raise LogCorrupt(
                f"The committed file {committed.path} of batch {committed.batch.batch_id} cannot "
                f"be read ({str(error).splitlines()[0]}): restore it from a backup, or replay the "
                "batch."
            ) from error


def read_committed(
    spark: SparkSession,
    store: LeaseStore,
    key: GroupKey,
    output_root: Path,
    shard: ShardId | None = None,
) -> DataFrame:
    """Committed output as a Spark DataFrame: what the ledger names at this moment."""
    from assets.shard_data_source import SCHEMA

    paths = committed_paths(store, key, output_root, shard)
    if not paths:
        return spark.createDataFrame([], SCHEMA)
    # A transform may have changed over time: a column that came later is null before.
    return spark.read.option("mergeSchema", "true").parquet(*paths)
