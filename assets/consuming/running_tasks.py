"""A look at the tasks of a Spark job: a cluster whose cores are all taken runs none of them.

Spark waits for a free core without a word and without an end. A Connect server tells its clients of
changes, every two seconds at most; a driver can be asked at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def running_tasks(spark: SparkSession) -> Generator[Callable[[], bool]]:
    """Yield a function that tells if a task of the work inside was running when Spark last said."""
    session: Any = spark
    if not type(session).__module__.startswith("pyspark.sql.connect"):
        tracker = session.sparkContext.statusTracker()
        yield lambda: _any_active(tracker)
        return
    progress = _Progress()
    session.registerProgressHandler(progress)
    try:
        yield lambda: progress.running
    finally:
        session.removeProgressHandler(progress)


class _Progress:
    """The last word of a Connect server about the tasks of a job."""

    def __init__(self) -> None:
        self.running = False

    def __call__(
        self,
        stages: Iterable[Any] | None,
        inflight_tasks: int,
        operation_id: str | None,
        done: bool,
    ) -> None:
        del stages, operation_id, done
        self.running = inflight_tasks > 0


def _any_active(tracker: Any) -> bool:
    # The driver is this process, so that all its stages are those of this run.
    stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
    return any(stage is not None and stage.numActiveTasks > 0 for stage in stages)
