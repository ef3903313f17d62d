"""The watch over a run's Spark jobs: their tag, their progress, a lack of cores, and their end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_leasehold.assets.errors import SparkFeatureMissing, SparkUnavailable, SweepInterrupted
from dagster_leasehold.assets.guarding.running_tasks import Tasks, running_tasks
from dagster_leasehold.assets.places.place import OutputPlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WATCH_S = 0.25
STARVED_AFTER_S = 60.0


@dataclass(frozen=True, kw_only=True)
class JobWatch:
    """The watch of a run over its Spark jobs.

    Attributes:
        tag: marks the jobs of this run, so that they can be interrupted.
        within: a tag that the jobs bear besides, such as that of their run; empty for none.
        work: the work of the jobs, as part of a sentence: `stream orders`.
        doomed: asked while a job runs; once it is true, the job is interrupted.
        progressed: called while a job makes progress, and when one begins.
        starved: called with True when no task has run for a while, and with False once one does.
        starved_after_s: how long that while is, in seconds.
    """

    tag: str
    work: str
    within: str = ""
    doomed: Callable[[], bool] = lambda: False
    progressed: Callable[[], None] = lambda: None
    starved: Callable[[bool], None] = lambda _: None
    starved_after_s: float = STARVED_AFTER_S

    def interrupted(self) -> SweepInterrupted:
        """Return the error of a job that ended because the run is doomed."""
        return SweepInterrupted(
            f"The Spark job of {self.work} was interrupted: this run no longer holds its leases "
            "for certain, or it is ending."
        )


@contextmanager
def explained(
    watch: JobWatch, folder: OutputPlace, explain: Callable[[Exception], Exception]
) -> Generator[None]:
    """Raise the failure of the job inside in our own words, and remove its files.

    Args:
        watch: over the job; an interruption is told from a failure by its `doomed`.
        folder: of the attempt.
        explain: returns the error to raise for one of Spark's.
    """
    try:
        yield
    except Exception as error:
        if watch.doomed():
            raise watch.interrupted() from error
        failure = explain(error)
        if not isinstance(failure, SparkUnavailable) or isinstance(failure, SparkFeatureMissing):
            # Spark has ended the job. Where it has not, a task can still write into the folder.
            folder.remove_folder()
        if failure is error:
            raise
        raise failure from error


@contextmanager
def watched(
    spark: SparkSession, watch: JobWatch, folder: OutputPlace, *, by_tasks: bool = False
) -> Generator[None]:
    """Tag the work inside, note its progress and a lack of cores, and interrupt it when doomed.

    Killing a client does not stop its job on a Connect server, so leaving early must say so.

    Args:
        spark: the session of the work.
        watch: of the run.
        folder: of the attempt, where tasks leave signs of their work.
        by_tasks: True where tasks leave few: one that has ended is a sign as well.
    """
    tags = [tag for tag in (watch.tag, watch.within) if tag]
    for tag in tags:
        spark.addTag(tag)
    with running_tasks(spark) as tasks:
        watcher = _Watcher(spark, watch, folder, tasks, by_tasks)
        thread = threading.Thread(target=watcher.look, name=f"watch {watch.tag}", daemon=True)
        thread.start()
        try:
            yield
        except Exception:
            raise
        except BaseException:
            # This process is on its way out, even if Spark can no longer be told.
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
    """Looks at the work of a session until it is done."""

    spark: SparkSession
    watch: JobWatch
    folder: OutputPlace
    tasks: Callable[[], Tasks]
    by_tasks: bool
    done: threading.Event = field(default_factory=threading.Event)
    _last: Tasks = field(default_factory=Tasks)

    def look(self) -> None:
        signs = self._signs()
        waited_s = idle_s = 0.0
        starved = False
        while not self.done.wait(WATCH_S):
            waited_s += WATCH_S
            idle_s = 0.0 if self._running() else idle_s + WATCH_S
            if starved is not (idle_s >= self.watch.starved_after_s):
                starved = not starved
                self.watch.starved(starved)
            if self.watch.doomed():
                # Again and again: it can come before the job, or not get through.
                with suppress(Exception):
                    self.spark.interruptTag(self.watch.tag)
            elif waited_s >= self.folder.watch_every_s:
                waited_s = 0.0
                now = self._signs()
                if now != signs:
                    signs = now
                    self.watch.progressed()
        if starved:
            self.watch.starved(False)

    def _running(self) -> bool:
        try:
            self._last = self.tasks()
        except Exception:
            # The job itself fails as well then, and says why.
            return True
        return self._last.running

    def _signs(self) -> Hashable:
        return self._last.done if self.by_tasks else None, self.folder.signs_of_work()
