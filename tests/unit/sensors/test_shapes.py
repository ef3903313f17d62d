"""Every sensor in every shape of deployment: it does its work for the nodes of its deployment."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import dagster as dg
import pytest
from dagster import DagsterRunStatus

from dagster_leasehold.assets.commit_hook import CommittedBatch
from dagster_leasehold.assets.deployment import LEASEHOLD, ensure_instance_address
from dagster_leasehold.assets.partitions import asset_key
from dagster_leasehold.assets.windows.hourly_asset import HourlyAsset
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchCommit, BatchStatistics, Intent
from dagster_leasehold.lease_store.outcomes import Changed, Opened
from dagster_leasehold.sensors.janitor import janitor_step
from dagster_leasehold.sensors.launch_choice import Launch
from dagster_leasehold.sensors.launch_round import run_request
from dagster_leasehold.sensors.on_commit import on_commit_step
from dagster_leasehold.sensors.outbox import outbox_step
from dagster_leasehold.sensors.rebalance import rebalance_step
from dagster_leasehold.sensors.shard_list import shard_list_step, sync_listing
from dagster_leasehold.sensors.steps import Outcome, Step
from dagster_leasehold.sensors.watermark import build_watermark_sensor
from tests.ticks import tick
from tests.unit.sensors.streams import memory_deployment, run_step, scripted_stream

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
OTHER = NodeName("elsewhere")


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape of deployment.

    Attributes:
        setting: the nodes that the settings name; with agents, these have no process.
        own: the nodes that exist.
        agents: True if agents beat for them.
        other: True if a second deployment has a node in the group.
    """

    setting: tuple[str, ...]
    own: tuple[str, ...]
    agents: bool = False
    other: bool = False


SHAPES = {
    "embedded": Shape(("a", "b"), ("a", "b")),
    "agents": Shape(("local",), ("pod-1", "pod-2"), agents=True),
    "two deployments": Shape(("a",), ("a",), other=True),
    "two deployments with agents": Shape(("local",), ("pod-1",), agents=True, other=True),
}


class Scene:
    """A deployment of one shape over a scripted source of four shards."""

    def __init__(self, instance: dg.DagsterInstance, shape: Shape) -> None:
        self.instance, self.shape = instance, shape
        self.calls: list[CommittedBatch] = []
        self.stream, self.source = scripted_stream(4)
        self.stream = replace(self.stream, on_commit=self.calls.append)
        deployment, self.store = memory_deployment(*shape.setting)
        self.deployment = replace(deployment, agents=shape.agents)
        self.address = ensure_instance_address(instance)
        sync_listing(self.store, self.stream, self.source.shards, timeout_s=20.0)
        for node in shape.own if shape.agents else ():
            self.register(node, self.address)
        if shape.other:
            self.register(OTHER, "another-instance")
        self.rebalance = rebalance_step(self.stream, self.deployment)
        self.first = self.tick(self.rebalance)

    def register(self, node: str, address: str) -> None:
        row = Node(NodeName(node), 0, f"{node}-1", address=address)
        self.store.register(self.stream.key, row, observer="test")

    def tick(self, step: Step) -> Outcome:
        return run_step(step, self.instance)

    def owned(self) -> dict[ShardId, NodeName]:
        rows = self.store.snapshot(self.stream.key).shards
        return {row.shard: row.consumer_owner for row in rows if row.consumer_owner is not None}

    def commit(self) -> tuple[ShardId, str]:
        """One batch of a run of this deployment that has died since."""
        shard, node = min(self.owned().items())
        request = run_request(self.stream, Launch(node, (shard,)), f"{node}-1")
        run = dg.DagsterRun(
            job_name="consume_orders_eu",
            run_id=str(uuid.uuid4()),
            run_config=request.run_config,
            status=DagsterRunStatus.FAILURE,
            tags=dict(request.tags),
        )
        self.instance.add_run(run)
        opened = self.store.open_tenure(self.stream.key, shard, node, run.run_id)
        assert isinstance(opened, Opened)
        self.store.record_intents([Intent(opened.tenure, 0, "0", "5")])
        statistics = BatchStatistics(5, 50, 5, 0, NOON, NOON)
        commit = BatchCommit(
            opened.tenure, 0, "0", "5", "at", (), statistics, hooked=True, watermark=NOON
        )
        assert isinstance(self.store.commit([commit])[shard], Changed)
        return shard, run.run_id


@pytest.fixture(params=SHAPES, ids=list(SHAPES))
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Scene(instance, SHAPES[request.param])


def rebalances(scene: Scene) -> None:
    assert set(scene.owned().values()) == {NodeName(node) for node in scene.shape.own}
    # So many records wait for no commit interval.
    scene.source.ends = {str(n): scene.stream.limits.records_max for n in range(4)}
    launched = [
        request.run_config["ops"]["consume__orders_eu"]["config"]["node"]
        for request in scene.tick(scene.rebalance).run_requests
    ]
    assert sorted(launched) == sorted(scene.shape.own)


def lists_shards(scene: Scene) -> None:
    scene.tick(shard_list_step(scene.stream, scene.deployment))
    assert scene.instance.get_dynamic_partitions(scene.stream.name) == ["0", "1", "2", "3"]


def frees_what_a_dead_run_left(scene: Scene) -> None:
    shard, run = scene.commit()
    cleaned = scene.tick(janitor_step(scene.stream, scene.deployment))
    assert f"shard {shard} is free of run {run}" in cleaned.line


def reports_what_a_dead_run_committed(scene: Scene) -> None:
    shard, _ = scene.commit()
    scene.tick(outbox_step(scene.stream, scene.deployment))
    (record,) = scene.instance.fetch_materializations(asset_key(scene.stream), limit=9).records
    assert record.partition_key == shard


def calls_the_hook(scene: Scene) -> None:
    shard, _ = scene.commit()
    scene.tick(on_commit_step(scene.stream, scene.deployment))
    assert [batch.shard for batch in scene.calls] == [shard]


def asks_for_complete_hours(scene: Scene) -> None:
    scene.source.shards = []
    shard, _ = scene.commit()
    hourly = HourlyAsset("hourly", scene.stream, lambda frame: frame, since=NOON - timedelta(1))
    rows = scene.store.snapshot(scene.stream.key).shards
    # Only the shard that has output is left to hold hours back.
    snapshot = replace(
        scene.store.snapshot(scene.stream.key),
        shards=tuple(row for row in rows if row.shard == shard),
    )
    cast(Any, scene.store).snapshot = lambda key: snapshot
    sensor = build_watermark_sensor(hourly)
    definitions = dg.Definitions(
        [dg.AssetSpec(hourly.key, partitions_def=hourly.partitions)],
        sensors=[sensor],
        resources={LEASEHOLD: scene.deployment},
    )
    result = tick(definitions, sensor.name, scene.instance)
    assert len(result.run_requests or ()) == 24


SENSORS: Sequence[Callable[[Scene], None]] = [
    rebalances,
    lists_shards,
    frees_what_a_dead_run_left,
    reports_what_a_dead_run_committed,
    calls_the_hook,
    asks_for_complete_hours,
]


@pytest.mark.parametrize("works", SENSORS, ids=lambda works: works.__name__)
def test_a_sensor_works_in_every_shape(scene: Scene, works: Callable[[Scene], None]) -> None:
    works(scene)


def test_a_node_of_the_same_name_in_another_deployment_delivers_no_batch_of_ours() -> None:
    """Method: our name is answered to from elsewhere; its turn must not be taken in its name."""
    with dg.DagsterInstance.ephemeral() as instance:
        scene = Scene(instance, SHAPES["embedded"])
        scene.commit()
        for node in scene.shape.own:
            scene.register(node, "another-instance")
            row = next(n for n in scene.store.pulse(scene.stream.key).nodes if n.name == node)
            taken = replace(row, incarnation=f"{node}-2", address="another-instance")
            scene.store.register(
                scene.stream.key, taken, observer="test", displaced_lease_id=row.lease_id
            )
        result = scene.tick(on_commit_step(scene.stream, scene.deployment))
        assert "No live node of the group belongs to this deployment" in result.line
        assert scene.calls == []
