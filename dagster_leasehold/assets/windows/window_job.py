"""The Spark job of a window of event time: committed output is read, transformed and written."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from dagster_leasehold.assets import errors
from dagster_leasehold.assets.guarding.job_watch import explained, watched
from dagster_leasehold.assets.guarding.run_on_spark import RunOnSpark
from dagster_leasehold.assets.output.attempts import ATTEMPTS_FOLDER
from dagster_leasehold.assets.output.committed_output import parquet_frame
from dagster_leasehold.assets.output.store_frames import write_frame
from dagster_leasehold.assets.output.table.reading import EventSpan, TablePlan
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.shard_stream import ShardStream, Transform
from dagster_leasehold.assets.spark.users_code import session_is_gone, ship_code_of, users_error
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.ledger_rows import DataFile

if TYPE_CHECKING:
    pass


def make_files(
    on_spark: RunOnSpark,
    stream: ShardStream,
    plan: TablePlan,
    span: EventSpan,
    *,
    transform: Transform,
    root: OutputPlace,
    name: str,
) -> tuple[DataFile, ...]:
    """Make the files of a window in an attempt's folder; return them, durable.

    Raises:
        SparkUnavailable: Spark does not answer, or does not share the folder.
        SweepInterrupted: the run is ending.
        TransformError: the transform raised, or returned no DataFrame.
    """
    from pyspark.sql import DataFrame

    spark, watch = on_spark.open(), on_spark.watch
    watch.progressed()
    (root / ATTEMPTS_FOLDER).make_folder(exist_ok=True)
    folder = root / name
    where = f"The transform of an hour of stream {stream.name}"

    def explain(error: Exception) -> Exception:
        if isinstance(error, LeaseholdError):
            return error
        cause = users_error(error)
        if session_is_gone(error):
            return errors.SessionLost(
                f"Spark does not answer ({cause}): see the Spark server's log; materialize the "
                "hour again."
            )
        return errors.TransformError(f"{where} failed with {cause}.")

    with explained(watch, folder, explain), watched(spark, watch, folder, by_tasks=True):
        frame = parquet_frame(spark, plan, stream.key, span)
        ship_code_of(transform, spark)
        output = cast(object, transform(frame))
        if isinstance(output, DataFrame):
            return write_frame(output, folder, name)
    raise errors.TransformError(f"{where} returned {type(output).__name__}: return a DataFrame.")
