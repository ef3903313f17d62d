"""The watch over the Spark job of an hour, on a session that is none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from dagster_leasehold.assets.errors import SessionLost, SweepInterrupted, TransformError
from dagster_leasehold.assets.guarding import job_watch
from dagster_leasehold.assets.guarding.run_on_spark import RunOnSpark, run_tag
from dagster_leasehold.assets.output.table.reading import EventSpan
from dagster_leasehold.assets.places.local_place import LocalPlace, local_place
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.windows import window_run
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.unit.assets.spark_doubles import Driver, until

TAG = run_tag("run-1")


class HourJob:
    """The job of an hour, with a transform that a test chooses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.session = Driver(0)
        self.sentences: list[str] = []
        self.moves: list[str] = []
        self.must_stop = threading.Event()
        self.stream = ShardStream(name="orders", source=LocalLog.create(folder / "log", 1))
        self.on_spark = RunOnSpark(
            session=lambda: cast(Any, self.session),
            run="run-1",
            work="an hour of stream orders",
            where="spark://host:7077",
            must_stop=self.must_stop.is_set,
            progressed=lambda: self.moves.append(""),
            starved_after_s=0.05,
            warn=self.sentences.append,
        )

    def make(self, transform: Callable[[Any], Any]) -> object:
        return window_run.write_window(
            self.on_spark,
            self.stream,
            cast(Any, None),
            EventSpan(),
            transform=transform,
            root=local_place(self.folder),
            name="attempts/run-1",
        )

    def write(self) -> None:
        """Act like a task of Spark."""
        (self.folder / "attempts" / "run-1").mkdir()
        (self.folder / "attempts" / "run-1" / "part-0.parquet").touch()

    @property
    def left(self) -> list[str]:
        return [path.name for path in (self.folder / "attempts").rglob("*.parquet")]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HourJob:
    monkeypatch.setattr(window_run, "parquet_frame", lambda *_: "records")
    monkeypatch.setattr(job_watch, "WATCH_S", 0.01)
    monkeypatch.setattr(LocalPlace, "watch_every_s", 0.01)
    return HourJob(tmp_path)


def test_an_hour_without_a_free_core_logs_it_until_a_task_runs(job: HourJob) -> None:
    awaited: list[str] = []

    def transform(_: object) -> int:
        assert job.session.tags == [TAG]
        assert until(lambda: job.sentences != [])
        awaited.append(job.on_spark.awaited)
        job.session.stages[0].numActiveTasks = 1
        assert until(lambda: job.on_spark.awaited == "Spark")
        return 7

    with pytest.raises(TransformError, match="returned int"):
        job.make(transform)
    assert awaited == ["a free core of Spark (spark://host:7077)"]
    assert job.sentences == [
        "Spark (spark://host:7077) has run no task of an hour of stream orders for 0.05 s, as if "
        "it had no free core: add workers, or give other applications fewer cores. The run waits "
        "for stall_limit_s at most."
    ]
    assert job.session.tags == []


def test_tasks_that_end_are_progress_of_an_hour(job: HourJob) -> None:
    def transform(_: object) -> int:
        for _ in range(3):
            before = len(job.moves)
            job.session.stages[0].numCompletedTasks += 1
            assert until(lambda before=before: len(job.moves) > before)
        return 7

    with pytest.raises(TransformError):
        job.make(transform)


def test_an_abandoned_hour_is_interrupted_and_its_folder_is_kept(job: HourJob) -> None:
    """Goal: a task that still writes finds its folder, which nothing names."""

    def transform(_: object) -> None:
        job.write()
        job.must_stop.set()
        assert until(lambda: TAG in job.session.interrupted)
        raise RuntimeError("[OPERATION_CANCELED] The operation was canceled.")

    with pytest.raises(SweepInterrupted, match="The Spark job of an hour of stream orders was"):
        job.make(transform)
    assert job.left == ["part-0.parquet"]


@pytest.mark.parametrize(
    ("message", "kind", "left"),
    [
        ("[INVALID_HANDLE.SESSION_CLOSED] The session was closed.", SessionLost, 1),
        ("there is no such column", TransformError, 0),
    ],
)
def test_a_failed_job_keeps_its_folder_while_tasks_can_still_write(
    job: HourJob, message: str, kind: type[Exception], left: int
) -> None:
    def transform(_: object) -> None:
        job.write()
        raise RuntimeError(message)

    with pytest.raises(kind) as caught:
        job.make(transform)
    assert type(caught.value) is kind
    assert len(job.left) == left


def test_the_job_of_a_terminated_hour_is_interrupted(job: HourJob) -> None:
    def transform(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.make(transform)
    assert job.session.interrupted == [TAG]
