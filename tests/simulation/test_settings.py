"""Settings of nodes that change while they work, under seeded faults."""

from __future__ import annotations

import pytest

from dagster_leasehold.lease_store.group_rows import AssignmentMode
from dagster_leasehold.lease_store.member import Member
from tests.simulation.protocol import Faults, Parts, SimulationConfig, run_seed
from tests.simulation.protocol.consumption import consume

SEED = 4


def test_the_simulation_finds_a_node_that_leaves_while_its_runs_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = SimulationConfig(
        nodes=4, shards=39, mode=AssignmentMode.MODULO, faults=Faults.SWARM, seed=SEED
    )
    assert run_seed(config, SEED, Parts(consume)).violations == ()
    # It leaves at once when settings contradict the others', even if its runs have shards open.
    monkeypatch.setattr(Member, "resign", Member.leave)
    hasty = run_seed(config, SEED, Parts(consume))
    assert any("was left while it still trusted itself" in each for each in hasty.violations)
