"""Settings of nodes that change while they work, under seeded faults."""

from __future__ import annotations

from typing import Any

from dagster_leasehold.lease_store.group_rows import AssignmentMode, Node
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.rebalancing import Rebalancer
from dagster_leasehold.orchestration.simulated_consumption import consume
from dagster_leasehold.simulation import Faults, Parts, SimulationConfig, run_seed

SEED = 3


class Hasty(Rebalancer):
    """Leaves at once when its settings contradict the others', whatever its runs have open."""

    def _resign(self, row: Node, wanted: Node) -> bool:
        if row.incarnation != wanted.incarnation:
            return False
        store: Any = self._store
        return isinstance(store.leave(self._key, row.name, row.incarnation), Changed)


def test_a_node_that_leaves_while_its_runs_work_is_found() -> None:
    config = SimulationConfig(
        nodes=4, shards=39, mode=AssignmentMode.MODULO, faults=Faults.SWARM, seed=SEED
    )
    hasty = run_seed(config, SEED, Parts(consume, rebalancer=Hasty))
    assert any("was left while it still trusted itself" in each for each in hasty.violations)
    assert run_seed(config, SEED, Parts(consume)).violations == ()
