"""A job that gets no core, a server that is not ours, and a run that left its job at work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.consuming import spark_sweeper
from dagster_leasehold.assets.consuming.spark_sweeper import SparkSweeper
from dagster_leasehold.assets.consuming.spark_work import SweepJob
from dagster_leasehold.assets.consuming.sweep import GuardedSweeper
from dagster_leasehold.assets.guarding import job_watch
from dagster_leasehold.assets.guarding.job_watch import JobWatch, running_tasks, watched
from dagster_leasehold.assets.guarding.run_on_spark import RunOnSpark, run_tag
from dagster_leasehold.assets.guarding.stall_guard import StallGuard
from dagster_leasehold.assets.places.local_place import LocalPlace, local_place
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import RunStalled
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import ReadRange
from tests.unit.assets.spark_doubles import PATIENCE_S, Client, Driver, until

SHARD = ShardId("0")


def session_of(double: object) -> Any:
    return double


def test_a_driver_knows_if_a_task_runs() -> None:
    for running, any_ in (((), False), ((0, 0), False), ((0, 2), True)):
        with running_tasks(session_of(Driver(*running))) as running_now:
            assert running_now().running is any_
    ended = Driver(1)
    ended.stages[0] = None
    with running_tasks(session_of(ended)) as running_now:
        assert not running_now().running


def test_a_client_remembers_the_last_task_count_of_the_server() -> None:
    client = Client()
    with running_tasks(session_of(client)) as running_now:
        assert not running_now().running, "the job waits"
        client.say(2)
        assert running_now().running
        client.say(0)
        assert not running_now().running
    assert client.handlers == []


def test_a_job_is_starved_until_a_task_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_watch, "WATCH_S", 0.01)
    driver, changes = Driver(0), list[bool]()
    watch = JobWatch(tag="tag", work="stream orders", starved=changes.append, starved_after_s=0.05)
    with watched(session_of(driver), watch, local_place(tmp_path)):
        assert until(lambda: changes == [True])
        driver.stages[0].numActiveTasks = 1
        assert until(lambda: changes == [True, False])
        driver.stages[0].numActiveTasks = 0
        assert until(lambda: changes == [True, False, True]), "its executors are gone"
    assert changes == [True, False, True, False]
    assert driver.tags == []


@pytest.mark.parametrize("kind", [lambda: Driver(1), Client])
@pytest.mark.parametrize("by_tasks", [False, True])
def test_a_finished_task_counts_as_progress_without_other_signs(
    kind: Callable[[], Any], by_tasks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_watch, "WATCH_S", 0.01)
    monkeypatch.setattr(LocalPlace, "watch_every_s", 0.01)
    moves, looks = list[str](), list[str]()
    session, file = kind(), tmp_path / "_temporary" / "0" / "part-0.parquet"
    file.parent.mkdir(parents=True)
    file.touch()
    watch = JobWatch(
        tag="tag",
        work="stream orders",
        progressed=lambda: moves.append(""),
        must_stop=lambda: bool(looks.append("")),
    )

    def end_task() -> None:
        if isinstance(session, Client):
            session.say(1, completed=1)
        else:
            session.stages[0].numCompletedTasks += 1

    def look_twice() -> bool:
        seen = len(looks)
        return until(lambda: len(looks) > seen + 2)

    session.addTag = session.removeTag = lambda _: None
    with watched(session, watch, local_place(tmp_path), by_tasks=by_tasks):
        assert look_twice()
        moves.clear()
        assert look_twice()
        assert moves == [], "a job that is merely there makes none"
        end_task()
        assert look_twice()
        assert moves == [""] * by_tasks
        with file.open("ab") as more:
            more.write(b"PAR1")
        assert look_twice()
        assert moves == [""] * (by_tasks + 1), "a file below the folder grows"


def on_spark_of(session: object, **named: Any) -> RunOnSpark:
    return RunOnSpark(
        session=lambda: session_of(session),
        run="run-2",
        work="stream orders",
        where="spark://host:7077",
        **named,
    )


def sweeper_of(tmp_path: Path, on_spark: RunOnSpark) -> SparkSweeper:
    return SparkSweeper(
        stream=ShardStream(name="orders", source=LocalLog.create(tmp_path / "log", 1)),
        spark=on_spark,
        output_root=local_place(tmp_path / "output"),
    )


def test_a_run_without_cores_logs_it_and_releases_its_shards_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences, given_up = list[str](), threading.Event()
    now_s = 0.0

    def attempt(_: object, job: SweepJob, *__: object) -> dict[ShardId, Any]:
        nonlocal now_s
        job.watch.starved(True)
        assert until(lambda: sentences != [])
        now_s = 601.0
        assert given_up.wait(PATIENCE_S)
        return {}

    monkeypatch.setattr(spark_sweeper, "attempt_ranges", attempt)
    on_spark = on_spark_of(Driver(), warn=sentences.append)
    with StallGuard(600.0, lambda: now_s) as guard:
        sweeper = sweeper_of(tmp_path, on_spark)
        guarded = GuardedSweeper(sweeper, guard, lambda: on_spark.awaited)
        with pytest.raises(RunStalled) as caught:
            guarded([ReadRange(SHARD, "0", "1")], {SHARD: range(1)})
        given_up.set()
    assert sentences == [
        "Spark (spark://host:7077) has run no task of stream orders for 60 s, as if it had no free "
        "core: add workers, or give other applications fewer cores. The run waits for "
        "stall_limit_s at most."
    ]
    assert "while it waited for a free core of Spark (spark://host:7077), so it" in str(
        caught.value
    )


def test_on_a_shared_server_only_the_own_operations_are_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the end of a run waits for no job on a cluster that has no core for it."""
    monkeypatch.setattr(spark_sweeper, "attempt_ranges", lambda *_: {})
    driver = Driver()
    on_spark = on_spark_of(driver)
    assert not on_spark.abandon(ours=False), "it has begun nothing"
    sweeper_of(tmp_path, on_spark)([ReadRange(SHARD, "0", "1")], {SHARD: range(1)})
    assert on_spark.abandon(ours=False)
    assert driver.interrupted == [run_tag("run-2")]


def test_the_job_of_an_ended_run_is_interrupted_before_the_next_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_sweeper, "attempt_ranges", lambda *_: {})
    driver = Driver()
    on_spark = on_spark_of(driver, ended=lambda run: run == "run-1")
    sweeper = sweeper_of(tmp_path, on_spark)
    for run in ("run-1", "run-1", "alive"):
        on_spark.add_predecessor(run)
    for _ in range(2):
        sweeper([ReadRange(SHARD, "0", "1")], {SHARD: range(1)})
    assert driver.interrupted == [run_tag("run-1")]
