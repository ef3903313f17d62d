"""Watches a run's Spark jobs: tags, progress, lack of cores, and interruption."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Hashable, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.errors import SparkFeatureMissing, SparkUnavailable, SweepInterrupted
from dagster_leasehold.assets.places.place import OutputPlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WATCH_S = 0.25
STARVED_AFTER_S = 60.0


@dataclass(frozen=True, kw_only=True)
class JobWatch:
    """How a run watches its Spark jobs.

    Attributes:
        tag: marks the jobs of this run, so that they can be interrupted.
        work: the work of the jobs, as part of a sentence, such as `stream orders`.
        within: a second tag of the jobs, such as the tag of their run; empty for none.
        must_stop: polled while a job runs; the job is interrupted once it returns True.
        progressed: called when a job starts, and while it makes progress.
        starved: called with True once no task has run for `starved_after_s` seconds, and with False
            once a task runs.
    """

    tag: str
    work: str
    within: str = ""
    must_stop: Callable[[], bool] = lambda: False
    progressed: Callable[[], None] = lambda: None
    starved: Callable[[bool], None] = lambda _: None
    starved_after_s: float = STARVED_AFTER_S

    def interrupted(self) -> SweepInterrupted:
        """Return the error of a job that was interrupted."""
        return SweepInterrupted(
            f"The Spark job of {self.work} was interrupted: this run may have lost its leases, or "
            "it is ending."
        )


@dataclass(frozen=True, slots=True)
class Tasks:
    """The last report of Spark on the tasks of a job."""

    running: bool = False
    done: frozenset[tuple[int, int]] = frozenset()


@contextmanager
def running_tasks(spark: SparkSession) -> Generator[Callable[[], Tasks]]:
    """Yield a function that returns the tasks of the jobs in the block.

    Spark waits for a free core forever and without a message. A Connect server reports changes to
    its clients, at most every two seconds; a driver can be polled at any time.
    """
    session: Any = spark
    if not type(session).__module__.startswith("pyspark.sql.connect"):
        tracker = session.sparkContext.statusTracker()
        yield lambda: _of_driver(tracker)
        return
    progress = _Progress()
    session.registerProgressHandler(progress)
    try:
        yield lambda: progress.tasks
    finally:
        session.removeProgressHandler(progress)


class _Progress:
    """Keeps a Connect server's last report on the tasks of a job."""

    def __init__(self) -> None:
        self.tasks = Tasks()

    def __call__(
        self,
        stages: Iterable[Any] | None,
        inflight_tasks: int,
        operation_id: str | None,
        done: bool,
    ) -> None:
        del operation_id, done
        completed = ((stage.stage_id, stage.num_completed_tasks) for stage in stages or ())
        self.tasks = Tasks(inflight_tasks > 0, frozenset(completed))


def _of_driver(tracker: Any) -> Tasks:
    # This process is the driver, so all stages belong to this run.
    stages = [*filter(None, map(tracker.getStageInfo, tracker.getActiveStageIds()))]
    return Tasks(
        any(stage.numActiveTasks > 0 for stage in stages),
        frozenset((stage.stageId, stage.numCompletedTasks) for stage in stages),
    )


@contextmanager
def explained(
    watch: JobWatch, folder: OutputPlace, explain: Callable[[Exception], Exception]
) -> Generator[None]:
    """Explain an error of the job in the block, and remove the files of the attempt.

    `explain` returns the error to raise for an error of Spark.
    """
    try:
        yield
    except Exception as error:
        if watch.must_stop():
            raise watch.interrupted() from error
        failure = explain(error)
        if not isinstance(failure, SparkUnavailable) or isinstance(failure, SparkFeatureMissing):
            # Spark has ended the job, so no task writes into the folder.
            folder.remove_folder()
        if failure is error:
            raise
        raise failure from error


@contextmanager
def watched(
    spark: SparkSession, watch: JobWatch, folder: OutputPlace, *, by_tasks: bool = False
) -> Generator[None]:
    """Tag and watch the jobs in the block, and interrupt them if `must_stop` returns True.

    Killing a client does not stop its job on a Connect server, so an early exit interrupts it.

    Args:
        folder: the folder of the attempt, where tasks write signs of progress.
        by_tasks: True if a completed task counts as progress, too.
    """
    tags = [tag for tag in (watch.tag, watch.within) if tag]
    for tag in tags:
        spark.addTag(tag)
    with running_tasks(spark) as tasks:
        watcher = _Watcher(spark, watch, folder, tasks, by_tasks)
        thread = threading.Thread(target=watcher.poll, name=f"watch {watch.tag}", daemon=True)
        thread.start()
        try:
            yield
        except Exception:
            raise
        except BaseException:
            # This process must end even if Spark does not answer.
            with suppress(Exception):
                spark.interruptTag(watch.tag)
            raise
        finally:
            watcher.done.set()
            thread.join()
            for tag in tags:
                spark.removeTag(tag)


@dataclass
class _Watcher:
    """Polls the work of a session until it is done."""

    spark: SparkSession
    watch: JobWatch
    folder: OutputPlace
    tasks: Callable[[], Tasks]
    by_tasks: bool
    done: threading.Event = field(default_factory=threading.Event)
    _last: Tasks = field(default_factory=Tasks)

    def poll(self) -> None:
        signs = self._signs()
        waited_s = idle_s = 0.0
        starved = False
        while not self.done.wait(WATCH_S):
            waited_s += WATCH_S
            idle_s = 0.0 if self._running() else idle_s + WATCH_S
            if starved is not (idle_s >= self.watch.starved_after_s):
                starved = not starved
                self.watch.starved(starved)
            if self.watch.must_stop():
                # Repeated, because it may arrive before the job starts, or get lost.
                with suppress(Exception):
                    self.spark.interruptTag(self.watch.tag)
            elif waited_s >= self.folder.watch_every_s:
                waited_s = 0.0
                signs, before = self._signs(), signs
                if signs != before:
                    self.watch.progressed()
        if starved:
            self.watch.starved(False)

    def _running(self) -> bool:
        try:
            self._last = self.tasks()
        except Exception:
            # The job also fails, and reports the reason.
            return True
        return self._last.running

    def _signs(self) -> Hashable:
        return self._last.done if self.by_tasks else None, self.folder.signs_of_progress()
