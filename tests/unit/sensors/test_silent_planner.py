"""Two deployments with agents on one lease store, and shards of a deployment whose daemon is down.

Sensors, memberships and store are real. One clock is advanced by hand, and a deployment's daemon is
down while its sensor is not ticked. Its agents keep beating.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import dagster as dg
import pytest

from dagster_leasehold.assets.deployment import ensure_instance_address
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import StoreUnavailable
from dagster_leasehold.lease_store.group_rows import Node, Pulse
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.member import PLANNER_READ_S, Member
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.sensors.rebalance import rebalance_step
from dagster_leasehold.sensors.shard_list import sync_listing
from dagster_leasehold.sensors.tick_mark import tick_marks
from tests.unit.sensors.streams import memory_deployment, run_step, scripted_stream

C = NodeName("c")
SHARDS = 12
TIMEOUT_S, TICK_S = 20.0, 5.0


class Store(MemoryStore):
    """A lease store that a test takes away."""

    away = False

    def pulse(self, key: GroupKey, node: NodeName | None = None) -> Pulse:
        if self.away:
            raise StoreUnavailable("The lease store does not answer.")
        return super().pulse(key, node)


class Site:
    """One Dagster deployment: a sensor, and the agents of two nodes."""

    def __init__(
        self, world: World, names: str, instance: dg.DagsterInstance, stream: ShardStream
    ) -> None:
        self.instance = instance
        self.ticking, self.readable = True, True
        address = ensure_instance_address(instance)
        deployment = replace(memory_deployment(store=world.store)[0], agents=True)
        self.step = rebalance_step(stream, deployment, world.clock)
        self.cursor: str | None = None
        self.agents = [
            Member(
                world.store,
                stream.key,
                Node(NodeName(name), 0, f"{name}-1", address),
                clock=world.clock,
            )
            for name in names
        ]

    def tick(self) -> None:
        self.cursor = run_step(self.step, self.instance, self.cursor).cursor

    def look(self) -> None:
        for agent in self.agents:
            marks = tick_marks(self.instance, [agent.key]) if self.readable else None
            agent.record_planner_mark(marks[agent.key] if marks else None)

    def beat(self) -> None:
        for agent in self.agents:
            try:
                agent.keep_alive(accepts_runs=True)
            except StoreUnavailable:
                continue


class World:
    """Sites over one store, and the time."""

    def __init__(self, first: dg.DagsterInstance, second: dg.DagsterInstance) -> None:
        self.now = 0.0
        self.store = Store()
        self.stream, _ = scripted_stream(SHARDS)
        self.key = self.stream.key
        sync_listing(self.store, self.stream, self.stream.source.list_shards(), timeout_s=TIMEOUT_S)
        self.east = Site(self, "ab", first, self.stream)
        self.west = Site(self, "cd", second, self.stream)
        self.sites = [self.east, self.west]

    def clock(self) -> float:
        return self.now

    def run(self, seconds: float) -> None:
        """Advance time: agents beat each second and check every other one, sensors tick
        each fifth.
        """
        for _ in range(int(seconds)):
            self.now += 1.0
            for site in self.sites:
                if self.now % PLANNER_READ_S == 0:
                    site.look()
                site.beat()
                if site.ticking and self.now % TICK_S == 0:
                    site.tick()

    def owners(self) -> Counter[str | None]:
        return Counter(row.consumer_owner for row in self.store.snapshot(self.key).shards)

    def moves(self) -> int:
        return sum(entry.kind == "edge" for entry in self.store.journal(self.key))


@pytest.fixture
def world() -> Iterator[World]:
    with ExitStack() as stack:
        instances = [stack.enter_context(dg.DagsterInstance.ephemeral()) for _ in range(2)]
        made = World(*instances)
        made.run(30)
        assert made.owners() == dict.fromkeys("abcd", 3)
        yield made


def test_the_live_deployment_gets_all_shards_and_returns_them(world: World) -> None:
    world.west.ticking = False
    world.run(2 * TIMEOUT_S)
    assert world.owners() == dict.fromkeys("abcd", 3), "a daemon may start again within 2 T"
    world.run(20)
    assert world.owners() == {"a": 6, "b": 6}
    moves = world.moves()
    world.run(300)
    assert world.moves() == moves, "nothing flaps while it stays down"
    world.west.ticking = True
    world.run(20)
    assert world.owners() == dict.fromkeys("abcd", 3)
    # A transfer of an idle shard is two edges; each of six went there and back once.
    assert world.moves() - moves == 2 * 6


def test_an_outage_of_all_daemons_moves_no_shard(world: World) -> None:
    moves = world.moves()
    for site in world.sites:
        site.ticking = False
    world.run(300)
    assert world.owners() == dict.fromkeys("abcd", 3)
    assert world.moves() == moves
    for site in world.sites:
        site.ticking = True
    world.run(60)
    assert world.owners() == dict.fromkeys("abcd", 3)
    assert world.moves() == moves


def test_a_working_run_releases_a_shard_after_its_batch(world: World) -> None:
    row = next(r for r in world.store.snapshot(world.key).shards if r.consumer_owner == "c")
    opened = world.store.open_tenure(world.key, row.shard, C, "run")
    assert isinstance(opened, Opened)
    world.west.ticking = False
    world.run(60)
    assert world.owners()[C] == 1, "its checkpoint is made first"
    world.store.close_tenure(opened.tenure, reason="stop_requested")
    assert world.owners()[C] == 0


def test_an_outage_of_the_lease_store_does_not_count_as_silence(world: World) -> None:
    moves = world.moves()
    world.store.away = True
    world.run(300)
    world.store.away = False
    world.run(120)
    assert world.owners() == dict.fromkeys("abcd", 3)
    assert world.moves() == moves


def test_a_deployment_without_its_storage_loses_its_shards_to_the_other(world: World) -> None:
    world.west.readable = world.west.ticking = False
    world.run(2 * TIMEOUT_S + 20)
    assert world.owners() == {"a": 6, "b": 6}
    world.west.readable = world.west.ticking = True
    world.run(30)
    assert world.owners() == dict.fromkeys("abcd", 3)
