"""Committed output, read with Arrow or Spark through the published table of the group.

Committed records appear in the table after the next publication, some seconds later. A reader can
wait for that publication.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
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
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, SparkSession


class ReadOptions(TypedDict, total=False):
    """Options that select records; by default, all records of the newest snapshot.

    Attributes:
        shards: read only these shards.
        snapshot_id: read this snapshot instead of the newest.
        route: read only the table of this route.
        wait: True to read everything that was committed before the call. The call waits until the
            table shows it, and raises `TableUnavailable` if nothing is published for a minute, or
            at once if a publication check holds output of these shards.
    """

    shards: Collection[ShardId] | None
    snapshot_id: int | None
    route: str
    wait: bool


@dataclass(frozen=True, slots=True)
class CommittedOutput:
    """The committed output of one group.

    All methods raise `TableUnavailable` if the table or its catalog cannot be reached or a wait
    timed out, and `OutputUnreadable` if there is no such snapshot, route or time column.

    Attributes:
        output_root: the folder of the output, or its URI.
        table: the settings of the table. With them, a waiting reader publishes by itself if no
            other process does; without them, it waits for the deployment.
        catalog: the catalog of the table.
    """

    store: LedgerAndRewrites
    key: GroupKey
    output_root: Output
    table: TableSettings | None = None
    catalog: CatalogSettings = THE_LEASE_DATABASE

    def plan(self, *, span: EventSpan = ALWAYS, **options: Unpack[ReadOptions]) -> TablePlan:
        """Return the files that can contain the selected records and overlap `span`."""
        place = output_place(self.output_root)
        if options.get("wait"):
            catch_up(
                self.store,
                self.key,
                place,
                table=self.table,
                catalog=self.catalog,
                shards=options.get("shards"),
            )
        return plan_table(
            self.store,
            self.key,
            place,
            shards=options.get("shards"),
            span=span,
            snapshot_id=options.get("snapshot_id"),
            route=options.get("route", ""),
            catalog=self.catalog,
        )

    def dataset(
        self,
        *,
        span: EventSpan = ALWAYS,
        time_column: str = TIME_COLUMN,
        **options: Unpack[ReadOptions],
    ) -> ds.Dataset:
        """Return the records as an Arrow dataset, in order of shard and batch.

        Each shard begins with its first output that has not expired. A column that a transform
        added later is null in earlier records. `span` selects event times in `time_column`.
        """
        plan = self.plan(span=span if time_column == TIME_COLUMN else ALWAYS, **options)
        expression = span.expression(time_column)
        if expression is None:
            return plan.dataset()
        _check_time_column(self.key, time_column, plan.schema.names)
        return plan.dataset().filter(expression)

    def frame(
        self,
        spark: SparkSession,
        *,
        span: EventSpan = ALWAYS,
        time_column: str = TIME_COLUMN,
        **options: Unpack[ReadOptions],
    ) -> DataFrame:
        """Return the records as a Spark DataFrame; the workers need access to the output."""
        plan = self.plan(span=span if time_column == TIME_COLUMN else ALWAYS, **options)
        return parquet_frame(spark, plan, self.key, span, time_column)


def _literal(path: str) -> str:
    """Escape a path for Spark, which would read `{a,b}` or `[x]` as a pattern."""
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
    elif paths[0].is_local and not plan.names:
        schema = from_arrow_schema(plan.schema)
        frame = spark.read.schema(schema).parquet(*(_literal(str(path)) for path in paths))
    else:
        frame = frame_of(spark, paths, plan.schema, plan.names)
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
            f"The output of {key} has no time column {shown(column)}: it has {', '.join(columns)}."
        )


def write_parquet(
    plan: TablePlan, file: Path, progress: Callable[[int], None] = lambda _: None
) -> int:
    """Write all records of planned files, in order, into a new file; return their number.

    The file appears when it is complete and durable. Memory holds a few batches. `progress`
    receives the number of records written so far.

    Raises:
        LogCorrupt: a file that the table names is missing or damaged.
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
