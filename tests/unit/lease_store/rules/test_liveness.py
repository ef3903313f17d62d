"""Liveness by own memory and own clock."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.liveness import (
    Observations,
    PlannerWatch,
    parse_memory,
    steady_clock,
)
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from tests.manual_clock import ManualClock

A = NodeName("node-a")
B = NodeName("node-b")
SHARD = ShardId("0")
T = 20.0


def row(name: NodeName = A, lease_id: int = 1, incarnation: str = "first") -> Node:
    return Node(name, lease_id, incarnation)


def moving(lease_id: int = 1) -> ShardLease:
    return ShardLease(SHARD, ShardState.TRANSFER, lease_id, B, A)


def test_the_first_observation_of_a_node_starts_the_count() -> None:
    clock = ManualClock()
    observations = Observations(clock)
    observations.record_nodes([row(lease_id=999)], T)
    assert observations.unchanged_s(A) == 0
    clock.now_s += 20
    assert observations.lapsed(20) == {}
    clock.now_s += 0.1
    assert observations.lapsed(20) == {A: 999}


@pytest.mark.parametrize("changed", [row(lease_id=2), row(lease_id=0), row(incarnation="second")])
def test_any_change_restarts_the_count(changed: Node) -> None:
    clock = ManualClock()
    observations = Observations(clock)
    observations.record_nodes([row()], T)
    clock.now_s += 19
    observations.record_nodes([changed], T)
    clock.now_s += 19
    assert observations.lapsed(20) == {}
    assert observations.unchanged_s(A) == 19


def watched(
    looks: list[float | None], clock: ManualClock, observations: Observations
) -> Observations:
    """Observe after each interval; None is an observation that fails after 5 s."""
    for interval_s in looks:
        clock.now_s += interval_s or 5.0
        if interval_s is None:
            observations.record_failed_read()
        else:
            observations.record_nodes([row()], T)
            observations.record_transfers([moving()])
    return observations


@pytest.mark.parametrize(
    ("looks", "silent_s"),
    [
        ([5, 5, 5], 15),
        # Only the first successful observation shows how long there was none.
        ([5, None, 1, 5], 10),
        ([5, None, None, None, 5, 5], 5),
        ([5, *[None] * 60, 5], 0),
        # Asleep with its whole machine, for instance: no observation failed, and none was made.
        ([5, 3600, 0.5], 17.5),
    ],
)
def test_time_without_observations_does_not_count_as_silence(
    looks: list[float | None], silent_s: float
) -> None:
    clock = ManualClock()
    observations = Observations(clock)
    observations.record_nodes([row()], T)
    observations.record_transfers([moving()])
    watched(looks, clock, observations)
    assert observations.unchanged_s(A) == silent_s
    assert observations.transfer_s(SHARD) == silent_s
    assert observations.lapsed(T) == {}


@given(
    st.lists(st.one_of(st.none(), st.floats(0.1, 100)), min_size=1, max_size=30),
    st.floats(0, T / 3),
)
def test_a_node_that_beats_in_time_survives_every_gap_of_observations(
    looks: list[float | None], before_s: float
) -> None:
    """At the first observation after a gap, a node that beat in time has not expired."""
    clock = ManualClock()
    observations = Observations(clock)
    observations.record_nodes([row()], T)
    clock.now_s += before_s
    observations.record_nodes([row()], T)
    blind = [None, *looks, None]
    for _ in blind:
        clock.now_s += 5.0
        observations.record_failed_read()
    clock.now_s += 500.0
    observations.record_nodes([row()], T)
    assert observations.lapsed(T) == {}
    assert observations.unchanged_s(A) == 0


@given(st.floats(0.1, 60))
def test_a_silent_node_expires_for_every_pace_of_observation(interval_s: float) -> None:
    clock = ManualClock()
    observations = Observations(clock)
    watched([interval_s] * (int(T / min(interval_s, 0.6 * T)) + 3), clock, observations)
    assert observations.lapsed(T) == {A: 1}


def test_a_node_without_an_incarnation_is_forgotten() -> None:
    clock = ManualClock()
    observations = Observations(clock)
    observations.record_nodes([row()], T)
    clock.now_s += 30
    observations.record_nodes([row(incarnation="")], T)
    assert observations.lapsed(20) == {}
    observations.record_nodes([row()], T)
    assert observations.unchanged_s(A) == 0


def test_a_successor_continues_and_the_time_between_does_not_count() -> None:
    clock = ManualClock()
    observations = Observations(clock)
    observations.record_nodes([row()], T)
    observations.record_transfers([moving()])
    watched([8, 7.99], clock, observations)
    clock.now_s += 3  # no observation since
    text = observations.remember()

    later = ManualClock(now_s=5.0)
    successor = Observations.recall(text, later)
    successor.record_nodes([row()], T)
    successor.record_transfers([moving()])
    assert successor.unchanged_s(A) == pytest.approx(15.9)
    assert successor.transfer_s(SHARD) == pytest.approx(15.9)
    later.now_s += 4.2
    assert successor.lapsed(20) == {A: 1}


def test_a_successor_that_finds_another_value_starts_again() -> None:
    clock = ManualClock()
    observations = Observations(clock)
    observations.record_nodes([row()], T)
    clock.now_s += 19
    successor = Observations.recall(observations.remember(), clock)
    successor.record_nodes([row(lease_id=2)], T)
    assert successor.unchanged_s(A) == 0


@given(st.lists(st.tuples(st.floats(0, 60), st.booleans()), max_size=30))
def test_remembering_never_lengthens_a_silence(steps: list[tuple[float, bool]]) -> None:
    """A chain of processes with separate clocks, against one that never restarts."""
    clock = ManualClock()
    always = Observations(clock)
    chained = Observations(clock)
    for pause_s, restarts in steps:
        always.record_nodes([row()], T)
        chained.record_nodes([row()], T)
        clock.now_s += pause_s
        if restarts:
            chained = Observations.recall(chained.remember(), clock)
        assert chained.unchanged_s(A) <= always.unchanged_s(A) + 1e-6


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        '{"format":2,"nodes":{"node-a":[1,5.0,"x"]}}',
        '{"format":1,"nodes":[]}',
        '{"format":1,"nodes":{"node-a":5}}',
        '{"format":1,"nodes":{"node-a":["1",5.0,"x"]}}',
        '{"format":1,"nodes":{"node-a":[1,-5.0,"x"]}}',
        '{"format":1,"nodes":{"node-a":[1,NaN,"x"]}}',
        '{"format":1,"nodes":{"node-a":[1,Infinity,"x"]}}',
        '{"format":1,"nodes":{"node-a":[true,true,"x"]}}',
        '{"format":1,"nodes":{"../etc":[1,30.0,"x"]}}',
        '{"format":1,"transfers":{"":[1,30.0]}}',
        "[" * 100_000,
    ],
)
def test_a_corrupt_memory_is_no_memory(text: str) -> None:
    observations = Observations.recall(text, ManualClock())
    observations.record_nodes([row()], T)
    assert observations.lapsed(0) == {}
    assert observations.transfer_s(SHARD) == 0


@given(st.text(max_size=200))
def test_any_text_can_be_recalled(text: str) -> None:
    assert Observations.recall(text, ManualClock()).lapsed(0) == {}


def test_the_stored_observations_stay_small() -> None:
    clock = ManualClock()
    observations = Observations(clock)
    nodes = [Node(NodeName(f"node-{i:060}"[:64]), i, "i" * 36) for i in range(100)]
    observations.record_nodes(nodes, T)
    leases = [ShardLease(ShardId(f"s{i}"), ShardState.TRANSFER, 1, A, B) for i in range(10_000)]
    observations.record_transfers(leases)
    assert len(observations.remember()) < 30_000


def test_callers_can_store_more_beside_observations() -> None:
    text = Observations(ManualClock()).remember(incarnations={"node-a": "x"})
    assert parse_memory(text).incarnations == {"node-a": "x"}
    assert json.loads(text)["format"] == 1


def test_the_steady_clock_does_not_step_back() -> None:
    readings = [steady_clock() for _ in range(1000)]
    assert readings == sorted(readings)


def test_a_planner_with_new_marks_is_never_silent() -> None:
    clock = ManualClock()
    watch = PlannerWatch(clock, interval_max_s=4.0)
    for tick in range(100):
        watch.record_mark(f"mark-{tick // 3}")
        assert watch.silent_s <= 4.0
        clock.now_s += 2.0


def test_a_planner_is_silent_while_its_mark_is_observed_unchanged() -> None:
    clock = ManualClock()
    watch = PlannerWatch(clock, interval_max_s=4.0)
    watch.record_mark("one")
    for _ in range(20):
        clock.now_s += 2.0
        watch.record_mark("one")
    assert watch.silent_s == 40.0
    watch.record_mark("two")
    assert watch.silent_s == 0.0


def test_a_planner_without_a_mark_is_not_judged() -> None:
    clock = ManualClock()
    watch = PlannerWatch(clock, interval_max_s=4.0)
    for _ in range(100):
        clock.now_s += 2.0
        watch.record_mark("")
    assert watch.silent_s == 0.0


def test_an_observer_that_slept_does_not_count_that_time_as_silence() -> None:
    clock = ManualClock()
    watch = PlannerWatch(clock, interval_max_s=4.0)
    watch.record_mark("one")
    clock.now_s += 3_600.0
    watch.record_mark("one")
    assert watch.silent_s == 4.0


def test_an_outage_of_the_lease_store_is_no_silence_of_the_planner() -> None:
    clock = ManualClock()
    watch = PlannerWatch(clock, interval_max_s=4.0)
    for _ in range(100):
        clock.now_s += 2.0
        watch.record_failed_read()
        watch.record_mark("one")
    assert watch.silent_s == 0.0
    clock.now_s += 2.0
    watch.record_mark("one")
    assert watch.silent_s == 2.0


def test_unreadable_marks_count_as_silence_until_the_next_answer() -> None:
    """The planner then has the whole time again to show that it ticks."""
    clock = ManualClock()
    watch = PlannerWatch(clock, interval_max_s=4.0)
    watch.record_mark("one")
    for _ in range(30):
        clock.now_s += 2.0
        watch.record_mark(None)
    assert watch.silent_s == 60.0
    clock.now_s += 2.0
    watch.record_mark("one")
    assert watch.silent_s == 0.0
    clock.now_s += 2.0
    watch.record_mark("one")
    assert watch.silent_s == 2.0
