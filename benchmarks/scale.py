"""Ten thousand shards and a hundred nodes on one MariaDB: ticks, ten nodes that join, ten that die.

`python -m benchmarks.scale [--shards 10000] [--nodes 100] [--changing 10] [--json]` starts a
MariaDB of its own and simulates the nodes: each has the rebalancing of a deployment, with its own
memory and nothing shared but the database, and a run that has all its shards open and lets a shard
go at the boundary of its batch, once a tick. The nodes tick one after another in this process;
time is simulated, so that each ticks every 5 s however long the other ticks take. What a tick
costs is measured: milliseconds on the clock of the wall, and statements that reach the database.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Engine, event

from benchmarks.figures import print_rows
from benchmarks.upkeep import KEY, TIMING, settled_group
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rebalancing import Rebalancer
from dagster_leasehold.lease_store.roles.groups import Groups
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import Tenure
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.tick_report import TickReport
from tests import mariadb

TICK_S = 5.0
ROUNDS_MAX = 60
IDLE_ROUNDS = 3


class SimulatedNode:
    """A node's sensor and its one run, on simulated time."""

    def __init__(self, world: World, name: NodeName) -> None:
        self.name = name
        self._store = world.store
        self._tenures: dict[ShardId, Tenure] = {}
        self._rebalancer = Rebalancer(
            world.store,
            KEY,
            serves=(name,),
            timing=TIMING,
            observer=str(name),
            incarnation_of=lambda served: f"{served}-1",
            clock=lambda: world.now_s,
        )

    def tick(self) -> TickReport:
        """Tick once, as the sensor does."""
        return self._rebalancer.tick()

    def consume(self, owned: Sequence[ShardId]) -> None:
        """Do as a run does at the boundary of a batch: let go, and open new shards."""
        for tenure, view in self._store.review(list(self._tenures.values())).items():
            if view.transfer_to is not None or not view.current:
                gone = self._tenures.pop(tenure)
                if view.current:
                    self._store.close_tenure(gone, reason="benchmark")
        for shard in owned:
            if shard not in self._tenures:
                outcome = self._store.open_tenure(KEY, shard, self.name, f"run-{self.name}")
                if isinstance(outcome, Opened):
                    self._tenures[shard] = outcome.tenure


class World:
    """The group, its nodes and the time."""

    def __init__(self, store: LeaseStore, shards: int, nodes: int) -> None:
        self.store = store
        self.now_s = 0.0
        self.statements = 0
        names = settled_group(store, shards, nodes)
        self.nodes = [SimulatedNode(self, name) for name in names]
        event.listen(Engine, "before_cursor_execute", self._counted)

    def _counted(self, *_: object) -> None:
        self.statements += 1

    def join(self, count: int) -> None:
        """Have nodes arrive; each registers with its first tick."""
        first = len(self.nodes)
        self.nodes += [
            SimulatedNode(self, NodeName(f"n{number}")) for number in range(first, first + count)
        ]

    def die(self, count: int) -> None:
        """Have nodes fall silent, with all their shards open."""
        del self.nodes[-count:]

    def round(self, figures: Figures) -> None:
        """Have each node tick once, and its run come to the end of a batch."""
        for node in self.nodes:
            self.now_s += TICK_S / len(self.nodes)
            before, began = self.statements, time.perf_counter()
            report = node.tick()
            figures.ticks_ms.append((time.perf_counter() - began) * 1000)
            figures.statements.append(self.statements - before)
            figures.decisions += len(report.decisions)
            node.consume(report.owned[node.name])

    def balanced(self) -> bool:
        """Return True if living nodes have all shards, in numbers that differ by at most one."""
        snapshot = self.store.snapshot(KEY)
        held = Counter(lease.consumer_owner for lease in snapshot.shards)
        living = {node.name for node in self.nodes}
        settled = all(lease.state is ShardState.ALREADY_ALLOC for lease in snapshot.shards)
        counts = [held[name] for name in living]
        return settled and set(held) <= living and max(counts) - min(counts) <= 1


class Figures:
    """The cost of the ticks of a phase."""

    def __init__(self, phase: str, world: World) -> None:
        self.phase = phase
        self.ticks_ms: list[float] = []
        self.statements: list[int] = []
        self.decisions = 0
        self._began_s = world.now_s

    def row(self, world: World, moved: int) -> dict[str, Any]:
        """Return one line of the table."""
        ticks = sorted(self.ticks_ms)
        return {
            "phase": self.phase,
            "simulated s": round(world.now_s - self._began_s, 1),
            "ticks": len(ticks),
            "shards moved": moved,
            "tick ms, median": round(statistics.median(ticks), 1),
            "95 %": round(ticks[int(len(ticks) * 0.95)], 1),
            "slowest": round(ticks[-1], 1),
            "statements, median": int(statistics.median(self.statements)),
            "most": max(self.statements),
        }


def owners(store: Groups) -> dict[ShardId, NodeName | None]:
    """Return the owner of each shard."""
    return {lease.shard: lease.consumer_owner for lease in store.snapshot(KEY).shards}


def settle(world: World, phase: str, rounds_min: int = 1) -> dict[str, Any]:
    """Have all nodes tick until the group is balanced; return the line of this phase."""
    figures, before = Figures(phase, world), owners(world.store)
    for number in range(ROUNDS_MAX):
        if number >= rounds_min and world.balanced():
            break
        world.round(figures)
    else:
        raise RuntimeError(f"{phase}: not balanced after {ROUNDS_MAX} rounds")
    after = owners(world.store)
    return figures.row(world, sum(after[shard] != owner for shard, owner in before.items()))


def measure(url: str, shards: int, nodes: int, changing: int) -> list[dict[str, Any]]:
    """Play the phases one after another, in one group."""
    store = open_store(url, upgrade=True)
    world = World(store, shards, nodes)
    rows = [settle(world, "first ticks, all shards opened")]
    rows.append(settle(world, "idle", IDLE_ROUNDS))
    world.join(changing)
    rows.append(settle(world, f"{changing} join at once"))
    world.die(changing)
    rows.append(settle(world, f"{changing} die at once"))
    store.close()
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--changing", type=int, default=10, help="nodes that join, and that die")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not mariadb.available():
        raise SystemExit("MariaDB's server is not installed: run scripts/test_tools.sh")
    with mariadb.running() as server:
        url = server.create_database("leases")
        rows = measure(url, arguments.shards, arguments.nodes, arguments.changing)
    note = (
        f"MariaDB, {arguments.shards:,} shards, {arguments.nodes} nodes, T {TIMING.timeout_s:g} s, "
        f"a tick every {TICK_S:g} s"
    )
    print_rows(rows, as_json=arguments.json, note=note)


if __name__ == "__main__":
    main()
