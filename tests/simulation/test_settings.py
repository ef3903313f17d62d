"""Settings of nodes that change while they work, under seeded faults."""

from __future__ import annotations

import pytest

from dagster_leasehold.lease_store.group_rows import AssignmentMode
from dagster_leasehold.lease_store.membership import Membership
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.served_nodes import ServedNodes
from tests.simulation.protocol import Faults, Parts, SimulationConfig, run_seed
from tests.simulation.protocol.consumption import consume

SEED = 4


def resign_hastily(_: ServedNodes, member: Membership) -> bool:
    """Leave at once when settings contradict the others', whatever the node's runs have open."""
    return isinstance(member.leave(), Changed)


def test_a_node_that_leaves_while_its_runs_work_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimulationConfig(
        nodes=4, shards=39, mode=AssignmentMode.MODULO, faults=Faults.SWARM, seed=SEED
    )
    assert run_seed(config, SEED, Parts(consume)).violations == ()
    monkeypatch.setattr(ServedNodes, "_resign", resign_hastily)
    hasty = run_seed(config, SEED, Parts(consume))
    assert any("was left while it still trusted itself" in each for each in hasty.violations)
