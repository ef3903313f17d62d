"""Runs that follow their shards in the simulated group: they wait, and a broken one is found."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.mutants import MUTANTS, TakesNoAnswerForNo, through
from tests.simulation.protocol import (
    Faults,
    Parts,
    SimulationConfig,
    configuration,
    run_seed,
    waiting_runs,
)
from tests.simulation.protocol.configuration import FaultRates
from tests.simulation.protocol.consumption import consume
from tests.simulation.test_protocol import config

SEEDS = range(10)
LOSSES = range(349, 354)
"""Seeds with one that loses the decisive reply: most lost replies do no harm."""
TROUBLE = FaultRates(
    pause_group=0.008, leave=0.01, join=0.01, force_checkpoint=0.02, pause_host=0.01
)
MET = {
    "waited",
    "hand-over",
    "pause",
    "loss",
    "its host is to leave",
    "its definition is not the newest",
    "its lease is not to be relied on",
}


def test_waiting_runs_handle_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss is a forced checkpoint, an eviction, or a launcher that takes the run for ended."""
    monkeypatch.setattr(configuration, "FOLLOWING_SHARE", 1.0)
    monkeypatch.setattr(FaultRates, "swarm", lambda _: TROUBLE)
    monkeypatch.setattr(waiting_runs, "WISH_RATE", 0.006)
    met: Counter[str] = Counter()
    for seed in SEEDS:
        config_ = SimulationConfig(nodes=4, shards=12, faults=Faults.SWARM, steps=1_500)
        outcome = run_seed(config_, seed, Parts(consume))
        assert outcome.violations == ()
        met += outcome.waits
    assert set(met) == MET


def test_both_kinds_of_runs_are_simulated() -> None:
    follow = [configuration.FollowingPace.of_seed(seed) is not None for seed in range(100)]
    assert 40 <= sum(follow) <= 60
    ends = [run_seed(config(seed, steps=300), seed, Parts(consume)).waits for seed in range(8)]
    assert not any(waits for waits, follows in zip(ends, follow, strict=False) if not follows)
    assert sum(bool(waits) for waits in ends) >= 2


def test_the_simulation_finds_a_run_that_ignores_a_missing_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It continues with its other shards, and permanently holds shards that it could have
    opened.
    """
    monkeypatch.setattr(configuration, "FOLLOWING_SHARE", 1.0)
    monkeypatch.setattr(
        FaultRates, "swarm", lambda _: FaultRates(lost_before=0.03, lost_after=0.03)
    )
    config_ = SimulationConfig(nodes=4, shards=12, faults=Faults.SWARM, steps=1_500)
    broken = {seed: run_seed(config_, seed, Parts(through(TakesNoAnswerForNo))) for seed in LOSSES}
    violations = {
        seed: outcome.violations[0] for seed, outcome in broken.items() if outcome.violations
    }
    assert violations
    for seed, violation in violations.items():
        assert violation.startswith("I15: run-")
        assert "open, which it was asked for" in violation
        assert run_seed(config_, seed, Parts(consume)).violations == ()


def test_two_mutants_change_following_runs() -> None:
    """They do no harm where runs end once all is read, so that no other seed may find them."""
    names = {mutant.name for mutant in MUTANTS if mutant.history == "Leasehold"}
    assert names == {"nobody heard while waiting", "no look while waiting"}
