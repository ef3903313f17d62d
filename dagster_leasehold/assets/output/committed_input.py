"""The IO manager that loads committed output for downstream assets, in the type of their inputs.

It waits until the table shows everything that was committed before the input is loaded. It stores
no values, because the output of a stream is committed without Dagster.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_leasehold.assets.deployment import LEASEHOLD, Deployment, deployment_in
from dagster_leasehold.assets.errors import OutputUnreadable
from dagster_leasehold.assets.output.committed_output import CommittedOutput
from dagster_leasehold.assets.output.expired_output import refuse_expired_times
from dagster_leasehold.assets.output.output_file import TIME_COLUMN
from dagster_leasehold.assets.output.table.reading import ALWAYS, EventSpan
from dagster_leasehold.assets.partitions import asset_key, output_key
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark.spark_resource import spark_of_run
from dagster_leasehold.lease_store.errors import LeaseholdError, shown
from dagster_leasehold.lease_store.identifiers import ShardId

if TYPE_CHECKING:
    import pyarrow.dataset as ds

TIME_COLUMN_KEY = "event_time_column"
"""The key in an input's metadata for the column of its time window; the default is `event_time`."""
KINDS = {
    ("pyarrow", "Table"): "table",
    ("pyarrow", "Dataset"): "dataset",
    ("pandas", "DataFrame"): "pandas",
    ("polars", "DataFrame"): "polars",
    ("polars", "LazyFrame"): "lazy",
    ("pyspark", "DataFrame"): "spark",
}


def kind_of(annotation: object) -> str | None:
    """Return the kind of input for a type annotation, without importing its library."""
    package = getattr(annotation, "__module__", "").partition(".")[0]
    return KINDS.get((package, getattr(annotation, "__name__", "")))


class CommittedInput(dg.IOManager):
    """Loads the committed output of a stream as a Spark, pandas or Polars frame, or as Arrow data.

    A downstream asset gets:

    * with the partitions of the stream, the shards of its run;
    * with time partitions, the records of its time window, of all shards;
    * with other partitions, the shards of its partition mapping;
    * without partitions, the whole stream.
    """

    def __init__(self, stream: ShardStream, deployment: Deployment) -> None:
        self._stream = stream
        self._deployment = deployment

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Refuse the value with a Failure."""
        del obj
        raise dg.Failure(
            f"{output_key(self._stream)} stores no values, and "
            f"{context.asset_key.to_user_string()} returned one: use another IO manager for this "
            "asset.",
            allow_retries=False,
        )

    def load_input(self, context: dg.InputContext) -> Any:
        """Return the committed output for an input."""
        try:
            return self._load(context)
        except LeaseholdError as error:
            raise dg.Failure(str(error), allow_retries=False) from error

    def _load(self, context: dg.InputContext) -> Any:
        stream = self._stream
        if context.asset_key != asset_key(stream):
            raise OutputUnreadable(
                f"{output_key(stream)} loads {asset_key(stream).to_user_string()}, and "
                f"{context.asset_key.to_user_string()} is another asset: use its own IO manager."
            )
        annotation = context.dagster_type.typing_type
        kind = kind_of(annotation)
        if kind is None:
            raise OutputUnreadable(
                f"The input {shown(context.name)} is annotated as {shown(str(annotation))}: use "
                "pyspark.sql.DataFrame, pyarrow.dataset.Dataset, pyarrow.Table, pandas.DataFrame, "
                "polars.DataFrame or polars.LazyFrame."
            )
        shards, span = selection(context)
        if not span.everything:
            refuse_expired_times(self._deployment.store(), stream.key, span.since, span.until)
        column = str((context.definition_metadata or {}).get(TIME_COLUMN_KEY, TIME_COLUMN))
        deployment = self._deployment
        output = CommittedOutput(
            deployment.store(),
            stream.key,
            deployment.output_folder(stream.key),
            stream.iceberg,
            deployment.catalog,
        )
        if kind == "spark":
            spark = spark_of_run(deployment.spark).spark_session
            return output.frame(spark, span=span, time_column=column, shards=shards, wait=True)
        dataset = output.dataset(span=span, time_column=column, shards=shards, wait=True)
        if kind == "dataset":
            return dataset
        return _in_memory(dataset, kind)


def _in_memory(dataset: ds.Dataset, kind: str) -> Any:
    """Return the records of a dataset in the kind of the input; a lazy frame reads on demand."""
    if kind in ("polars", "lazy"):
        import polars

        lazy = polars.scan_pyarrow_dataset(dataset)
        return lazy if kind == "lazy" else lazy.collect()
    table = dataset.to_table()
    return table if kind == "table" else table.to_pandas()


def selection(context: dg.InputContext) -> tuple[Collection[ShardId] | None, EventSpan]:
    """Return the shards (None for all) and the event times to load for an input."""
    partitions = context.step_context.run_partitions_def
    if partitions is None or not context.has_asset_partitions:
        return None, ALWAYS
    if isinstance(partitions, dg.TimeWindowPartitionsDefinition):
        window = context.step_context.partition_time_window
        return None, EventSpan(window.start, window.end)
    return [ShardId(key) for key in context.asset_partition_keys], ALWAYS


def committed_input(stream: ShardStream) -> dg.IOManagerDefinition:
    """Return the IO manager of a stream's output, which starts Spark only if needed."""

    @dg.io_manager(
        required_resource_keys={LEASEHOLD},
        description=f"Loads committed output of {stream.name} for the assets that depend on it.",
    )
    def committed_output(context: dg.InitResourceContext) -> CommittedInput:
        return CommittedInput(stream, deployment_in(context.resources))

    return committed_output
