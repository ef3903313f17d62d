"""A replay and the Spark that it waits for: new sessions, no progress, and its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dagster_leasehold.assets.consuming import spark_sweeper
from dagster_leasehold.assets.consuming.spark_work import SweepJob
from dagster_leasehold.assets.consuming.sweep import SweepResult
from dagster_leasehold.assets.errors import SessionLost
from dagster_leasehold.assets.guarding.run_on_spark import run_tag
from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.rewriting import replay
from dagster_leasehold.assets.rewriting.replay import ReplayReport, replay_on_spark
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import RewriteKind
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.shard_sources.source import ReadRange
from tests.manual_clock import ManualClock
from tests.unit.assets.rewriting.test_replay import ALL, ONE, ZERO, Scene
from tests.unit.assets.spark_doubles import PATIENCE_S, Driver, SparkDouble, until


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture
def hung() -> Iterator[threading.Event]:
    """Calls that wait for it hang until the test is over."""
    event = threading.Event()
    yield event
    event.set()


class OnSpark:
    """Replays of the scene by `replay_on_spark`, whose sweeps are made without Spark."""

    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scene = scene
        self.session = Driver()
        self.spark = SparkDouble(self.session)
        self.sentences: list[str] = []
        self.before: Callable[[Any, SweepJob], None] = lambda *_: None
        monkeypatch.setattr(spark_sweeper, "run_sweep", self._sweep)

    def _sweep(
        self,
        session: Any,
        job: SweepJob,
        ranges: Sequence[ReadRange],
        numbers: Mapping[ShardId, range],
    ) -> Mapping[ShardId, SweepResult]:
        self.before(session, job)
        return self.scene.today(ranges, numbers)

    def replay(self, run: str = "replay-1", ended: str = "") -> dict[ShardId, ReplayReport]:
        return replay_on_spark(
            self.scene.stream,
            self.scene.store,
            (ZERO, ONE),
            ALL,
            spark=cast(Any, self.spark),
            output_root=self.scene.place,
            run=run,
            ended=lambda other: other == ended,
            warn=self.sentences.append,
        )


@pytest.fixture
def on_spark(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> OnSpark:
    return OnSpark(scene, monkeypatch)


def test_a_replay_continues_in_a_new_session(on_spark: OnSpark) -> None:
    def fail_in_the_first(session: str, _: object) -> None:
        if session == "first":
            raise SessionLost("Spark does not answer.")

    on_spark.before = fail_in_the_first
    on_spark.spark = SparkDouble("first", "second")
    reports = on_spark.replay()
    assert [report.error for report in reports.values()] == ["", ""]
    assert set(on_spark.scene.generations()) == {1}
    assert on_spark.spark.renewals == 1


def test_a_stalled_replay_releases_its_claims_and_keeps_the_old_output(
    on_spark: OnSpark, hung: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: no task of its third sweep runs; each shard is a separate portion."""
    scene = on_spark.scene
    scene.stream = replace(scene.stream, pace=Pace(shards_per_run=1))
    claims_at_interruption: list[object] = []
    ended = threading.Event()
    clock = ManualClock()

    def hang(_: object, job: SweepJob) -> None:
        if len(scene.today.sweeps) == 2:
            job.watch.starved(True)
            assert until(lambda: on_spark.sentences != [])
            clock.step_s = 301.0
            hung.wait()
            assert job.watch.must_stop()
            ended.set()

    def interrupt(tag: str) -> None:
        claims_at_interruption.append((tag, [*scene.store.rewrites(scene.key)]))

    on_spark.before, on_spark.session.interruptTag = hang, interrupt
    monkeypatch.setattr(replay, "time", SimpleNamespace(monotonic=clock))
    reports = on_spark.replay()
    assert {shard: report.error for shard, report in reports.items()} == dict.fromkeys(
        (ZERO, ONE),
        "This run made no progress for 600 s while it waited for a free core of Spark "
        "(sc://host:15002), so it released its claims: the old output stays, and the next replay "
        "starts over. Find out why there was no answer, or raise stall_limit_s if the work can "
        "take longer.",
    )
    assert on_spark.sentences == [
        "Spark (sc://host:15002) has run no task of stream orders for 60 s, as if it had no free "
        "core: add workers, or give other applications fewer cores. The run waits for "
        "stall_limit_s at most."
    ]
    assert claims_at_interruption == [(run_tag("replay-1"), [])], "they were free by then"
    assert scene.generations() == scene.generations(ONE) == [0, 0, 0]
    hung.set()
    assert ended.wait(PATIENCE_S)
    clock.step_s, on_spark.before = 0.0, lambda *_: None
    assert [report.error for report in on_spark.replay("replay-2").values()] == ["", ""]
    assert scene.generations() == scene.generations(ONE) == [1, 1, 1]
    assert verify(scene.store, scene.key) == []


def test_a_replay_with_a_hanging_source_releases_its_claims(
    on_spark: OnSpark, hung: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = on_spark.scene
    monkeypatch.setattr(scene.log, "plan", lambda *_: hung.wait())
    monkeypatch.setattr(replay, "time", SimpleNamespace(monotonic=ManualClock(step_s=301.0)))
    reports = on_spark.replay()
    for report in reports.values():
        assert "while it waited for the source to plan a batch of shard 0, so it" in report.error
    assert scene.store.rewrites(scene.key) == []
    assert scene.today.sweeps == []


def test_a_replay_that_is_terminated_has_its_job_interrupted(
    on_spark: OnSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, at_work = on_spark.scene, threading.Event()
    must_stop: list[bool] = []

    def terminated() -> float:
        if at_work.is_set() and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return 0.0

    def work_until_interrupted(_: object, job: SweepJob) -> None:
        at_work.set()
        must_stop.append(until(job.watch.must_stop))
        raise job.watch.interrupted()

    on_spark.before = work_until_interrupted
    monkeypatch.setattr(replay, "time", SimpleNamespace(monotonic=terminated))
    with pytest.raises(KeyboardInterrupt):
        on_spark.replay()
    assert must_stop == [True]
    assert scene.store.rewrites(scene.key) == []
    assert scene.generations() == [0, 0, 0]


def test_the_job_of_a_replaced_replay_is_interrupted(on_spark: OnSpark) -> None:
    scene = on_spark.scene
    for shard, run in ((ZERO, "killed"), (ONE, "alive")):
        scene.store.claim_rewrite(scene.key, shard, run, RewriteKind.REPLAY)
    reports = on_spark.replay("replay-2", ended="killed")
    assert reports[ZERO].error == ""
    assert "Run alive is replaying shard 1" in reports[ONE].error
    assert on_spark.session.interrupted == [run_tag("killed")]
