"""Reports of simulations: the settings decide everything, and the figures are the proven ones."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.lease_store.group_rows import AssignmentMode
from tests.simulation.protocol import Parts, run_simulation
from tests.simulation.protocol.configuration import (
    Arrival,
    Event,
    EventKind,
    Faults,
    SimulationConfig,
)
from tests.simulation.protocol.consumption import consume


def report(**fields: Any) -> dict[str, Any]:
    events = tuple(map(Event.parse, fields.pop("events", ())))
    outcome = run_simulation(SimulationConfig(events=events, **fields), Parts(consume))
    assert outcome["violations"] == []
    return outcome


def test_nodes_that_join_together_settle_in_one_round_with_the_fewest_moves() -> None:
    outcome = report(nodes=3, shards=8)
    assert outcome["rounds"] == 1
    assert outcome["moves"] == outcome["moves_minimum"] == 8
    assert outcome["counts"] == [3, 3, 2]
    assert outcome["spread"] == 1
    assert outcome["violations"] == []
    assert set(outcome) == {
        "seed", "seeds", "steps", "virtual_s", "rounds", "moves", "moves_minimum", "spread",
        "counts", "takeover_s", "statements", "violations",
    }  # fmt: skip


@pytest.mark.parametrize(("nodes", "shards"), [(1, 5), (2, 7), (5, 20), (7, 3)])
def test_nodes_that_join_one_by_one_move_only_their_shares(nodes: int, shards: int) -> None:
    outcome = report(nodes=nodes, shards=shards, arrive=Arrival.ONE_BY_ONE)
    joined = sum(shards // number for number in range(2, nodes + 1))
    assert outcome["moves"] == outcome["moves_minimum"] == shards + joined
    assert outcome["spread"] <= 1


@pytest.mark.parametrize("event", ["join:2@400", "leave@400", "leave:2@400", "crash@400"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_change_of_members_costs_the_proven_minimum(event: str, seed: int) -> None:
    outcome = report(nodes=4, shards=13, seed=seed, steps=1000, events=[event])
    assert outcome["moves"] == outcome["moves_minimum"] > 13
    assert outcome["rounds"] == 1
    assert outcome["spread"] <= 1


@pytest.mark.parametrize("step", range(20, 140, 15))
def test_no_group_makes_fewer_moves_than_the_fewest_possible(step: int) -> None:
    """A node may join while the others still claim their first shards: that is one change."""
    outcome = report(shards=40, nodes=5, events=[f"join:1@{step}"])
    assert 40 <= outcome["moves_minimum"] <= outcome["moves"] <= 46


@pytest.mark.parametrize("seconds", [31, 60, 300])
def test_an_outage_of_the_store_moves_no_shard(seconds: int) -> None:
    outcome = report(nodes=5, shards=50, seeds=3, events=[f"outage:{seconds}@800"])
    assert outcome["moves"] == outcome["moves_minimum"] == 3 * 50
    assert "evict" not in outcome["statements"]


def test_a_crash_is_taken_over_within_the_timeout_and_a_tick() -> None:
    outcome = report(timeout_s=20, seeds=5, events=["crash@500"])
    assert 14 < outcome["takeover_s"]["p50"] <= outcome["takeover_s"]["max"] <= 20 + 5 + 5


def test_a_pause_beyond_the_timeout_moves_shards_away_and_back() -> None:
    outcome = report(seed=1, events=["pause@500"])
    assert outcome["takeover_s"]["max"] is not None
    assert outcome["counts"] == [3, 3, 2]


@pytest.mark.parametrize("ordered", [False, True])
def test_children_of_splits_and_merges_are_assigned(ordered: bool) -> None:
    outcome = report(nodes=3, shards=8, ordered=ordered, events=["split:2@300", "merge:2@600"])
    assert sum(outcome["counts"]) == 8 + 2 - 2
    assert outcome["spread"] <= 1


def test_an_idle_tick_costs_three_statements() -> None:
    outcome = report(nodes=1, shards=0, steps=3000)
    statements = outcome["statements"]
    ticks = statements["pulse"]
    assert statements["beat"] <= ticks
    assert statements["progress"] == ticks
    assert outcome["steps"] <= 3 * ticks + 10


def test_modulo_and_pinned_nodes_claim_the_shards_of_their_settings() -> None:
    for mode in (AssignmentMode.MODULO, AssignmentMode.PINNED):
        assert report(mode=mode, nodes=3, shards=9)["counts"] == [3, 3, 3]
        lost = report(mode=mode, nodes=3, shards=9, events=["crash@300"])
        assert lost["counts"] == [3, 3]


def test_the_same_options_give_the_same_report() -> None:
    first, second = (report(faults=Faults.SWARM, seed=11, seeds=2, steps=500) for _ in range(2))
    assert first == second


def test_all_delays_scale_with_the_timeout() -> None:
    # Early: a store call takes as long for every timeout, and shifts later events.
    short = report(timeout_s=2, events=["crash@300"])["takeover_s"]["max"]
    long = report(timeout_s=200, events=["crash@300"])["takeover_s"]["max"]
    assert math.isclose(long, 100 * short, rel_tol=0.05)


def test_a_violation_is_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tests.simulation.protocol.world.Convergence.unsettled", lambda _: ["as planned"]
    )
    outcome = run_simulation(SimulationConfig(steps=50), Parts(consume))
    assert "as planned" in outcome["violations"][0]


@pytest.mark.parametrize(
    "text", ["", "crash", "crash@", "crash:0@5", "melt@5", "crash@-1", "crash:x@5", "crash@5 "]
)
def test_an_event_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match="is not an event: use KIND"):
        Event.parse(text)


def test_event_options_are_parsed() -> None:
    assert Event.parse("crash:2@500") == Event(EventKind.CRASH, 2, 500)
    assert Event.parse("join@0") == Event(EventKind.JOIN, 1, 0)


@pytest.mark.parametrize(
    "fields", [{"nodes": 0}, {"shards": -1}, {"timeout_s": 0}, {"seeds": 0}, {"steps": 0}]
)
def test_numbers_out_of_range_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(InvalidSetting, match="The simulation's"):
        SimulationConfig(**fields)
