"""The DataFrame way: one Spark job that reads ranges, applies a plan of Spark SQL, and writes."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from dagster_leasehold.assets.arrow_transform import SHARD_COLUMN, check_columns
from dagster_leasehold.assets.consuming.spark_work import (
    JobFailed,
    ShardsFailed,
    SweepJob,
    at_work,
    failed_job,
    feature_missing,
    unavailable,
)
from dagster_leasehold.assets.consuming.sweep import SweepOutcome
from dagster_leasehold.assets.errors import SparkUnavailable, TransformError
from dagster_leasehold.assets.output import attempt_reports
from dagster_leasehold.assets.output.transform_mark import name_of
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.shard_stream import Transform
from dagster_leasehold.assets.spark.missing_features import lacks_feature
from dagster_leasehold.assets.spark.users_code import session_is_gone, ship_code_of, users_error
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import ReadRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

REGISTER_ATTEMPTS = 10


def attempt_frames(
    spark: SparkSession,
    job: SweepJob,
    ranges: Sequence[ReadRange],
    numbers: Mapping[ShardId, range],
) -> dict[ShardId, SweepOutcome]:
    """Run one Spark job for these ranges, into a folder of its own.

    Raises:
        ShardsFailed: workers named the shards that failed.
        JobFailed: the job failed, and no worker named a shard.
        SparkUnavailable: Spark went away, or lacks what a transform of DataFrames needs.
        SweepInterrupted: `job.watch.doomed` became true.
        TransformError: the transform cannot be applied to any shard.
    """
    from dagster_leasehold.assets.output.parquet_sink import FORMAT, write_options

    attempt, folder = job.begin_attempt()
    shards = [range_.shard for range_ in ranges]
    try:
        output = _transformed(spark, _read(spark, job, ranges, folder), job)
    except LeaseholdError:
        folder.remove_empty_folder()
        raise
    explain = partial(_explain, folder=folder, job=job, ranges=ranges)
    with at_work(spark, job, folder, explain):
        writer = output.write.format(FORMAT).mode("append")
        own = {shard: numbers[shard] for shard in shards}
        options = write_options(own, folder, name_of(job.transform))
        writer.options(**options).save()
    outcomes = _outcomes(folder, attempt, shards)
    attempt_reports.remove_reports(folder)
    if not any(outcome.files for outcome in outcomes.values()):
        folder.remove_empty_folder()
    return outcomes


def _read(
    spark: SparkSession, job: SweepJob, ranges: Sequence[ReadRange], folder: OutputPlace
) -> DataFrame:
    from dagster_leasehold.assets.consuming.shard_data_source import FORMAT, read_options

    try:
        _register(spark)
        options = read_options(job.source_options, ranges, job.tasks_max, folder)
        return spark.read.format(FORMAT).options(**options).load()
    except Exception as error:
        lacking = lacks_feature(error)
        raise (feature_missing(error, job) if lacking else unavailable(error)) from error


_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def _register(spark: SparkSession) -> None:
    """Tell a session of the source and the sink, once."""
    from dagster_leasehold.assets.consuming.shard_data_source import ShardDataSource
    from dagster_leasehold.assets.output.parquet_sink import ShardFilesSink

    if spark not in _registered:
        _register_one(spark, ShardDataSource)
        _register_one(spark, ShardFilesSink)
        _registered.add(spark)


def _register_one(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a data source under its name, replacing an earlier one.

    Runs share a session, and in a new one these two can meet:
    1. Run A and run B register at the same moment.
    2. A's registration counts; B is refused as if the name could not be replaced.
    3. B tries again and replaces A's, which is the same.
    """
    from pyspark.errors import AnalysisException

    for attempts_left in reversed(range(REGISTER_ATTEMPTS)):
        try:
            spark.dataSource.register(source)
            return
        except AnalysisException as error:
            if "DATA_SOURCE_ALREADY_EXISTS" not in str(error) or not attempts_left:
                raise


def _transformed(spark: SparkSession, records: DataFrame, job: SweepJob) -> DataFrame:
    """Return the output of the user's transform, checked before anything is read.

    Raises:
        SparkUnavailable: Spark went away, or does not know what the records come by.
        TransformError: it raised, or its output cannot be committed.
    """
    from pyspark.sql import DataFrame

    where = f"The transform of stream {job.stream}"
    transform = cast(Transform, job.transform)
    ship_code_of(transform, spark)
    try:
        output = cast(object, transform(records))
        # Spark checks column names only when it is asked for them.
        types = dict(output.dtypes) if isinstance(output, DataFrame) else {}
    except Exception as error:
        if session_is_gone(error):
            raise unavailable(error) from error
        if lacks_feature(error) and not _can_be_read(records):
            raise feature_missing(error, job) from error
        raise TransformError(f"{where} raised {users_error(error)}.") from error
    if not isinstance(output, DataFrame):
        raise TransformError(
            f"{where} returned {type(output).__name__}: return the DataFrame to write."
        )
    check_columns(where, types, shards_are_strings=types.get(SHARD_COLUMN) == "string")
    return output


def _can_be_read(records: DataFrame) -> bool:
    """Return False if this Spark lacks what the records come by, whatever is made of them."""
    try:
        _ = records.schema
    except Exception as error:
        return not lacks_feature(error)
    return True


def _explain(
    error: Exception, folder: OutputPlace, job: SweepJob, ranges: Sequence[ReadRange]
) -> Exception:
    """Return the failure of a job in our own words, for the shards that it concerns."""
    if session_is_gone(error):
        return unavailable(error)
    failures = attempt_reports.failures(folder, [range_.shard for range_ in ranges])
    named = {failure.shard: failure.error for failure in failures if failure.shard is not None}
    if named:
        return ShardsFailed(named)
    if failures:
        return JobFailed(failures[0].error)
    return failed_job(error, job, ranges)


def _outcomes(
    folder: OutputPlace, attempt: str, shards: Sequence[ShardId]
) -> dict[ShardId, SweepOutcome]:
    files = attempt_reports.written_files(folder)
    if files is None:
        raise SparkUnavailable(
            f"Spark reported that it wrote {attempt} but left no report in {folder}: let Spark's "
            "workers and this process share the output folder."
        )
    read = attempt_reports.read_statistics(folder, shards)
    outcomes: dict[ShardId, SweepOutcome] = {}
    for shard in shards:
        own = [file for file in files if file.shard == shard]
        own.sort(key=lambda file: file.path)
        outcomes[shard] = SweepOutcome.of(attempt, read.get(shard), own)
    return outcomes
