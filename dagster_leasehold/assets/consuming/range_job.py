"""One Spark job whose tasks read, transform and write ranges in Python workers.

`spark_sweeper` runs it for streams without a transform, or with an Arrow transform. A shard that
fails does not affect the others, so the job is never repeated. If the source can divide ranges,
parallel tasks share a long range; its files are listed in record order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from dagster_leasehold.assets.arrow_transform import name_of
from dagster_leasehold.assets.consuming.range_rows import RangeRow, outcome_of
from dagster_leasehold.assets.consuming.range_tasks import RangeTasks
from dagster_leasehold.assets.consuming.spark_work import SweepJob, clean_up, failed_job, spark_job
from dagster_leasehold.assets.consuming.sweep import SweepOutcome, SweepResult
from dagster_leasehold.assets.consuming.task_packing import RECORDS_PER_PART_MIN, pack, parts_of
from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.output.attempts import check_shared
from dagster_leasehold.assets.output.routed_rows import RoutedTransform
from dagster_leasehold.assets.output.worker_results import rows_of
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.spark.spark_session import task_numbers
from dagster_leasehold.assets.spark.users_code import ship_code_of, users_error
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import ReadRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def attempt_ranges(
    spark: SparkSession,
    job: SweepJob,
    ranges: Sequence[ReadRange],
    numbers: Mapping[ShardId, range],
) -> dict[ShardId, SweepResult]:
    """Run one Spark job for these ranges, into a new folder.

    Returns:
        The outcome of each shard, or its error.

    Raises:
        JobFailed: the job failed as a whole, for example because a transform ended the worker.
        SparkUnavailable: Spark is gone, or does not share the output folder.
        TransformError: the transform cannot be sent to Spark.
    """
    transform = _pickled(spark, job)
    attempt, folder = job.begin_attempt()
    parts = parts_of(ranges, job.tasks_max, job.divide)
    tasks = RangeTasks(
        job.source_options,
        tuple(pack([*chain.from_iterable(parts.values())], job.tasks_max, RECORDS_PER_PART_MIN)),
        folder,
        numbers,
        {part: index for own in parts.values() for index, part in enumerate(own)},
        transform,
        name_of(job.transform),
        job.partitioning,
    )
    explain = partial(failed_job, job=job, ranges=ranges)
    with spark_job(spark, job, folder, explain):
        numbers_of_tasks = task_numbers(spark, len(tasks.tasks))
        rows = [RangeRow.of(text) for text in rows_of(numbers_of_tasks, tasks)]
    files_of = {row.part: row.files for row in rows}
    check_shared(
        folder,
        (
            [(file.path, file.bytes) for part in task for file in files_of.get(part, ())]
            for task in tasks.tasks
        ),
    )
    shard_rows: dict[ShardId, list[RangeRow]] = {range_.shard: [] for range_ in ranges}
    for row in rows:
        shard_rows[row.part.shard].append(row)
    results = {
        range_.shard: outcome_of(range_, parts[range_.shard], shard_rows[range_.shard], attempt)
        for range_ in ranges
    }
    _remove_failed(folder, rows, results)
    clean_up(folder)
    return results


def _pickled(spark: SparkSession, job: SweepJob) -> bytes | None:
    """Send the transform's code to the session; return the pickled transform, or None."""
    from pyspark import cloudpickle

    ship_code_of(job.transform, spark)
    if job.transform is None:
        return None
    if isinstance(routed := getattr(job.transform, "function", None), RoutedTransform):
        ship_code_of(routed.function, spark)
    try:
        return cloudpickle.dumps(job.transform)
    except Exception as error:
        raise TransformError(
            f"The transform of stream {job.stream} cannot be sent to Spark "
            f"({users_error(error)}): create the objects that it uses inside the transform."
        ) from error


def _remove_failed(
    folder: OutputPlace, rows: Sequence[RangeRow], results: Mapping[ShardId, SweepResult]
) -> None:
    for row in rows:
        if not isinstance(results[row.part.shard], SweepOutcome):
            for file in row.files:
                with suppress(OSError):  # vacuum removes the rest
                    (folder / file.path).remove(missing_ok=True)
