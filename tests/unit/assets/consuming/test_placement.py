from __future__ import annotations

from collections.abc import Callable, Iterator

import dagster as dg
import pytest

from dagster_leasehold.assets.consuming.placement import Placer
from dagster_leasehold.assets.consuming.run_requests import RequestBox
from dagster_leasehold.assets.deployment import ensure_instance_address
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.shard_rows import Tenure
from dagster_leasehold.sensors.shard_list import sync_listing
from tests.unit.sensors.streams import memory_deployment, scripted_stream

A, ZERO = NodeName("a"), ShardId("0")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


class Scene:
    """Shard 0 of a group with the member `a`; time passes only by sleeping."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.stream, source = scripted_stream(1)
        deployment, self.store = memory_deployment("a")
        sync_listing(self.store, self.stream, source.shards, timeout_s=20.0)
        node = Node(A, 0, "alive", address=ensure_instance_address(instance))
        self.store.register(self.stream.key, node, observer="test")
        self.placer = Placer(instance, self.stream.key, deployment, run="mine", target=None)
        self.now_s = 0.0
        self.log: list[str] = []

    def claim(self) -> None:
        self.store.claim(self.stream.key, {ZERO: (A, 0)}, observer="test", reason="test")

    def open(self, run: str) -> Tenure:
        opened = self.store.open_tenure(self.stream.key, ZERO, A, run)
        assert isinstance(opened, Opened)
        return opened.tenure

    def place(self, *, wait_s: float = 10.0, on_sleep: Callable[[], None] = lambda: None):
        def sleep(seconds: float) -> None:
            self.now_s += seconds
            on_sleep()

        return self.placer.place(
            [ZERO], wait_s=wait_s, log=self.log.append, clock=lambda: self.now_s, sleep=sleep
        )


def add_run(instance: dg.DagsterInstance, status: dg.DagsterRunStatus) -> str:
    run = dg.DagsterRun(job_name="job", status=status)
    instance.add_run(run)
    return run.run_id


def test_a_free_shard_is_claimed_and_the_claim_is_journalled_with_the_run(instance):
    scene = Scene(instance)
    placement = scene.place()
    assert placement.by_node() == {A: [ZERO]}
    assert placement.incarnations == {A: "alive"}
    assert any(
        "requested by run mine" in row.reason for row in scene.store.journal(scene.stream.key)
    )


def test_a_run_that_ended_without_closing_is_replaced_at_once(instance):
    scene = Scene(instance)
    scene.claim()
    tenure = scene.open(add_run(instance, dg.DagsterRunStatus.FAILURE))
    assert scene.place().by_node() == {A: [ZERO]}
    assert not scene.store.review([tenure])[ZERO].current
    assert scene.now_s == 0.0


def test_a_live_run_is_waited_for_and_named_once(instance):
    scene = Scene(instance)
    scene.claim()
    run = add_run(instance, dg.DagsterRunStatus.STARTED)
    tenure = scene.open(run)

    def close_later() -> None:
        if scene.now_s == 3.0:
            scene.store.close_tenure(tenure, reason="done")

    assert scene.place(on_sleep=close_later).by_node() == {A: [ZERO]}
    assert scene.log == [f"Waiting for run {run}, which is consuming shard 0."]


def test_the_refusal_names_a_live_run(instance):
    scene = Scene(instance)
    scene.claim()
    run = add_run(instance, dg.DagsterRunStatus.STARTED)
    tenure = scene.open(run)
    assert scene.place(wait_s=5.0).refused == {
        ZERO: f"Run {run} is consuming shard 0 of orders.eu/default: wait for it to end, or "
        "terminate it."
    }
    assert scene.store.review([tenure])[ZERO].current


def test_a_finished_shard_is_not_assigned(instance):
    scene = Scene(instance)
    scene.claim()
    scene.store.finish_empty(scene.open("run-1"), "0")
    placement = scene.place()
    assert placement.by_node() == {}
    assert placement.finished == {ZERO}


def test_a_shard_that_keeps_changing_hands_ends_in_a_sentence(instance, monkeypatch):
    scene = Scene(instance)
    monkeypatch.setattr(scene.store, "claim", lambda *_, **__: {})
    assert "moved between nodes" in scene.place().refused[ZERO]


def test_a_following_run_releases_the_shard_on_request(instance):
    scene = Scene(instance)
    scene.claim()
    blocker = add_run(instance, dg.DagsterRunStatus.STARTED)
    tenure = scene.open(blocker)

    def answer() -> None:
        run = instance.get_run_by_id(blocker)
        if run is not None and scene.now_s == 2.0:
            requests = RequestBox(lambda: run.tags)()
            assert requests.release == {ZERO}
            scene.store.close_tenure(tenure, reason="asked for")

    assert scene.place(on_sleep=answer).by_node() == {A: [ZERO]}
    assert scene.now_s == 2.0
