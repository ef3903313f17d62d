"""`leasehold simulate`: options in, report out."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.orchestration.commands.simulate import simulate
from dagster_leasehold.simulation.configuration import Event, EventKind, SimulationConfig

app = typer.Typer()
app.command()(simulate)


def report(*options: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["--json", *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_nodes_that_come_together_need_one_round_and_no_move_too_many() -> None:
    outcome = report("--nodes", "3", "--shards", "8")
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
def test_nodes_that_come_one_by_one_move_the_share_of_each_newcomer(
    nodes: int, shards: int
) -> None:
    outcome = report("--nodes", str(nodes), "--shards", str(shards), "--arrive", "one-by-one")
    joined = sum(shards // number for number in range(2, nodes + 1))
    assert outcome["moves"] == outcome["moves_minimum"] == shards + joined
    assert outcome["spread"] <= 1


@pytest.mark.parametrize("event", ["join:2@400", "leave@400", "leave:2@400", "crash@400"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_change_of_members_costs_the_proven_minimum(event: str, seed: int) -> None:
    outcome = report(
        "--nodes", "4", "--shards", "13", "--event", event, "--seed", str(seed), "--steps", "1000"
    )
    assert outcome["moves"] == outcome["moves_minimum"] > 13
    assert outcome["rounds"] == 1
    assert outcome["spread"] <= 1


@pytest.mark.parametrize("step", range(20, 140, 15))
def test_no_group_makes_fewer_moves_than_the_fewest_possible(step: int) -> None:
    """A node may join while the others still claim their first shards: that is one change."""
    outcome = report("--shards", "40", "--nodes", "5", "--event", f"join:1@{step}")
    assert 40 <= outcome["moves_minimum"] <= outcome["moves"] <= 46


@pytest.mark.parametrize("seconds", [31, 60, 300])
def test_an_outage_of_the_store_moves_nothing(seconds: int) -> None:
    outcome = report(
        "--nodes", "5", "--shards", "50", "--event", f"outage:{seconds}@800", "--seeds", "3"
    )
    assert outcome["moves"] == outcome["moves_minimum"] == 3 * 50
    assert "evict" not in outcome["statements"]


def test_a_crash_is_taken_over_within_the_timeout_and_a_tick() -> None:
    outcome = report("--event", "crash@500", "--timeout", "20", "--seeds", "5")
    assert 14 < outcome["takeover_s"]["p50"] <= outcome["takeover_s"]["max"] <= 20 + 5 + 5


def test_a_pause_beyond_the_timeout_costs_a_take_over_and_a_return() -> None:
    outcome = report("--event", "pause@500", "--seed", "1")
    assert outcome["takeover_s"]["max"] is not None
    assert outcome["counts"] == [3, 3, 2]


@pytest.mark.parametrize("ordered", [[], ["--ordered"]])
def test_splits_and_merges_are_followed(ordered: list[str]) -> None:
    outcome = report(
        "--nodes",
        "3",
        "--shards",
        "8",
        "--event",
        "split:2@300",
        "--event",
        "merge:2@600",
        *ordered,
    )
    assert sum(outcome["counts"]) == 8 + 2 - 2
    assert outcome["spread"] <= 1


def test_an_idle_tick_costs_three_statements() -> None:
    outcome = report("--nodes", "1", "--shards", "0", "--steps", "3000")
    statements = outcome["statements"]
    ticks = statements["pulse"]
    assert statements["beat"] <= ticks
    assert statements["progress"] == ticks
    assert outcome["steps"] <= 3 * ticks + 10


def test_modulo_and_pinned_nodes_take_what_their_numbers_say() -> None:
    for mode in ("modulo", "pinned"):
        assert report("--mode", mode, "--nodes", "3", "--shards", "9")["counts"] == [3, 3, 3]
        lost = report("--mode", mode, "--nodes", "3", "--shards", "9", "--event", "crash@300")
        assert lost["counts"] == [3, 3]


def test_the_same_options_give_the_same_report() -> None:
    options = ["--faults", "swarm", "--seed", "11", "--seeds", "2", "--steps", "500"]
    assert report(*options) == report(*options)


def test_the_timeout_scales_everything() -> None:
    # Early: a store call takes as long whatever the timeout is, and shifts what comes later.
    short = report("--event", "crash@300", "--timeout", "2")["takeover_s"]["max"]
    long = report("--event", "crash@300", "--timeout", "200")["takeover_s"]["max"]
    assert math.isclose(long, 100 * short, rel_tol=0.05)


def test_for_people_there_is_a_table() -> None:
    result = CliRunner().invoke(app, ["--steps", "300"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "planning rounds after the last change" in result.output
    assert "No violations." in result.output


def test_a_violation_is_exit_code_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dagster_leasehold.simulation.world.Convergence.unsettled", lambda _: ["as planned"]
    )
    result = CliRunner().invoke(app, ["--steps", "50", "--json"], catch_exceptions=False)
    assert result.exit_code == 1
    assert "as planned" in json.loads(result.output)["violations"][0]


@pytest.mark.parametrize(
    "text", ["", "crash", "crash@", "crash:0@5", "melt@5", "crash@-1", "crash:x@5", "crash@5 "]
)
def test_an_event_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match="is not an event: use KIND"):
        Event.parse(text)


def test_events_are_read() -> None:
    assert Event.parse("crash:2@500") == Event(EventKind.CRASH, 2, 500)
    assert Event.parse("join@0") == Event(EventKind.JOIN, 1, 0)


@pytest.mark.parametrize(
    "fields", [{"nodes": 0}, {"shards": -1}, {"timeout_s": 0}, {"seeds": 0}, {"steps": 0}]
)
def test_numbers_out_of_range_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(InvalidSetting, match="The simulation's"):
        SimulationConfig(**fields)
