"""Work on Spark that both ways of a sweep share: what a job is, watching over it, its failures."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_leasehold.assets.arrow_transform import ArrowTransform
from dagster_leasehold.assets.consuming.running_tasks import running_tasks
from dagster_leasehold.assets.consuming.task_packing import Divide
from dagster_leasehold.assets.errors import (
    SessionLost,
    SparkFeatureMissing,
    SparkUnavailable,
    SweepInterrupted,
    TransformError,
)
from dagster_leasehold.assets.output.attempts import ATTEMPTS_FOLDER
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.shard_stream import Transform
from dagster_leasehold.assets.spark.missing_features import is_of_a_plan, lacks_feature
from dagster_leasehold.assets.spark.users_code import session_is_gone, users_error
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.failpoints import Failpoint
from dagster_leasehold.lease_store.identifiers import ShardId, StreamName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WATCH_S = 0.25
STARVED_AFTER_S = 60.0
EXECUTOR_LOST = "ExecutorLostFailure"


def works_on_arrow(transform: Transform | ArrowTransform | None) -> bool:
    """Return True if sweeps with this transform go the Arrow way."""
    return transform is None or isinstance(transform, ArrowTransform)


@dataclass(frozen=True)
class SweepJob:
    """The parts of a sweep that are the same for all its jobs.

    Attributes:
        stream: the stream's name, for messages.
        source_options: the options from which a worker builds the reader.
        transform: the user's, or None to keep records as they are.
        output_root: the folder of the stream's output, which Spark's workers reach too.
        new_attempt: gives a name that was never used, for the folder of one try.
        tag: marks the jobs of this run, so that they can be interrupted.
        tasks_max: the most tasks a job is cut into.
        doomed: asked while a job runs; once it is true, the job is interrupted.
        progressed: called while a job makes progress, and when one begins.
        divide: cuts a range into parts that tasks may read side by side; None where ranges stay
            whole.
        starved: called with True when no task has run for a while, and with False once one does.
        starved_after_s: how long that while is, in seconds.
    """

    stream: StreamName
    source_options: Mapping[str, str]
    transform: Transform | ArrowTransform | None
    output_root: OutputPlace
    new_attempt: Callable[[], str]
    tag: str
    tasks_max: int
    doomed: Callable[[], bool] = lambda: False
    progressed: Callable[[], None] = lambda: None
    divide: Divide | None = None
    starved: Callable[[bool], None] = lambda _: None
    starved_after_s: float = STARVED_AFTER_S

    def begin_attempt(self) -> tuple[str, OutputPlace]:
        """Return the name of a new attempt, relative to the output, and its folder, made now."""
        attempt = f"{ATTEMPTS_FOLDER}/{self.new_attempt()}"
        folder = self.output_root / attempt
        folder.make_folder()
        self.progressed()
        return attempt, folder

    def interrupted(self) -> SweepInterrupted:
        """Return the error of a job that ended because the run is doomed."""
        return SweepInterrupted(
            f"The Spark job of stream {self.stream} was interrupted: this run no longer "
            "holds its leases for certain, or it is ending."
        )


class JobFailed(Exception):
    """A job failed and no worker named the shard.

    Attributes:
        error: for the shards of the job.
        cause: the same for jobs that fail for one reason, whatever the numbers of their tasks are.
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
def explained(
    job: SweepJob, folder: OutputPlace, explain: Callable[[Exception], Exception]
) -> Generator[None]:
    """Raise the failure of the job inside in our own words, and remove what it left.

    Args:
        job: of the sweep; an interruption is told from a failure by its `doomed`.
        folder: of the attempt.
        explain: returns the error to raise for one of Spark's.
    """
    try:
        yield
    except Exception as error:
        if job.doomed():
            raise job.interrupted() from error
        failure = explain(error)
        if not isinstance(failure, SparkUnavailable) or isinstance(failure, SparkFeatureMissing):
            # Spark has ended the job. Where it has not, somebody may still write into the folder.
            folder.remove_folder()
        raise failure from error


@contextmanager
def watched(spark: SparkSession, job: SweepJob, folder: OutputPlace) -> Generator[None]:
    """Tag the work inside, note its progress and a lack of cores, and interrupt it when doomed.

    Killing a client does not stop its job on a Connect server, so leaving early must say so.
    """
    done = threading.Event()

    def watch(running: Callable[[], bool]) -> None:
        signs = folder.signs_of_work()
        look_s = folder.watch_every_s
        waited_s = idle_s = 0.0
        starved = False
        while not done.wait(WATCH_S):
            waited_s += WATCH_S
            idle_s = 0.0 if _is_running(running) else idle_s + WATCH_S
            if starved is not (idle_s >= job.starved_after_s):
                starved = not starved
                job.starved(starved)
            if job.doomed():
                # Again and again: it may come before the job, or not get through.
                with suppress(Exception):
                    spark.interruptTag(job.tag)
            elif waited_s >= look_s:
                waited_s = 0.0
                now = folder.signs_of_work()
                if now != signs:
                    signs = now
                    job.progressed()
        if starved:
            job.starved(False)

    spark.addTag(job.tag)
    with running_tasks(spark) as running:
        name = f"watch {job.tag}"
        watcher = threading.Thread(target=watch, args=(running,), name=name, daemon=True)
        watcher.start()
        try:
            with _failpoint_during_write(folder):
                yield
        except Exception:
            raise
        except BaseException:
            # This process is on its way out, even if Spark does not hear of it any more.
            with suppress(Exception):
                spark.interruptTag(job.tag)
            raise
        finally:
            done.set()
            watcher.join()
            spark.removeTag(job.tag)


def _is_running(running: Callable[[], bool]) -> bool:
    try:
        return running()
    except Exception:
        # The job itself fails as well then, and says why.
        return True


@contextmanager
def _failpoint_during_write(folder: OutputPlace) -> Generator[None]:
    if not failpoints.armed(Failpoint.DURING_WRITE):
        yield
        return

    def await_first_file() -> None:
        while not any(entry.path.endswith(".parquet") for entry in folder.entries("")):
            time.sleep(0.001)
        failpoints.reach(Failpoint.DURING_WRITE)

    threading.Thread(target=await_first_file, daemon=True).start()
    yield
    failpoints.reach(Failpoint.DURING_WRITE)


def unavailable(error: Exception) -> SparkUnavailable:
    """Return the error of a Spark that went away, or does not answer as it should."""
    kind = SessionLost if session_is_gone(error) else SparkUnavailable
    return kind(
        f"Spark does not answer ({users_error(error)}): see the Spark server's log; the next run "
        "starts again where this one stopped."
    )


def feature_missing(error: Exception, job: SweepJob) -> SparkFeatureMissing:
    """Return the error of a Spark that lacks what the way of this job through Spark needs."""
    if works_on_arrow(job.transform):
        need, remedy = "functions on Arrow tables", ""
    else:
        need = "Python data sources, because its transform is one of DataFrames"
        remedy = "make the transform one of Arrow tables, with @arrow_transform, or "
    return SparkFeatureMissing(
        f"Stream {job.stream} needs a Spark that has {need}, and this one refuses them "
        f"({users_error(error)}): {remedy}have the setting spark name another Spark."
    )


def failed_job(
    error: Exception, job: SweepJob, shards: Sequence[ShardId]
) -> JobFailed | SparkUnavailable:
    """Return the failure of a job, of which no worker said why, in our own words."""
    if session_is_gone(error):
        return unavailable(error)
    if lacks_feature(error) and (works_on_arrow(job.transform) or not is_of_a_plan(error)):
        return feature_missing(error, job)
    whose = f"shard {shards[0]} of stream {job.stream}" if len(shards) == 1 else job.stream
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
