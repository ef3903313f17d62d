"""The common parts of `range_job` and `frame_job`: settings, failures and cleanup."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_leasehold.assets.arrow_transform import ArrowTransform
from dagster_leasehold.assets.consuming.task_packing import Divide
from dagster_leasehold.assets.errors import (
    SessionLost,
    SparkFeatureMissing,
    SparkUnavailable,
    TransformError,
)
from dagster_leasehold.assets.guarding.job_watch import JobWatch, explained, watched
from dagster_leasehold.assets.output.attempts import ATTEMPTS_FOLDER
from dagster_leasehold.assets.output.worker_results import worker_errors
from dagster_leasehold.assets.partition_fields import UNDIVIDED, Partitioning
from dagster_leasehold.assets.places.place import SIGNS_FOLDER, OutputPlace
from dagster_leasehold.assets.shard_stream import Transform
from dagster_leasehold.assets.spark.missing_features import is_plan_error, lacks_feature
from dagster_leasehold.assets.spark.users_code import session_is_gone, users_error
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId, StreamName
from dagster_leasehold.shard_sources.source import ReadRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXECUTOR_LOST = "ExecutorLostFailure"


def works_on_arrow(transform: Transform | ArrowTransform | None) -> bool:
    """Return True if sweeps with this transform use `range_job`."""
    return transform is None or isinstance(transform, ArrowTransform)


@dataclass(frozen=True)
class SweepJob:
    """The common settings of a sweep's jobs.

    Attributes:
        source_options: the options of the reader in a worker.
        transform: the user's transform, or None to keep the records as they are.
        output_root: the folder of the stream's output, which Spark's workers can also access.
        divide: divides a range into parts for parallel tasks; None if ranges stay whole.
        partitioning: the fields that divide the rows of a shard into files.
    """

    stream: StreamName
    source_options: Mapping[str, str]
    transform: Transform | ArrowTransform | None
    output_root: OutputPlace
    new_attempt: Callable[[], str]
    watch: JobWatch
    tasks_max: int
    divide: Divide | None = None
    partitioning: Partitioning = UNDIVIDED

    def begin_attempt(self) -> tuple[str, OutputPlace]:
        """Create an attempt's folder; return its path relative to the output, and the folder."""
        attempt = f"{ATTEMPTS_FOLDER}/{self.new_attempt()}"
        folder = self.output_root / attempt
        folder.make_folder()
        self.watch.progressed()
        return attempt, folder


class JobFailed(Exception):
    """A job failed, and no worker named a shard.

    Attributes:
        error: the error of the job's shards.
        cause: the error without its numbers, so that jobs with the same cause compare equal.
    """

    def __init__(self, error: LeaseholdError, cause: str = "") -> None:
        super().__init__(str(error))
        self.error = error
        self.cause = re.sub(r"\d+", "#", cause or str(error))


class ShardsFailed(Exception):
    """A job failed for these shards."""

    def __init__(self, errors: Mapping[ShardId, LeaseholdError]) -> None:
        super().__init__(", ".join(errors))
        self.errors = errors


@contextmanager
def spark_job(
    spark: SparkSession,
    job: SweepJob,
    folder: OutputPlace,
    explain: Callable[[Exception], Exception],
) -> Generator[None]:
    """Watch the job in the block, and convert its exception with `explain`."""
    with (
        explained(job.watch, folder, explain),
        watched(spark, job.watch, folder),
        _failpoint_during_write(folder),
    ):
        yield


@contextmanager
def _failpoint_during_write(folder: OutputPlace) -> Generator[None]:
    if not failpoints.armed("during_write"):
        yield
        return

    def await_first_file() -> None:
        while not any(entry.path.endswith(".parquet") for entry in folder.entries("")):
            time.sleep(0.001)
        failpoints.reach("during_write")

    threading.Thread(target=await_first_file, daemon=True).start()
    yield
    failpoints.reach("during_write")


def unavailable(error: Exception) -> SparkUnavailable:
    """Return the error for a Spark that does not answer."""
    kind = SessionLost if session_is_gone(error) else SparkUnavailable
    return kind(
        f"Spark does not answer ({users_error(error)}): see the Spark server's log. The next run "
        "continues where this run stopped."
    )


def feature_missing(error: Exception, job: SweepJob) -> SparkFeatureMissing:
    """Return the error for a Spark without functions on Arrow tables, which all jobs need."""
    return SparkFeatureMissing(
        f"Stream {job.stream} needs a Spark with functions on Arrow tables, and this Spark refuses "
        f"them ({users_error(error)}): name another Spark in the setting spark."
    )


def failed_job(
    error: Exception, job: SweepJob, ranges: Sequence[ReadRange]
) -> JobFailed | ShardsFailed | SparkUnavailable:
    """Convert the exception of a job to an error of its shards."""
    if session_is_gone(error):
        return unavailable(error)
    errors = worker_errors(error)
    if job_error := errors.pop("", None):
        return JobFailed(job_error)
    if errors:
        return ShardsFailed({ShardId(shard): each for shard, each in errors.items()})
    if lacks_feature(error) and (works_on_arrow(job.transform) or not is_plan_error(error)):
        return feature_missing(error, job)
    work, (first, *others) = str(job.stream), ranges
    if not others:
        cursors = f"between cursors {first.start} and {first.end}"
        work = f"shard {first.shard} of stream {job.stream}, {cursors},"
    cause = users_error(error)
    if EXECUTOR_LOST in str(error):
        return JobFailed(
            TransformError(
                f"The Spark job for {work} failed, because it repeatedly lost the executor of a "
                f"task ({cause}): see the logs of the cluster's workers, or give executors more "
                "memory."
            ),
            EXECUTOR_LOST,
        )
    return JobFailed(TransformError(f"The Spark job for {work} failed with {cause}."), cause)


def clean_up(folder: OutputPlace) -> None:
    """Delete the progress signs of an ended attempt, and its folder if that is empty."""
    # An object store would need two requests, and few attempts leave signs. Vacuum removes them.
    if folder.is_local:
        (folder / SIGNS_FOLDER).remove_folder()
    folder.remove_empty_folder()
