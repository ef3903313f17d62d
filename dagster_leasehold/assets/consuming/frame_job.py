"""One Spark job that reads ranges, applies a transform of DataFrames, and writes the output.

`spark_sweeper` runs it for streams whose transform takes DataFrames.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, cast

from dagster_leasehold.assets.arrow_transform import SHARD_COLUMN, check_columns, name_of
from dagster_leasehold.assets.consuming.frame_tasks import (
    IS_RECORD,
    REPORT,
    RangesRead,
    RowsWritten,
    statistics_of,
)
from dagster_leasehold.assets.consuming.spark_work import (
    SweepJob,
    clean_up,
    failed_job,
    feature_missing,
    spark_job,
    unavailable,
)
from dagster_leasehold.assets.consuming.sweep import SweepOutcome
from dagster_leasehold.assets.consuming.task_packing import pack
from dagster_leasehold.assets.errors import SparkFeatureMissing, TransformError
from dagster_leasehold.assets.output.attempts import check_shared
from dagster_leasehold.assets.output.output_file import RECORD_DDL
from dagster_leasehold.assets.output.worker_results import RangeStatistics, WrittenFile, rows_of
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.shard_stream import Transform
from dagster_leasehold.assets.spark.missing_features import lacks_feature
from dagster_leasehold.assets.spark.spark_session import task_numbers
from dagster_leasehold.assets.spark.users_code import session_is_gone, ship_code_of, users_error
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import ReadRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OBSERVED_WITHIN_S = 5.0
Read = Callable[[], dict[ShardId, RangeStatistics]]
"""Returns the statistics of the ranges that a finished job has read to their ends."""
Observed = Callable[["DataFrame"], tuple["DataFrame", Read]]


def attempt_frames(
    spark: SparkSession,
    job: SweepJob,
    ranges: Sequence[ReadRange],
    numbers: Mapping[ShardId, range],
) -> dict[ShardId, SweepOutcome]:
    """Run one Spark job for these ranges, into a new folder.

    Raises:
        ShardsFailed: workers named the shards that failed.
        JobFailed: the job failed, and no worker named a shard.
        SparkUnavailable: Spark is gone, lacks a feature, or does not share the folder.
        TransformError: the transform cannot be applied to any shard.
    """
    try:
        return _attempt(spark, job, ranges, numbers, _observed)
    except SparkFeatureMissing:
        # Without observations, the output is the same, but the statistics of reading are unknown.
        return _attempt(spark, job, ranges, numbers, _unobserved)


def _attempt(
    spark: SparkSession,
    job: SweepJob,
    ranges: Sequence[ReadRange],
    numbers: Mapping[ShardId, range],
    observed: Observed,
) -> dict[ShardId, SweepOutcome]:
    attempt, folder = job.begin_attempt()
    try:
        rows, read = observed(_rows(spark, job, ranges, folder))
        ship_code_of(job.transform, spark)
        output = _transformed(rows.where(IS_RECORD), job)
    except LeaseholdError:
        folder.remove_empty_folder()
        raise
    explain = partial(failed_job, job=job, ranges=ranges)
    numbers = {range_.shard: numbers[range_.shard] for range_ in ranges}
    with spark_job(spark, job, folder, explain):
        written = RowsWritten(folder, numbers, name_of(job.transform), job.partitioning)
        texts = rows_of(output, written)
    by_task = [[WrittenFile.of(file) for file in json.loads(text)] for text in texts]
    check_shared(folder, ([(file.path, file.bytes) for file in own] for own in by_task))
    clean_up(folder)
    statistics = read()
    files: dict[str, list[WrittenFile]] = {shard: [] for shard in numbers}
    for file in chain.from_iterable(by_task):
        files[file.shard].append(file)
    return {
        shard: SweepOutcome.of(attempt, statistics.get(shard), files[shard]) for shard in numbers
    }


def _rows(
    spark: SparkSession, job: SweepJob, ranges: Sequence[ReadRange], folder: OutputPlace
) -> DataFrame:
    tasks = tuple(pack(ranges, job.tasks_max))
    reading = RangesRead(job.source_options, tasks, folder)
    try:
        return task_numbers(spark, len(tasks)).mapInArrow(reading, RECORD_DDL)
    except Exception as error:
        lacking = lacks_feature(error)
        raise (feature_missing(error, job) if lacking else unavailable(error)) from error


def _observed(rows: DataFrame) -> tuple[DataFrame, Read]:
    """Return the observed rows, and a function that returns the statistics in their reports.

    A plan that uses the rows twice can read a range twice; both reports are equal.
    """
    from pyspark.sql import Observation
    from pyspark.sql.functions import collect_list, expr

    observation = Observation()
    observed = rows.observe(observation, collect_list(expr(REPORT)).alias("reports"))

    def read() -> dict[ShardId, RangeStatistics]:
        reports: list[bytes] = []

        def fetch() -> None:
            # If no output depends on the reading, Spark drops it from the plan. Then this raises
            # or, in some releases, never returns.
            with suppress(Exception):
                reports.extend(observation.get["reports"])

        thread = threading.Thread(target=fetch, daemon=True)
        thread.start()
        thread.join(OBSERVED_WITHIN_S)
        return dict(map(statistics_of, reports))

    return observed, read


def _unobserved(rows: DataFrame) -> tuple[DataFrame, Read]:
    return rows, dict


def _transformed(records: DataFrame, job: SweepJob) -> DataFrame:
    """Return the output of the user's transform; check its columns before any record is read."""
    from pyspark.sql import DataFrame

    where = f"The transform of stream {job.stream}"
    transform = cast(Transform, job.transform)
    try:
        output = cast(object, transform(records))
        # Spark checks column names only when they are requested.
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
    """Return False if this Spark does not support the function that reads the records."""
    try:
        _ = records.schema
    except Exception as error:
        return not lacks_feature(error)
    return True
