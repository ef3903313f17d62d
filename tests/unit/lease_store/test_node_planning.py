"""Planning for one node beside other planners: its observations, its reads, its gains."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
from typing_extensions import override

from dagster_leasehold.lease_store.errors import StoreUnavailable
from dagster_leasehold.lease_store.group_rows import Node, Pulse
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.node_planning import NODES_PER_SECOND, PAUSE, NodePlanner
from dagster_leasehold.lease_store.rules.isolation import Suspicion
from dagster_leasehold.lease_store.rules.states import ShardState
from tests.unit.lease_store.scene import KEY, TIMING, Scene

A, B, C = map(NodeName, "abc")
TIMEOUT_S = TIMING.timeout_s
SUSPICION = Suspicion(failure="it hangs", records=4, remaining=8)


class Store(MemoryStore):
    """A store that counts the rows of nodes that it sends, and whose reads take time."""

    look_s = 0.0
    away = False

    def __init__(self) -> None:
        super().__init__()
        self.rows = Counter[str]()
        self.scene: Scene | None = None

    @override
    def pulse(self, key: GroupKey, node: NodeName | None = None) -> Pulse:
        if self.scene is not None:
            self.scene.now += self.look_s
        if self.away:
            self.rows["away"] += 1
            raise StoreUnavailable("The lease store does not answer.")
        pulse = super().pulse(key, node)
        self.rows["pulses"] += 1
        self.rows["nodes"] += len(pulse.nodes)
        return pulse


class Place:
    """A group whose nodes are kept alive by hand, each with a separate planner."""

    def __init__(self, *nodes: NodeName, shards: int = 6) -> None:
        self.store = Store()
        self.scene = self.store.scene = Scene(shards, self.store)
        self.alive = list(nodes)
        for node in nodes:
            self.store.register(KEY, Node(node, 0, f"{node}-1"), observer="test")
        self.planners = {node: self.planner(node) for node in nodes}

    def planner(self, node: NodeName) -> NodePlanner:
        return NodePlanner(
            self.store, KEY, node, observer=f"agent of {node}", clock=lambda: self.scene.now
        )

    def run(self, seconds: int, *, plans: bool = True) -> None:
        """Let seconds pass: each living node beats every sixth, and plans in each."""
        for _ in range(seconds):
            self.scene.now += 1.0
            for node in self.alive:
                if round(self.scene.now) % 6 == 0:
                    self.store.beat(KEY, node, f"{node}-1")
                if plans:
                    self.planners[node].plan()

    def held(self) -> Counter[str | None]:
        return Counter(self.scene.owners().values())


def test_nodes_share_the_shards_without_a_central_planner() -> None:
    place = Place(A, B, C)
    place.run(3)
    assert place.held() == {A: 2, B: 2, C: 2}
    observers = {entry.observer for entry in place.store.journal(KEY) if entry.edge == 3}
    assert observers == {"agent of a", "agent of b", "agent of c"}


def test_a_node_that_dies_is_evicted_a_timeout_after_its_last_beat() -> None:
    place = Place(A, B, C)
    place.run(6)
    place.alive.remove(C)
    place.run(int(TIMEOUT_S))
    assert place.held()[C] == 2, "it may still trust itself"
    place.run(3)
    assert place.held() == {A: 3, B: 3}


def test_neighbours_that_die_together_are_evicted_one_after_the_other() -> None:
    place = Place(A, B, C)
    place.run(6)
    place.alive = [A]
    place.run(int(TIMEOUT_S) + 3)
    assert place.held()[B] == 0
    place.run(int(TIMEOUT_S) + 3)
    assert place.held() == {A: 6}


def test_a_lone_node_is_not_evicted() -> None:
    place = Place(A)
    place.run(100)
    assert place.held() == {A: 6}
    assert all(node.member for node in place.store.snapshot(KEY).nodes)


def test_a_settled_group_costs_each_planner_one_row_a_second() -> None:
    place = Place(A, B, C)
    place.run(10)
    place.store.rows.clear()
    place.run(30)
    assert place.store.rows == {"pulses": 3 * 30, "nodes": 3 * 30}


def test_nodes_of_a_larger_group_check_less_often() -> None:
    nodes = [NodeName(f"node-{number}") for number in range(3 * NODES_PER_SECOND)]
    place = Place(*nodes, shards=1)
    first = nodes[0]
    place.alive = [first]
    place.run(1)
    place.store.rows.clear()
    place.run(30)
    assert place.store.rows["pulses"] == 10


def test_a_planner_works_for_a_tenth_of_the_time_at_most() -> None:
    place = Place(A)
    place.run(1)
    place.store.rows.clear()
    place.store.look_s = 2.0
    began_s = place.scene.now
    for _ in range(100):
        place.scene.now += 0.5
        place.planners[A].plan()
    worked_s = place.store.rows["pulses"] * place.store.look_s
    assert 0 < worked_s <= (place.scene.now - began_s) / (1 + PAUSE) + place.store.look_s


def test_an_unavailable_store_is_retried_after_a_second_and_no_node_is_evicted() -> None:
    """Method: each call takes six seconds before it fails."""
    place = Place(A, B)
    place.run(6)
    place.store.away, place.store.look_s = True, 6.0
    began_s = place.scene.now
    while place.scene.now < began_s + 2 * TIMEOUT_S:
        place.scene.now += 0.5
        with suppress(StoreUnavailable):
            place.planners[A].plan()
    assert place.store.rows["away"] == 2 * TIMEOUT_S // 7 + 1
    place.store.away, place.store.look_s = False, 0.0
    place.run(int(TIMEOUT_S) - 1)
    assert place.held() == {A: 3, B: 3}


@pytest.fixture
def gaining() -> Place:
    """A group of two nodes whose second one has died, and not been evicted yet."""
    place = Place(A, B)
    place.run(6)
    assert place.planners[A].gained("run") == ()
    place.alive.remove(B)
    return place


def gain(place: Place) -> tuple[ShardId, ...]:
    """Let the planner of `a` evict and claim, and return the shards that it gives to a run."""
    for _ in range(int(TIMEOUT_S) + 2):
        place.scene.now += 1.0
        if round(place.scene.now) % 6 == 0:
            place.store.beat(KEY, A, "a-1")
        if gained := place.planners[A].gained("run"):
            return gained
    return ()


def test_a_node_passes_gained_shards_to_its_run(gaining: Place) -> None:
    before = {ShardId(row) for row, node in gaining.scene.owners().items() if node == B}
    assert len(before) == 3
    assert set(gain(gaining)) == before
    assert gain(gaining) == (), "each of them is handed out once"


def test_a_gained_shard_that_needs_a_separate_run_is_left_to_the_launcher(gaining: Place) -> None:
    shard = next(row for row, node in gaining.scene.owners().items() if node == B)
    tenure = gaining.scene.open(shard, "run-1").tenure
    gaining.store.suspect(tenure, SUSPICION, abandon=False)
    gaining.store.close_tenure(tenure, reason="it gave up", attempt_failed=True)
    gained = gain(gaining)
    assert len(gained) == 2
    assert shard not in gained


def test_a_searching_run_opens_no_other_shard(gaining: Place) -> None:
    shard = next(row for row, node in gaining.scene.owners().items() if node == A)
    gaining.store.suspect(gaining.scene.open(shard, "run").tenure, SUSPICION, abandon=False)
    assert gain(gaining) == ()
    assert gaining.held() == {A: 6}, "the node has them all the same"


def test_a_run_of_a_paused_group_gains_no_shard(gaining: Place) -> None:
    group = gaining.store.snapshot(KEY).group
    gaining.store.update_group(replace(group, paused=True), observer="test")
    assert gain(gaining) == ()


def test_two_planners_of_one_node_claim_each_shard_once() -> None:
    place = Place(A)
    agent, run = place.planners[A], place.planner(A)
    agent.plan()
    run.plan()
    claims = Counter(entry.shard for entry in place.store.journal(KEY) if entry.edge == 3)
    assert set(claims.values()) == {1}
    assert len(claims) == 6
    assert all(row.state is ShardState.ALREADY_ALLOC for row in place.store.snapshot(KEY).shards)
