"""A record that comes between two ticks to a stream that waits for none, under a virtual clock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace

import dagster as dg
import pytest
from dagster import DagsterRunStatus

from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.partitions import PROCESS_TAG
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.process_identity import ProcessIdentity
from dagster_leasehold.sensors.launch_choice import TICK_INTERVAL_S
from dagster_leasehold.sensors.rebalance import rebalance_step
from dagster_leasehold.sensors.tick_watch import (
    ENDED_S,
    POLL_S,
    WATCH_S,
    QuietShard,
    ServedShards,
    TickWatch,
)
from dagster_leasehold.shard_sources.source import ShardBounds
from tests.unit.sensors.streams import ScriptedSource
from tests.unit.sensors.test_rebalance import Scene, served

QUIET = {ShardId("0"): QuietShard("5", ShardBounds("0", "5", finished=False))}


class Watched:
    """A source with one quiet shard, and a clock that advances while a tick waits."""

    def __init__(self, instance: dg.DagsterInstance, commit_interval_s: float = 0.0) -> None:
        self.instance = instance
        self.now_s, self.looks = 0.0, 0
        self.served = ServedShards(QUIET)
        self.source = ScriptedSource(ends={"0": 5})
        self.happens: list[tuple[float, Callable[[], object]]] = []
        self.watch = TickWatch(self.source, commit_interval_s, lambda: self.now_s)

    def wait(self, seconds: float) -> None:
        self.looks += 1
        self.now_s += seconds
        while self.happens and self.happens[0][0] <= self.now_s:
            self.happens.pop(0)[1]()

    def wait_for_work(self) -> bool:
        return self.watch.wait_for_work(self.instance, self.served, 0.0, self.wait)


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """An instance whose daemon has threads, as that of a deployment."""
    with dg.DagsterInstance.ephemeral() as ephemeral:
        monkeypatch.setattr(ephemeral, "get_settings", lambda _: {"use_threads": True})
        yield ephemeral


def test_a_record_is_seen_within_half_a_second(instance: dg.DagsterInstance) -> None:
    watched = Watched(instance)
    watched.happens = [(1.2, lambda: watched.source.ends.update({"0": 6}))]
    assert watched.wait_for_work()
    assert watched.now_s <= 1.2 + POLL_S


def test_the_tick_ends_before_the_next_one(instance: dg.DagsterInstance) -> None:
    watched = Watched(instance)
    assert not watched.wait_for_work()
    assert WATCH_S - POLL_S < watched.now_s <= WATCH_S < TICK_INTERVAL_S


def test_a_finished_shard_ends_the_wait(instance: dg.DagsterInstance) -> None:
    watched = Watched(instance)
    watched.happens = [(1.0, lambda: watched.source.finished.add("0"))]
    assert watched.wait_for_work()


def test_no_tick_waits_if_the_next_one_is_soon_enough(instance: dg.DagsterInstance) -> None:
    watched = Watched(instance, commit_interval_s=TICK_INTERVAL_S)
    assert not watched.wait_for_work()
    assert watched.looks == 0


def test_no_tick_waits_if_it_would_delay_other_sensors() -> None:
    with dg.DagsterInstance.ephemeral() as without_threads:
        watched = Watched(without_threads)
        assert not watched.wait_for_work()
        assert watched.looks == 0


def test_a_completed_tick_is_not_delayed(instance: dg.DagsterInstance) -> None:
    watched = Watched(instance)
    assert not watched.watch.wait_for_work(instance, watched.served, 0.0, lambda _: True)


def test_a_failing_source_is_left_to_the_next_tick(instance: dg.DagsterInstance) -> None:
    watched = Watched(instance)
    watched.happens = [(1.0, lambda: setattr(watched.source, "down", "the service is away"))]
    assert not watched.wait_for_work()
    assert watched.now_s == 1.0


def test_a_slow_source_is_polled_less_often(instance: dg.DagsterInstance) -> None:
    watched = Watched(instance)
    asked = watched.source.bounds

    def slow(shards: list[ShardId]) -> dict[ShardId, ShardBounds]:
        watched.now_s += 0.4
        return asked(shards)

    watched.source.bounds = slow  # type: ignore[method-assign]
    assert not watched.wait_for_work()
    assert watched.looks == 2


@contextmanager
def process() -> Generator[subprocess.Popen[bytes]]:
    """A process that waits for its end."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as waiting:
        yield waiting
        waiting.kill()


def test_a_run_whose_process_ends_ends_the_wait(instance: dg.DagsterInstance) -> None:
    watched = Watched(instance)
    with process() as run:
        watched.served = ServedShards({}, [str(ProcessIdentity.of(run.pid))])
        watched.happens = [(1.2, lambda: (run.kill(), run.wait()))]
        assert watched.wait_for_work()
    assert watched.now_s <= 1.2 + ENDED_S


def test_a_released_shard_ends_the_wait(instance: dg.DagsterInstance) -> None:
    watched = Watched(instance)
    watched.served = ServedShards(QUIET, freed=lambda: watched.now_s >= 1.2)
    assert watched.wait_for_work()
    assert watched.now_s <= 1.2 + POLL_S


def test_a_tick_replaces_a_run_that_dies_while_it_waits(instance: dg.DagsterInstance) -> None:
    scene = Scene(instance, nodes="a")
    scene.stream = replace(scene.stream, pace=Pace(commit_interval_s=1.0))
    scene.source.ends = {"2": 1}
    now_s = [0.0]

    def launched(wait: Callable[[float], object]) -> list[dg.RunRequest]:
        scene.step = rebalance_step(scene.stream, scene.deployment, lambda: now_s[0], wait)
        return [*scene.tick().run_requests]

    def pass_time(seconds: float) -> None:
        now_s[0] += seconds

    def die(seconds: float) -> None:
        pass_time(seconds)
        run.kill()
        run.wait()

    scene.sync()
    (request,) = launched(pass_time)
    with process() as run:
        note = str(ProcessIdentity.of(run.pid))
        dead = scene.add_run(request, DagsterRunStatus.STARTED, **{PROCESS_TAG: note})
        scene.open("2", NodeName("a"), dead)
        now_s[0] = 5.0
        (again,) = launched(die)
    assert served(again) == ("a", {"2"})
    assert now_s[0] == 5.0 + ENDED_S
    stored = instance.get_run_by_id(dead)
    assert stored is not None
    assert stored.status is DagsterRunStatus.FAILURE


def test_a_tick_launches_a_run_for_records_that_arrived_while_it_waited(
    instance: dg.DagsterInstance,
) -> None:
    scene = Scene(instance, nodes="a")
    scene.stream = replace(scene.stream, pace=Pace(commit_interval_s=0.0))
    now_s = [0.0]

    def wait(seconds: float) -> None:
        now_s[0] += seconds
        scene.source.ends = {"2": 1}

    scene.step = rebalance_step(scene.stream, scene.deployment, lambda: now_s[0], wait)
    scene.sync()
    (request,) = scene.tick().run_requests
    assert served(request) == ("a", {"2"})
    assert now_s[0] == POLL_S
