"""Deployments with agents in the simulated group: they take part, and a broken one is found."""

from __future__ import annotations

import pytest

from dagster_leasehold.lease_store.errors import OutcomeUnknown
from dagster_leasehold.lease_store.member import Member
from tests.simulation.protocol import Faults, Parts, SeedOutcome, SimulationConfig, fleet, run_seed
from tests.simulation.protocol.consumption import consume

SEEDS = 24


def outcome(seed: int) -> SeedOutcome:
    config = SimulationConfig(nodes=4, faults=Faults.SWARM, seed=seed, steps=500)
    return run_seed(config, seed, Parts(consume))


@pytest.fixture(autouse=True)
def agents_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "AGENTS_SHARE", 1.0)
    monkeypatch.setattr(fleet, "CLIENTS_SHARE", 0.0)


def test_nodes_with_agents_consume_in_runs_of_the_sensors() -> None:
    outcomes = [outcome(seed) for seed in range(SEEDS)]
    assert [violation for each in outcomes for violation in each.violations] == []
    assert sum(each.statements["commit"] > 0 for each in outcomes) >= SEEDS / 2


def test_the_simulation_finds_an_agent_that_does_not_repeat_a_lost_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It keeps beating for a row that contradicts its last change."""

    def keep(self: Member, *, accepts_runs: bool, joins: bool) -> str:
        try:
            return sends_again(self, accepts_runs=accepts_runs, joins=joins)
        except OutcomeUnknown:
            self._silent = True  # pyright: ignore
            return ""

    sends_again = Member.keep_alive

    def silent(self: Member, *, accepts_runs: bool, joins: bool) -> str:
        gone = hasattr(self, "_silent")
        return "" if gone else keep(self, accepts_runs=accepts_runs, joins=joins)

    monkeypatch.setattr(Member, "keep_alive", silent)
    assert any(outcome(seed).violations for seed in range(SEEDS))
