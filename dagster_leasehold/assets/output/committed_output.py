"""Committed output, read through the group's published table: Arrow, Spark, plain files, records.

What was committed is in the table some seconds later; who cannot be content with that waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from typing_extensions import Unpack

from dagster_leasehold.assets.errors import OutputUnreadable
from dagster_leasehold.assets.output.output_file import COMPRESSION, TIME_COLUMN
from dagster_leasehold.assets.output.store_frames import frame_of
from dagster_leasehold.assets.output.table.catching_up import catch_up
from dagster_leasehold.assets.output.table.reading import ALWAYS, EventSpan, TablePlan, plan_table
from dagster_leasehold.assets.places.address import Output, output_place
from dagster_leasehold.assets.table_settings import (
    THE_LEASE_DATABASE,
    CatalogSettings,
    TableSettings,
)
from dagster_leasehold.lease_store.durable_files import replacing
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.store import LedgerAndRewrites

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, SparkSession


class Chosen(TypedDict, total=False):
    """Options that select the records to read; without any, all of the newest snapshot are read.

    Attributes:
        shards: only these shards.
        snapshot_id: of an earlier snapshot, instead of the newest.
        wait: True to see all that was committed before the call: it returns once the table shows
            it, and raises `TableUnavailable` if nothing was published for a minute.
    """

    shards: Collection[ShardId] | None
    snapshot_id: int | None
    wait: bool


class Choice(Chosen, total=False):
    """The records to read, and the table that they are read from.

    Attributes:
        table: the stream's settings of its table. With them, who waits publishes by itself what
            no other process is publishing; without them, it waits for the deployment.
        catalog: of the table, if it is not the lease database.
    """

    table: TableSettings | None
    catalog: CatalogSettings


def plan_committed(
    store: LedgerAndRewrites,
    key: GroupKey,
    output_root: Output,
    *,
    span: EventSpan = ALWAYS,
    **choice: Unpack[Choice],
) -> TablePlan:
    """Return the files of committed output that can hold the chosen records.

    Args:
        store: the lease store.
        key: the consumer group.
        output_root: the folder of the group's output, or its URI.
        span: files that hold no record of it are left out.
        choice: the rest, as `Choice` explains it.

    Raises:
        TableUnavailable: the table or its catalog cannot be reached, or waiting was in vain.
        OutputUnreadable: there is no such snapshot.
    """
    place, catalog = output_place(output_root), choice.get("catalog", THE_LEASE_DATABASE)
    if choice.get("wait"):
        catch_up(store, key, place, table=choice.get("table"), catalog=catalog)
    shards, snapshot = choice.get("shards"), choice.get("snapshot_id")
    return plan_table(
        store, key, place, shards=shards, span=span, snapshot_id=snapshot, catalog=catalog
    )


def committed_dataset(
    store: LedgerAndRewrites,
    key: GroupKey,
    output_root: Output,
    *,
    span: EventSpan = ALWAYS,
    time_column: str = TIME_COLUMN,
    **choice: Unpack[Choice],
) -> ds.Dataset:
    """Return committed output as an Arrow dataset, in order of shard and batch.

    It begins, in each shard, where output has not expired. Its columns are the table's; one that a
    transform added later is null before. DuckDB reads it as a table.

    Args:
        store: the lease store.
        key: the consumer group.
        output_root: the folder of the group's output, or its URI.
        span: only records whose event time lies in it.
        time_column: the column that `span` means, if the transform calls it otherwise.
        choice: `shards`, `snapshot_id`, `wait`, `table`, `catalog`, as `Choice` explains them.

    Raises:
        TableUnavailable: the table or its catalog cannot be reached, or waiting was in vain.
        OutputUnreadable: there is no such time column, or no such snapshot.
    """
    pruned = span if time_column == TIME_COLUMN else ALWAYS
    plan = plan_committed(store, key, output_root, span=pruned, **choice)
    expression = span.expression(time_column)
    if expression is None:
        return plan.dataset()
    _check_time_column(key, time_column, plan.schema.names)
    return plan.dataset().filter(expression)


def read_committed(
    spark: SparkSession,
    store: LedgerAndRewrites,
    key: GroupKey,
    output_root: Output,
    *,
    span: EventSpan = ALWAYS,
    time_column: str = TIME_COLUMN,
    **choice: Unpack[Choice],
) -> DataFrame:
    """Return committed output as a Spark DataFrame, read from the files of the table.

    Args:
        spark: the session; its workers reach the output.
        store: the lease store.
        key: the consumer group.
        output_root: the folder of the group's output, or its URI.
        span: only records whose event time lies in it.
        time_column: the column that `span` means, if the transform calls it otherwise.
        choice: `shards`, `snapshot_id`, `wait`, `table`, `catalog`, as `Choice` explains them.

    Raises:
        TableUnavailable: the table or its catalog cannot be reached, or waiting was in vain.
        OutputUnreadable: there is no such time column, or no such snapshot.
    """
    pruned = span if time_column == TIME_COLUMN else ALWAYS
    plan = plan_committed(store, key, output_root, span=pruned, **choice)
    return parquet_frame(spark, plan, key, span, time_column)


def _literal(path: str) -> str:
    """Return a path as Spark reads it: it would take `{a,b}` or `[x]` for a pattern."""
    return re.sub(r"[\\*?{}\[\]]", r"\\\g<0>", path)


def parquet_frame(
    spark: SparkSession,
    plan: TablePlan,
    key: GroupKey,
    span: EventSpan = ALWAYS,
    time_column: str = TIME_COLUMN,
) -> DataFrame:
    """Return the records of a span in planned files as a Spark DataFrame."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.pandas.types import from_arrow_schema

    paths = [file.path for file in plan.files]
    if not paths:
        frame = spark.createDataFrame([], from_arrow_schema(plan.schema))
    elif paths[0].is_local:
        schema = from_arrow_schema(plan.schema)
        frame = spark.read.schema(schema).parquet(*(_literal(str(path)) for path in paths))
    else:
        frame = frame_of(spark, paths, plan.schema)
    if span.everything:
        return frame
    _check_time_column(key, time_column, frame.columns)
    if span.since is not None:
        frame = frame.where(F.col(time_column) >= F.lit(span.since))
    if span.until is not None:
        frame = frame.where(F.col(time_column) < F.lit(span.until))
    return frame


def _check_time_column(key: GroupKey, column: str, columns: Sequence[str]) -> None:
    if column not in columns:
        raise OutputUnreadable(
            f"The output of {key} has no column {shown(column)} to choose times by: it has "
            f"{', '.join(columns)}."
        )


def committed_paths(
    store: LedgerAndRewrites, key: GroupKey, output_root: Output, **choice: Unpack[Choice]
) -> list[str]:
    """Return the paths or URIs of committed output, for DuckDB's `read_parquet` and the like.

    `choice` is `shards`, `snapshot_id`, `wait`, `table`, `catalog`, as `Choice` explains them.
    """
    return [str(file.path) for file in plan_committed(store, key, output_root, **choice).files]


def iter_records(
    store: LedgerAndRewrites, key: GroupKey, output_root: Output, **choice: Unpack[Choice]
) -> Iterator[pa.RecordBatch]:
    """Yield committed records as Arrow batches, shard after shard, each shard's in order.

    `choice` is `shards`, `snapshot_id`, `wait`, `table`, `catalog`, as `Choice` explains them.

    Raises:
        LogCorrupt: a file that the table names is missing or damaged.
    """
    yield from plan_committed(store, key, output_root, **choice).batches()


def write_parquet(
    plan: TablePlan, file: Path, progress: Callable[[int], None] = lambda _: None
) -> int:
    """Write all records of planned files, in their order, into a new file; return their number.

    The file appears under its name when it is whole and on the disk; memory holds a few batches.

    Args:
        plan: the files.
        file: the new file, in a folder that exists.
        progress: called with the number of records written so far.

    Raises:
        LogCorrupt: a file that the table names is missing or damaged.
        OSError: the file cannot be written.
    """
    import pyarrow.parquet as pq

    rows = 0
    with (
        replacing(file, durable=True) as sink,
        pq.ParquetWriter(sink, plan.schema, compression=COMPRESSION) as out,
    ):
        for batch in plan.batches():
            out.write_batch(batch)
            rows += batch.num_rows
            progress(rows)
    return rows
