"""A job that gets no core, a server that is not ours, and a run that left its job at work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_leasehold.assets.consuming import spark_sweeper, spark_work
from dagster_leasehold.assets.consuming.running_tasks import running_tasks
from dagster_leasehold.assets.consuming.spark_sweeper import SparkSweeper, run_tag
from dagster_leasehold.assets.consuming.spark_work import SweepJob, watched
from dagster_leasehold.assets.consuming.stall_guard import GuardedSweeper, StallGuard
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import RunStalled
from dagster_leasehold.lease_store.identifiers import ShardId, StreamName
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import ReadRange

SHARD = ShardId("0")
PATIENCE_S = 60.0


class Driver:
    """A session of a driver in this process: its stages, by their number of running tasks."""

    def __init__(self, *running: int) -> None:
        self.stages: dict[int, Any] = {
            number: SimpleNamespace(numActiveTasks=tasks) for number, tasks in enumerate(running)
        }
        self.tags: list[str] = []
        self.interrupted: list[str] = []
        self.sparkContext = SimpleNamespace(
            statusTracker=lambda: SimpleNamespace(
                getActiveStageIds=lambda: [*self.stages], getStageInfo=self.stages.get
            )
        )
        self.addTag, self.removeTag = self.tags.append, self.tags.remove
        self.interruptTag = self.interrupted.append


class Client:
    """A session of a Connect server, which speaks of its jobs now and then."""

    def __init__(self) -> None:
        self.handlers: list[Callable[..., None]] = []
        self.registerProgressHandler = self.handlers.append
        self.removeProgressHandler = self.handlers.remove

    def say(self, inflight: int) -> None:
        for handler in self.handlers:
            handler(stages=None, inflight_tasks=inflight, operation_id="o", done=False)


Client.__module__ = "pyspark.sql.connect.session"


def session_of(double: object) -> Any:
    return double


def test_a_driver_knows_if_a_task_runs() -> None:
    for running, any_ in (((), False), ((0, 0), False), ((0, 2), True)):
        with running_tasks(session_of(Driver(*running))) as running_now:
            assert running_now() is any_
    ended = Driver(1)
    ended.stages[0] = None
    with running_tasks(session_of(ended)) as running_now:
        assert not running_now()


def test_a_client_knows_what_the_server_said_last() -> None:
    client = Client()
    with running_tasks(session_of(client)) as running_now:
        assert not running_now(), "the job waits"
        client.say(2)
        assert running_now()
        client.say(0)
        assert not running_now()
    assert client.handlers == []


def until(holds: Callable[[], bool]) -> bool:
    event = threading.Event()
    return any(holds() or event.wait(0.01) for _ in range(int(PATIENCE_S / 0.01)))


def test_a_job_is_starved_until_a_task_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_work, "WATCH_S", 0.01)
    driver, changes = Driver(0), list[bool]()
    job = SweepJob(
        *(StreamName("orders"), {}, None, local_place(tmp_path), lambda: "a", "tag", 2),
        starved=changes.append,
        starved_after_s=0.05,
    )
    with watched(session_of(driver), job, local_place(tmp_path)):
        assert until(lambda: changes == [True])
        driver.stages[0].numActiveTasks = 1
        assert until(lambda: changes == [True, False])
        driver.stages[0].numActiveTasks = 0
        assert until(lambda: changes == [True, False, True]), "its executors are gone"
    assert changes == [True, False, True, False]
    assert driver.tags == []


def sweeper_of(tmp_path: Path, session: object, **named: Any) -> SparkSweeper:
    return SparkSweeper(
        stream=ShardStream(name="orders", source=LocalLog.create(tmp_path / "log", 1)),
        session=lambda: session_of(session),
        output_root=local_place(tmp_path / "output"),
        run="run-2",
        where="spark://host:7077",
        **named,
    )


def test_a_run_without_cores_says_so_and_gives_its_shards_up_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences, given_up = list[str](), threading.Event()
    now_s = 0.0

    def attempt(_: object, job: SweepJob, *__: object) -> dict[ShardId, Any]:
        nonlocal now_s
        job.starved(True)
        assert until(lambda: sentences != [])
        now_s = 601.0
        assert given_up.wait(PATIENCE_S)
        return {}

    monkeypatch.setattr(spark_sweeper, "attempt_ranges", attempt)
    sweeper = sweeper_of(tmp_path, Driver(), tell=sentences.append)
    with StallGuard(600.0, lambda: now_s) as guard:
        guarded = GuardedSweeper(sweeper, guard, lambda: sweeper.awaited)
        with pytest.raises(RunStalled) as caught:
            guarded([ReadRange(SHARD, "0", "1")], {SHARD: range(1)})
        given_up.set()
    assert sentences == [
        "Spark (spark://host:7077) has run no task of stream orders for 60 s, as if it had no free "
        "core: add workers, or give other applications fewer cores. The run waits, for "
        "stall_limit_s at most."
    ]
    assert "while it waited for a free core of Spark (spark://host:7077), so that" in str(
        caught.value
    )


def test_a_server_of_others_is_only_told_of_the_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the end of a run waits for no job on a cluster that has no core for it."""
    monkeypatch.setattr(spark_sweeper, "attempt_ranges", lambda *_: {})
    driver = Driver()
    sweeper = sweeper_of(tmp_path, driver)
    assert not sweeper.abandon(ours=False), "it has begun nothing"
    sweeper([ReadRange(SHARD, "0", "1")], {SHARD: range(1)})
    assert sweeper.abandon(ours=False)
    assert driver.interrupted == [run_tag("run-2")]


def test_what_an_ended_run_left_at_work_is_interrupted_before_the_next_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_sweeper, "attempt_ranges", lambda *_: {})
    driver = Driver()
    sweeper = sweeper_of(tmp_path, driver, ended=lambda run: run == "run-1")
    for run in ("run-1", "run-1", "alive"):
        sweeper.succeed(run)
    for _ in range(2):
        sweeper([ReadRange(SHARD, "0", "1")], {SHARD: range(1)})
    assert driver.interrupted == [run_tag("run-1")]
