"""Files of an hour of event time: on the disk before a row names them, and safe from vacuum."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.errors import OutputUnreadable, SessionLost, TransformError
from dagster_leasehold.assets.guarding.job_watch import JobWatch
from dagster_leasehold.assets.guarding.run_on_spark import RunOnSpark, run_tag
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.rewriting.vacuum import VacuumReport, vacuum
from dagster_leasehold.assets.windows import window_run
from dagster_leasehold.assets.windows.window_run import WindowResult, build_window
from dagster_leasehold.lease_store.errors import RunStalled
from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.ledger_rows import DataFile
from dagster_leasehold.lease_store.pruning import OutputExpiry, expire
from tests.manual_clock import ManualClock
from tests.spans import recorded_spans
from tests.unit.assets.consumption_world import World
from tests.unit.assets.spark_doubles import PATIENCE_S, Driver, SparkDouble, until


class Hour:
    """An hour of committed output, computed without Spark; `meanwhile` is called once it is
    written.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = World(folder)
        self.world.consume()
        self.key, self.store = self.world.key, self.world.store
        self.meanwhile: Callable[[], None] = lambda: None
        self.sessions: list[object] = []
        self.spark = SparkDouble(Driver())
        self.sentences: list[str] = []
        self.watch = JobWatch(tag="", work="")
        monkeypatch.setattr(window_run, "write_window", self._make_files)

    def _make_files(
        self, on_spark: RunOnSpark, *_: object, root: OutputPlace, name: str, **__: object
    ) -> tuple[DataFile, ...]:
        self.sessions.append(on_spark.open())
        self.watch = on_spark.watch
        path = Path(str(root / name))
        path.mkdir(parents=True)
        pq.write_table(pa.table({"value": [1, 2]}), path / "part-0.parquet")
        for each in (path / "part-0.parquet", path):
            os.utime(each, (0, 0))
        self.meanwhile()
        return (DataFile(f"{name}/part-0.parquet", 2, 100),)

    def make(
        self, run: str = "run-1", *ended: str, even_if_incomplete: bool = True
    ) -> WindowResult:
        return build_window(
            Deployment(lambda: self.store, (), Timing(), lambda _: self.world.place),
            self.world.stream,
            asset="hourly",
            transform=lambda records: records,
            start=datetime(2000, 1, 1, tzinfo=UTC),
            end=datetime(2100, 1, 1, tzinfo=UTC),
            run=run,
            spark=cast(Any, self.spark),
            even_if_incomplete=even_if_incomplete,
            ended=ended.__contains__,
            warn=self.sentences.append,
        )

    def vacuum(self) -> VacuumReport:
        return vacuum(self.store, self.key, self.world.place, older_than=timedelta(hours=1))

    def attempts(self) -> list[str]:
        return [each.run for each in self.store.window_attempts(self.key)]


@pytest.fixture
def hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hour:
    return Hour(tmp_path, monkeypatch)


def test_the_trace_of_an_hour_shows_the_time_of_spark(hour: Hour) -> None:
    with recorded_spans() as spans:
        hour.make()
        publication = ["  publication", "    stage", "    catalog"]
        assert spans.tree() == ["run", *publication, "  spark", "    session"]
        (attributes,) = spans.attributes("run")
    of_group = {"stream": hour.key.stream, "group": hour.key.group}
    assert attributes == of_group | {"job": "hour", "run": "run-1", "asset": "hourly"}


def test_an_hour_with_expired_output_is_not_computed_again(hour: Hour) -> None:
    """Computed again, it would have only the records that have not expired."""
    window = hour.make().window
    hour.world.deliver()
    assert expire(hour.store, hour.key, OutputExpiry(timedelta(days=-1), list)).expired
    with pytest.raises(OutputUnreadable, match=r"at cursor .* cannot be read completely"):
        hour.make("run-2")
    assert hour.store.windows(hour.key) == [window]
    assert hour.attempts() == []


def test_vacuum_keeps_the_files_of_an_hour_in_progress(hour: Hour) -> None:
    """1. files are written, and grow old; 2. vacuum runs; 3. the row names them."""
    reports: list[VacuumReport] = []
    hour.meanwhile = lambda: reports.append(hour.vacuum())
    (file,) = hour.make().window.files
    assert [(report.removed, report.in_progress) for report in reports] == [((), 1)]
    assert (hour.world.output / file.path).exists()
    assert hour.attempts() == []
    assert hour.vacuum().removed == ()


def test_a_run_declared_dead_cannot_write_its_hour(hour: Hour) -> None:
    """1. files are written; 2. another run ends it; 3. vacuum removes; 4. the run continues."""

    def taken_for_dead() -> None:
        hour.meanwhile = lambda: None
        for each in hour.store.window_attempts(hour.key):
            hour.store.end_window(hour.key, each.attempt)
        assert len(hour.vacuum().removed) == 1
        folder = hour.world.output / "attempts" / each.attempt
        folder.mkdir(exist_ok=True)
        pq.write_table(pa.table({"value": [1]}), folder / "part-1.parquet")  # the last task ends

    hour.meanwhile = taken_for_dead
    (file,) = hour.make().window.files
    assert (hour.world.output / file.path).name == "part-0.parquet", "it was made again, as a whole"
    assert hour.attempts() == []


@pytest.mark.parametrize("lost", [1, 2])
def test_an_hour_is_repeated_once_in_a_new_session(hour: Hour, lost: int) -> None:
    """Goal: no row names the files that the lost session wrote or still writes."""

    def fails() -> None:
        if len(hour.sessions) <= lost:
            raise SessionLost("Spark does not answer.")

    hour.meanwhile, hour.spark = fails, SparkDouble("first", "second")
    if lost == 2:
        with pytest.raises(SessionLost):
            hour.make()
        assert hour.store.windows(hour.key) == []
    else:
        (file,) = hour.make().window.files
        *others, made = sorted(hour.world.output.rglob("part-0.parquet"), key=str)
        assert len(others) == 1
        assert hour.world.output / file.path in {made, *others}
    assert hour.sessions == ["first", "second"]
    assert hour.attempts() == []


def test_failed_and_killed_runs_leave_no_permanent_attempt(
    hour: Hour, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise TransformError("The transform is broken.")

    hour.meanwhile = fails
    with pytest.raises(TransformError):
        hour.make()
    assert hour.attempts() == []
    with monkeypatch.context() as patch:
        patch.setattr(hour.store, "end_window", lambda *_: None)  # as if it had been killed
        with pytest.raises(TransformError):
            hour.make()
    hour.meanwhile = lambda: None
    hour.make("run-2")
    assert hour.attempts() == ["run-1"], "nobody knows yet that it has ended"
    assert len(hour.vacuum().removed) == 1
    hour.make("run-3", "run-1")
    assert hour.attempts() == []
    assert len(hour.vacuum().removed) == 1, "the replaced hour is young"
    hour.spark.sessions[0] = session = Driver()
    with monkeypatch.context() as patch:
        patch.setattr(hour.store, "end_window", lambda *_: None)
        hour.meanwhile = fails
        with pytest.raises(TransformError):
            hour.make("run-4")
    hour.meanwhile = lambda: None
    hour.make("run-5", "run-4")
    assert session.interrupted == [run_tag("run-4")], "its job may be at work still"


def test_a_stalled_hour_is_given_up_and_keeps_its_output(
    hour: Hour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: it is made once; then no task of its job runs, and the job ends late."""
    before = hour.make().window
    hung, woken, clock = threading.Event(), threading.Event(), ManualClock()
    hour.spark.sessions[0] = session = Driver()
    attempts_at_interruption: list[object] = []

    def hang() -> None:
        hour.watch.starved(True)
        assert until(lambda: hour.sentences != [])
        clock.step_s = 301.0
        hung.wait()
        woken.set()

    hour.meanwhile = hang
    session.interruptTag = lambda tag: attempts_at_interruption.append((tag, hour.attempts()))
    monkeypatch.setattr(window_run, "time", SimpleNamespace(monotonic=clock))
    with pytest.raises(RunStalled) as caught:
        hour.make("run-2")
    assert str(caught.value) == (
        "This run made no progress for 600 s while it waited for a free core of Spark "
        "(sc://host:15002), so it abandoned the hour, which is unchanged: materialize it again. "
        "Find out why there was no answer, or raise stall_limit_s if the work can take longer."
    )
    assert hour.sentences == [
        "Spark (sc://host:15002) has run no task of an hour of stream orders for 60 s, as if it "
        "had no free core: add workers, or give other applications fewer cores. The run waits "
        "for stall_limit_s at most."
    ]
    assert attempts_at_interruption == [(run_tag("run-2"), [])]
    assert hour.watch.must_stop(), "what is at work in this process continues being interrupted"
    hung.set()
    assert woken.wait(PATIENCE_S)
    assert hour.store.windows(hour.key) == [before]
    hour.meanwhile, clock.step_s = lambda: None, 0.0
    assert hour.make("run-3").window.generation == before.generation + 1


def test_an_hour_that_is_terminated_has_its_job_interrupted(
    hour: Hour, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work, must_stop = threading.Event(), list[bool]()

    def terminated() -> float:
        if at_work.is_set() and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return 0.0

    def work_until_interrupted() -> None:
        at_work.set()
        must_stop.append(until(hour.watch.must_stop))
        raise hour.watch.interrupted()

    hour.meanwhile = work_until_interrupted
    monkeypatch.setattr(window_run, "time", SimpleNamespace(monotonic=terminated))
    with pytest.raises(KeyboardInterrupt):
        hour.make()
    assert must_stop == [True]
    assert hour.attempts() == []
    assert hour.store.windows(hour.key) == []


def test_an_hour_with_a_hanging_source_is_given_up(
    hour: Hour, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = threading.Event()
    monkeypatch.setattr(hour.world.log, "list_shards", hung.wait)
    monkeypatch.setattr(window_run, "time", SimpleNamespace(monotonic=ManualClock(step_s=301.0)))
    with pytest.raises(RunStalled, match="while it waited for the source's list of shards, so"):
        hour.make(even_if_incomplete=False)
    hung.set()
    assert hour.sessions == []
