"""Clients in the simulated group: they take part, and their violations are found."""

from __future__ import annotations

import pytest

from dagster_leasehold.lease_store.client import GroupMember
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.rules.transitions import holds
from dagster_leasehold.lease_store.shard_rows import Tenure
from tests.simulation.protocol import Faults, Parts, SeedOutcome, SimulationConfig, fleet, run_seed
from tests.simulation.protocol.client_host import Session
from tests.simulation.protocol.configuration import FaultRates
from tests.simulation.protocol.consumption import consume

SEEDS = 30
MUTANT_SEEDS_MAX = 60


def outcome(seed: int, parts: Parts | None = None) -> SeedOutcome:
    config = SimulationConfig(nodes=5, faults=Faults.SWARM, seed=seed, steps=500)
    return run_seed(config, seed, parts or Parts(consume))


def test_clients_save_checkpoints_beside_runs_that_commit() -> None:
    outcomes = [outcome(seed) for seed in range(SEEDS)]
    assert [violation for each in outcomes for violation in each.violations] == []
    with_both = [
        each
        for each in outcomes
        if each.statements["save_checkpoint"] and each.statements["commit"]
    ]
    assert len(with_both) >= SEEDS / 10


def test_the_simulation_finds_a_client_that_confirms_unprocessed_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Session, "work", lambda *_: None)
    violations = [violation for seed in range(SEEDS) for violation in outcome(seed).violations]
    assert any(violation.startswith("I3: client ") for violation in violations)


class SavesWithoutToken(MemoryStore):
    """A client can save a checkpoint in the tenure of another client."""

    def save_checkpoint(self, tenure: Tenure, cursor: str) -> None:
        row = self._groups[tenure.key].shards[tenure.shard]
        if row.consumer_run and row.consumer_owner and not holds(row, tenure):
            tenure = Tenure(
                tenure.key, tenure.shard, row.consumer_owner, row.consumer_epoch, row.consumer_run
            )
        super().save_checkpoint(tenure, cursor)


def test_the_simulation_finds_a_store_that_lets_a_stale_client_save(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client stops by its own clock long before it is stale: here that clock is broken, too."""
    monkeypatch.setattr(fleet, "CLIENTS_SHARE", 1.0)
    rates = FaultRates(stalled_reply=0.05, pause_host=0.03, join=0.1)
    monkeypatch.setattr(FaultRates, "swarm", lambda _: rates)
    sound = GroupMember.trusted
    broken = property(lambda member: member.trusted_until > float("-inf"))
    for seed in range(MUTANT_SEEDS_MAX):
        monkeypatch.setattr(GroupMember, "trusted", broken)
        violations = outcome(seed, Parts(consume, store=SavesWithoutToken)).violations
        if any(violation.startswith("I2: run ") for violation in violations):
            monkeypatch.setattr(GroupMember, "trusted", sound)
            assert outcome(seed).violations == ()
            return
    pytest.fail(f"no seed up to {MUTANT_SEEDS_MAX} finds it")
