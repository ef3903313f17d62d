from __future__ import annotations

from dataclasses import replace
from logging import getLogger

import dagster as dg
import pytest
from dagster import DagsterRunStatus
from dagster._daemon.monitoring.run_monitoring import check_run_timeout

from dagster_leasehold.assets.deployment import ensure_instance_address
from dagster_leasehold.assets.partitions import PROCESS_TAG
from dagster_leasehold.assets.run_process import process_note
from dagster_leasehold.lease_store.errors import StoreUnavailable
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.sensors.janitor import janitor_step
from dagster_leasehold.sensors.launch_choice import Launch
from dagster_leasehold.sensors.launch_round import OVERTIME_S, run_request
from dagster_leasehold.sensors.shard_list import sync_listing
from tests.unit.sensors.streams import memory_deployment, run_step, scripted_stream

A = NodeName("a")
ZERO = ShardId("0")


class Scene:
    """A node with one shard, and the runs that Dagster knows according to the test."""

    def __init__(self, instance: dg.DagsterInstance, *, agents: bool = False) -> None:
        self.instance = instance
        self.now_s = 0.0
        self.stream, _ = scripted_stream(1)
        deployment, self.store = memory_deployment("a")
        self.deployment = replace(deployment, agents=agents)
        self.address = ensure_instance_address(instance)
        self.step = janitor_step(self.stream, self.deployment, lambda: self.now_s)
        sync_listing(self.store, self.stream, self.stream.source.list_shards(), timeout_s=20.0)
        self.join(self.address)
        lease_id = self.row().lease_id
        self.store.claim(
            self.stream.key, {ZERO: (A, lease_id)}, observer="test", reason="it was free"
        )

    def join(self, address: str) -> None:
        self.store.register(self.stream.key, Node(A, 0, "first", address=address), observer="test")

    def row(self):
        (row,) = self.store.snapshot(self.stream.key).shards
        return row

    def clean(self) -> str:
        return run_step(self.step, self.instance).line

    def add_run(self, status: DagsterRunStatus, process: str = "") -> str:
        request = run_request(self.stream, Launch(A, (ZERO,)), "first")
        run = dg.DagsterRun(
            job_name="consume_orders_eu",
            run_config=request.run_config,
            status=status,
            tags={**request.tags, PROCESS_TAG: process},
        )
        self.instance.add_run(run)
        return run.run_id

    def open(self, run: str) -> Opened:
        opened = self.store.open_tenure(self.stream.key, ZERO, A, run)
        assert isinstance(opened, Opened)
        return opened

    def lose(self) -> None:
        """The shard's tenure ends without the run's knowledge."""
        self.store.force_checkpoint(
            self.stream.key, ZERO, "0", observer="test", reason="an operator's"
        )

    def status(self, run: str) -> DagsterRunStatus:
        target = self.instance.get_run_by_id(run)
        assert target is not None
        return target.status


class Launcher:
    """Stands for the code server of a run: it ends it, knows nothing of it, or is gone."""

    def __init__(self, answer: bool | Exception) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def terminate(self, run_id: str) -> bool:
        self.asked.append(run_id)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture(params=[False, True], ids=["sensor-beats", "agents-beat"])
def scene(instance: dg.DagsterInstance, request: pytest.FixtureRequest) -> Scene:
    return Scene(instance, agents=request.param)


def test_a_tick_without_work_says_so(scene: Scene) -> None:
    assert scene.clean() == "No run has died, and no run works without a lease."


def test_shards_of_a_killed_run_are_freed(scene: Scene) -> None:
    run = scene.add_run(DagsterRunStatus.FAILURE)
    opened = scene.open(run)
    assert f"shard 0 is free of run {run}" in scene.clean()
    assert not scene.store.review([opened.tenure])[ZERO].current
    assert scene.row().consumer_run == ""
    assert scene.row().consumer_owner == A


def test_a_started_run_without_a_process_is_failed_and_its_shards_are_freed(scene: Scene) -> None:
    place = process_note().partition("|")[0]
    run = scene.add_run(DagsterRunStatus.STARTED, f"{place}|4194303|1")
    scene.open(run)
    assert f"run {run} failed: its process has ended" in scene.clean()
    assert scene.status(run) is DagsterRunStatus.FAILURE
    assert scene.row().consumer_run == ""


def test_a_live_run_keeps_its_tenure(scene: Scene) -> None:
    run = scene.add_run(DagsterRunStatus.STARTED, process_note())
    opened = scene.open(run)
    scene.clean()
    assert scene.store.review([opened.tenure])[ZERO].current


def test_a_run_of_another_deployment_with_the_same_node_name_is_not_touched(scene: Scene) -> None:
    opened = scene.open("a-run-that-our-instance-does-not-know")
    scene.join("another-instance")
    scene.clean()
    assert scene.store.review([opened.tenure])[ZERO].current


@pytest.mark.parametrize(
    ("answer", "sentence", "status"),
    [
        (True, "terminated", DagsterRunStatus.STARTED),
        (False, "failed", DagsterRunStatus.FAILURE),
        (ConnectionError("no server"), "failed", DagsterRunStatus.FAILURE),
    ],
)
def test_a_run_that_lost_its_last_lease_is_terminated_or_failed_after_the_timeout(
    scene: Scene,
    answer: bool | Exception,
    sentence: str,
    status: DagsterRunStatus,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launcher = Launcher(answer)
    monkeypatch.setattr(type(scene.instance), "run_launcher", property(lambda _: launcher))
    run = scene.add_run(DagsterRunStatus.STARTED)
    scene.open(run)
    scene.clean()
    scene.lose()
    for _ in range(4):
        scene.now_s += 5
        scene.clean()
        assert launcher.asked == []
    scene.now_s += 5
    assert scene.clean().endswith(sentence)
    assert launcher.asked == [run]
    assert scene.status(run) is status


def test_a_run_that_exceeds_its_time_is_ended_even_if_it_holds_its_shard(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = Launcher(True)
    monkeypatch.setattr(type(scene.instance), "run_launcher", property(lambda _: launcher))
    run = scene.add_run(DagsterRunStatus.STARTED, process_note())
    scene.open(run)
    limit_s = scene.stream.pace.run_budget_s + scene.stream.pace.stall_limit_s + OVERTIME_S
    assert "worked" not in scene.clean()
    scene.now_s += limit_s
    assert "worked" not in scene.clean()
    scene.now_s += 1
    assert scene.clean() == f"run {run} has worked for too long: terminated"
    assert launcher.asked == [run]


def test_dagster_ends_no_run_of_a_host_whose_clock_is_hours_behind(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its monitor compares the run's start by the clock of one host with the time of another."""
    launcher = Launcher(True)
    monkeypatch.setattr(type(scene.instance), "run_launcher", property(lambda _: launcher))
    record = scene.instance.get_run_record_by_id(scene.add_run(DagsterRunStatus.STARTED))
    assert record is not None
    behind = record._replace(start_time=record.create_timestamp.timestamp() - 3 * 3_600)
    check_run_timeout(scene.instance, behind, getLogger(__name__), 0.0)
    assert launcher.asked == []


def test_a_store_that_does_not_answer_is_one_sentence(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(key: object) -> None:
        raise StoreUnavailable("The lease store does not answer.")

    monkeypatch.setattr(scene.store, "pulse", down)
    assert scene.clean() == "The lease store does not answer."


def test_a_dead_run_is_failed_during_an_outage_of_the_lease_store(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object) -> None:
        raise StoreUnavailable("The lease store does not answer.")

    monkeypatch.setattr(scene.store, "pulse", down)
    monkeypatch.setattr(
        "dagster_leasehold.sensors.run_cleaning.process_ended", lambda note: note == "dead"
    )
    dead = scene.add_run(DagsterRunStatus.STARTED, "dead")
    scene.clean()
    assert scene.status(dead) is DagsterRunStatus.FAILURE


def test_an_error_of_one_dead_run_does_not_stop_the_cleanup_of_others(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = scene.add_run(DagsterRunStatus.STARTED, "broken")
    dead = scene.add_run(DagsterRunStatus.STARTED, "dead")
    scene.open(dead)

    def gone(note: str) -> bool:
        if note == "broken":
            raise ZeroDivisionError("unforeseen")
        return note == "dead"

    monkeypatch.setattr("dagster_leasehold.sensors.run_cleaning.process_ended", gone)
    cleaned = scene.clean()
    assert f"run {dead} failed: its process has ended" in cleaned
    assert f"shard 0 is free of run {dead}" in cleaned
    assert f"run {broken} failed (ZeroDivisionError: unforeseen), tried again in 5 s" in cleaned
    assert scene.status(broken) is DagsterRunStatus.STARTED


def test_a_shard_that_cannot_be_freed_does_not_stop_the_end_of_runs(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> bool:
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr("dagster_leasehold.sensors.run_cleaning.close_ended_tenure", broken)
    scene.open(scene.add_run(DagsterRunStatus.FAILURE))
    lost = scene.add_run(DagsterRunStatus.STARTED)
    scene.clean()
    scene.now_s += 121
    cleaned = scene.clean()
    assert "shard 0 failed (ZeroDivisionError: unforeseen)" in cleaned
    assert f"run {lost} no longer holds a shard" in cleaned
