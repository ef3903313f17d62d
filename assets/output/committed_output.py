"""Committed output: the files that the ledger names, in its order, and nothing else.

Other files in the output folder were written by attempts that never counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.output.attempts import unreadable
from dagster_leasehold.assets.output.committed_dataset import dataset_of, no_time_column
from dagster_leasehold.assets.output.committed_parts import (
    ALWAYS,
    CommittedPart,
    EventSpan,
    committed_parts,
)
from dagster_leasehold.assets.output.ledger_view import Heads, at_one_moment, each_committed
from dagster_leasehold.assets.output.output_file import RECORD_DDL, TIME_COLUMN
from dagster_leasehold.assets.output.store_frames import frame_of
from dagster_leasehold.assets.places.address import Output, output_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, DataFile
from dagster_leasehold.lease_store.roles.ledger import Ledger

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_READ = 256


@dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """A record that could not be parsed, as it came.

    Attributes:
        batch_id: the batch that holds it.
        value: its raw bytes; None where the source has none.
        error: why it could not be parsed.
    """

    shard: ShardId
    batch_id: str
    cursor: str
    event_time: datetime | None
    key: bytes | None
    value: bytes | None
    error: str


def quarantined_records(
    store: Ledger,
    key: GroupKey,
    output_root: Output,
    shard: ShardId | None = None,
    *,
    since: datetime | None = None,
) -> Iterator[QuarantinedRecord]:
    """Yield records in quarantine, shard by shard, each shard's in order.

    With `since`, those whose event time is not before it; one without an event time is included.

    Raises:
        LogCorrupt: a file that the ledger names is missing or damaged.
    """
    for committed in each_committed_file(store, key, output_root, shard, quarantine=True):
        last = committed.batch.statistics.last_event_time
        if since is not None and last is not None and last < since:
            continue
        for record in _records(committed):
            if since is None or record.event_time is None or record.event_time >= since:
                yield record


def _records(committed: CommittedFile) -> Iterator[QuarantinedRecord]:
    import pyarrow as pa

    try:
        with committed.path.parquet() as file:
            for batch in file.iter_batches(batch_size=ROWS_PER_READ):
                yield from (_record(committed, row) for row in batch.to_pylist())
    except (OSError, pa.ArrowInvalid) as error:
        raise unreadable(committed.path, error, committed.batch.batch_id) from error


def _record(committed: CommittedFile, row: dict[str, Any]) -> QuarantinedRecord:
    return QuarantinedRecord(
        shard=committed.shard,
        batch_id=committed.batch.batch_id,
        cursor=row["cursor"],
        event_time=row["event_time"],
        key=row["key"],
        value=row["value"],
        error=row["error"],
    )


def quarantined_count(store: Ledger, key: GroupKey, shard: ShardId | None = None) -> int:
    """Return the number of records of committed batches in quarantine."""
    return sum(batch.statistics.quarantined for batch in store.each_batch(key, shard))


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A file of committed output, and the batch that made it visible."""

    shard: ShardId
    batch: Batch
    path: OutputPlace
    file: DataFile


def committed_files(
    store: Ledger,
    key: GroupKey,
    output_root: Output,
    shard: ShardId | None = None,
    *,
    quarantine: bool = False,
) -> list[CommittedFile]:
    """Return the files of committed batches by shard and batch, of one shard or of all.

    With `quarantine`, those of the records that could not be parsed instead.
    """
    return list(each_committed_file(store, key, output_root, shard, quarantine=quarantine))


def each_committed_file(
    store: Ledger,
    key: GroupKey,
    output_root: Output,
    shard: ShardId | None = None,
    *,
    quarantine: bool = False,
) -> Iterator[CommittedFile]:
    """Yield what `committed_files` returns, shard by shard, each as it was at one moment."""
    folder = output_place(output_root)

    def read(heads: Heads) -> Iterator[tuple[ShardId, CommittedFile]]:
        for batch in each_committed(store, key, heads):
            for file in batch.files:
                if file.quarantine == quarantine:
                    path = folder / file.path
                    yield batch.shard, CommittedFile(batch.shard, batch, path, file)

    shards = [shard] if shard is not None else list(store.heads(key))
    for each in shards:
        for files in at_one_moment(store, key, [each], read)[0].values():
            yield from files


def committed_paths(
    store: Ledger, key: GroupKey, output_root: Output, shard: ShardId | None = None
) -> list[str]:
    """Return the paths or URIs of committed output, for DuckDB's `read_parquet` and the like."""
    return [str(file.path) for file in committed_files(store, key, output_root, shard)]


def iter_records(
    store: Ledger,
    key: GroupKey,
    output_root: Output,
    shard: ShardId | None = None,
    *,
    quarantine: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield committed records as Arrow batches, shard after shard, each shard's in order.

    Raises:
        LogCorrupt: a file that the ledger names is missing or damaged.
    """
    import pyarrow as pa

    for committed in each_committed_file(store, key, output_root, shard, quarantine=quarantine):
        # What was handed out stays right if the file turns out to be damaged further on.
        try:
            with committed.path.parquet() as file:
                yield from file.iter_batches()
        except (OSError, pa.ArrowInvalid) as error:
            raise unreadable(committed.path, error, committed.batch.batch_id) from error


def read_committed(
    spark: SparkSession,
    store: Ledger,
    key: GroupKey,
    output_root: Output,
    *,
    shards: Collection[ShardId] | None = None,
    span: EventSpan = ALWAYS,
    time_column: str = TIME_COLUMN,
) -> DataFrame:
    """Return committed output as a Spark DataFrame: what the ledger names at this moment.

    Args:
        spark: the session.
        store: the lease store.
        key: the consumer group.
        output_root: the folder of the group's output, or its URI; Spark's workers reach it too.
        shards: only these shards; None is all.
        span: only records whose event time lies in it.
        time_column: the column that `span` means, if the transform calls it otherwise.

    Raises:
        OutputUnreadable: there is no such time column.
    """
    pruned = span if time_column == TIME_COLUMN else ALWAYS
    parts = committed_parts(store, key, output_root, shards=shards, span=pruned)
    return parquet_frame(spark, parts, key, span, time_column)


def parquet_frame(
    spark: SparkSession,
    parts: Sequence[CommittedPart],
    key: GroupKey,
    span: EventSpan = ALWAYS,
    time_column: str = TIME_COLUMN,
) -> DataFrame:
    """Return whole files of committed output as a Spark DataFrame; see `read_committed`."""
    from pyspark.sql import functions as F  # noqa: N812

    if not parts:
        return spark.createDataFrame([], RECORD_DDL)
    # A transform may have changed over time: a column that came later is null before.
    if parts[0].path.is_local:
        paths = [str(part.path) for part in parts]
        frame = spark.read.option("mergeSchema", "true").parquet(*paths)
    else:
        frame = frame_of(spark, [part.path for part in parts], dataset_of(parts).schema)
    if span.everything:
        return frame
    if time_column not in frame.columns:
        raise no_time_column(key, time_column, frame.columns)
    if span.since is not None:
        frame = frame.where(F.col(time_column) >= F.lit(span.since))
    if span.until is not None:
        frame = frame.where(F.col(time_column) < F.lit(span.until))
    return frame
