"""A look at the tasks of a Spark job: a cluster whose cores are all taken runs none of them.

Spark waits for a free core without a word and without an end. A Connect server tells its clients of
changes, every two seconds at most; a driver can be asked at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of a job as Spark last spoke of them.

    Attributes:
        running: True if one of them was running.
        done: the number of completed ones of each stage that has begun.
    """

    running: bool = False
    done: frozenset[tuple[int, int]] = frozenset()


@contextmanager
def running_tasks(spark: SparkSession) -> Generator[Callable[[], Tasks]]:
    """Yield a function that returns the tasks of the work inside, as Spark last spoke of them."""
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
    """The last word of a Connect server about the tasks of a job."""

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
    # This process is the driver, so all stages are this run's.
    stages = [*filter(None, map(tracker.getStageInfo, tracker.getActiveStageIds()))]
    return Tasks(
        any(stage.numActiveTasks > 0 for stage in stages),
        frozenset((stage.stageId, stage.numCompletedTasks) for stage in stages),
    )
