"""Work on Spark that both ways of a sweep share: a job, its failures, and its end."""

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
from dagster_leasehold.assets.places.place import SIGNS_FOLDER, OutputPlace
from dagster_leasehold.assets.shard_stream import Transform
from dagster_leasehold.assets.spark.missing_features import is_of_a_plan, lacks_feature
from dagster_leasehold.assets.spark.users_code import session_is_gone, users_error
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId, StreamName
from dagster_leasehold.shard_sources.source import ReadRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXECUTOR_LOST = "ExecutorLostFailure"


def works_on_arrow(transform: Transform | ArrowTransform | None) -> bool:
    """Return True if sweeps with this transform go the Arrow way."""
    return transform is None or isinstance(transform, ArrowTransform)


@dataclass(frozen=True)
class SweepJob:
    """The parts of a sweep that are the same for all its jobs.

    Attributes:
        stream: the stream's name, for messages.
        source_options: the options of the reader in a worker.
        transform: the user's, or None to keep records as they are.
        output_root: the folder of the stream's output, which Spark's workers reach too.
        new_attempt: gives a name that was never used, for the folder of one try.
        watch: of the run over its jobs.
        tasks_max: the most tasks a job is cut into.
        divide: cuts a range into parts that tasks can read side by side; None where ranges stay
            whole.
    """

    stream: StreamName
    source_options: Mapping[str, str]
    transform: Transform | ArrowTransform | None
    output_root: OutputPlace
    new_attempt: Callable[[], str]
    watch: JobWatch
    tasks_max: int
    divide: Divide | None = None

    def begin_attempt(self) -> tuple[str, OutputPlace]:
        """Return the name of a new attempt, relative to the output, and its folder, made now."""
        attempt = f"{ATTEMPTS_FOLDER}/{self.new_attempt()}"
        folder = self.output_root / attempt
        folder.make_folder()
        self.watch.progressed()
        return attempt, folder


class JobFailed(Exception):
    """A job failed, and no worker named a shard.

    Attributes:
        error: for the shards of the job.
        cause: the same for jobs that fail for one reason, without the numbers of their tasks.
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
def at_work(
    spark: SparkSession,
    job: SweepJob,
    folder: OutputPlace,
    explain: Callable[[Exception], Exception],
) -> Generator[None]:
    """Watch over the job inside; raise its failure as `explain` gives it."""
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
    """Return the error of a Spark that went away, or does not answer as it should."""
    kind = SessionLost if session_is_gone(error) else SparkUnavailable
    return kind(
        f"Spark does not answer ({users_error(error)}): see the Spark server's log; the next run "
        "starts again where this one stopped."
    )


def feature_missing(error: Exception, job: SweepJob) -> SparkFeatureMissing:
    """Return the error of a Spark that lacks what every job needs."""
    return SparkFeatureMissing(
        f"Stream {job.stream} needs a Spark that has functions on Arrow tables, and this one "
        f"refuses them ({users_error(error)}): have the setting spark name another Spark."
    )


def failed_job(
    error: Exception, job: SweepJob, ranges: Sequence[ReadRange]
) -> JobFailed | ShardsFailed | SparkUnavailable:
    """Return the failure of a job in our own words, for the shards that it concerns."""
    if session_is_gone(error):
        return unavailable(error)
    errors = worker_errors(error)
    if of_job := errors.pop("", None):
        return JobFailed(of_job)
    if errors:
        return ShardsFailed({ShardId(shard): of_shard for shard, of_shard in errors.items()})
    if lacks_feature(error) and (works_on_arrow(job.transform) or not is_of_a_plan(error)):
        return feature_missing(error, job)
    whose, (first, *others) = str(job.stream), ranges
    if not others:
        cursors = f"between cursors {first.start} and {first.end}"
        whose = f"shard {first.shard} of stream {job.stream}, {cursors},"
    cause = users_error(error)
    if EXECUTOR_LOST in str(error):
        return JobFailed(
            TransformError(
                f"The Spark job for {whose} failed, because it lost the executor of a task again "
                f"and again ({cause}): look into the logs of the cluster's workers, or give "
                "executors more memory."
            ),
            EXECUTOR_LOST,
        )
    return JobFailed(TransformError(f"The Spark job for {whose} failed with {cause}."), cause)


def clean(folder: OutputPlace) -> None:
    """Delete the signs of an attempt that has ended, and its folder if it holds nothing."""
    # A store would be asked twice for a sign that few attempts leave: vacuum takes it.
    if folder.is_local:
        (folder / SIGNS_FOLDER).remove_folder()
    folder.remove_empty_folder()
