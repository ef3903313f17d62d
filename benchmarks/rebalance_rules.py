"""Moves, rounds and spread of the planner and of three other clients' rules, in one run.

`python -m benchmarks.rebalance_rules [--seeds 5] [--json]` lets nodes arrive together, one by
one, join a settled group and leave it, and then waits for as many rounds as nothing changes. In a
round every node has one turn, in an order drawn anew. Ours is the real `Rebalancer` on the store
in memory; the others are in `benchmarks.rivals.sharing_rules`. Columns: changes of owner, first
claims included; the fewest possible; rounds with a change (`>300`: it does not settle); the
difference between the largest and the smallest share at the end. Medians of the seeds, and the
worst spread.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from benchmarks.figures import print_rows
from benchmarks.rivals.sharing_rules import RULES, Rule
from dagster_leasehold.lease_store.group_rows import Group, Node, Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.rebalancing import Rebalancer
from dagster_leasehold.lease_store.rules.planning import moves_lower_bound
from dagster_leasehold.lease_store.shard_rows import ShardListing

ROUNDS_MAX = 300
QUIET_ROUNDS = 5
SIZES = ((10, 4), (100, 7), (256, 100), (1000, 30))
KEY = GroupKey.parse("group", "stream")


class Fleet(Protocol):
    """Nodes that share shards by some rule."""

    def join(self, node: str) -> None: ...
    def leave(self, node: str) -> None: ...
    def turn(self, node: str) -> None: ...
    def owners(self) -> dict[str, str | None]: ...


class RivalFleet:
    """Nodes that follow one of the rival rules."""

    def __init__(self, shards: int, rule: Rule, chance: random.Random) -> None:
        self._owners: dict[str, str | None] = {str(number): None for number in range(shards)}
        self._live: list[str] = []
        self._rule = rule
        self._chance = chance

    def join(self, node: str) -> None:
        self._live.append(node)

    def leave(self, node: str) -> None:
        self._live.remove(node)
        for shard, owner in self._owners.items():
            if owner == node:
                self._owners[shard] = None

    def turn(self, node: str) -> None:
        for shard in self._rule(self._owners, self._live, node, self._chance):
            self._owners[shard] = node

    def owners(self) -> dict[str, str | None]:
        return dict(self._owners)


class PlannedFleet:
    """Nodes that tick the real rebalancing."""

    def __init__(self, shards: int) -> None:
        self._store = MemoryStore()
        self._store.create_group(Group(KEY))
        listing = [ShardListing(ShardId(str(number))) for number in range(shards)]
        self._store.sync_shards(KEY, listing, observer="benchmark")
        self._nodes: dict[str, Rebalancer] = {}

    def join(self, node: str) -> None:
        # Known to all from now on, as the rival rules assume of their nodes too.
        row = Node(NodeName(node), 0, f"{node}-1")
        self._store.register(KEY, row, observer=node)
        self._nodes[node] = Rebalancer(
            self._store,
            KEY,
            serves=(NodeName(node),),
            timing=Timing(),
            observer=node,
            incarnation_of=lambda name: f"{name}-1",
            clock=lambda: 0.0,
        )

    def leave(self, node: str) -> None:
        del self._nodes[node]
        self._store.leave(KEY, NodeName(node), f"{node}-1")

    def turn(self, node: str) -> None:
        self._nodes[node].tick()

    def owners(self) -> dict[str, str | None]:
        rows = self._store.snapshot(KEY).shards
        return {row.shard: row.lease_owner for row in rows}


class Run:
    """One fleet through one scenario: counts moves and rounds."""

    def __init__(self, fleet: Fleet, chance: random.Random) -> None:
        self._fleet = fleet
        self._chance = chance
        self._live: list[str] = []
        self.moves = self.minimum = self.rounds = 0
        self.settled = True

    def change(self, *, joining: Sequence[str] = (), leaving: Sequence[str] = ()) -> None:
        """Have nodes come or go, and play rounds until nothing has changed for a while."""
        for node in leaving:
            self._fleet.leave(node)
            self._live.remove(node)
        for node in joining:
            self._fleet.join(node)
            self._live.append(node)
        owners = self._fleet.owners()
        held = Counter(dict.fromkeys(self._live, 0))
        held.update(owner for owner in owners.values() if owner is not None)
        self.minimum += moves_lower_bound(
            {NodeName(node): count for node, count in held.items()}, len(owners)
        )
        quiet = rounds = 0
        while quiet < QUIET_ROUNDS:
            if rounds == ROUNDS_MAX:
                self.settled = False
                return
            rounds += 1
            moved = self._round()
            self.moves += moved
            quiet = 0 if moved else quiet + 1
        self.rounds += rounds - QUIET_ROUNDS

    def _round(self) -> int:
        moved = 0
        before = self._fleet.owners()
        for node in self._chance.sample(self._live, len(self._live)):
            self._fleet.turn(node)
            after = self._fleet.owners()
            moved += sum(after[shard] not in (None, owner) for shard, owner in before.items())
            before = after
        return moved

    @property
    def spread(self) -> int:
        counts = Counter(dict.fromkeys(self._live, 0))
        counts.update(owner for owner in self._fleet.owners().values() if owner is not None)
        return max(counts.values()) - min(counts.values())


def scenario(name: str, run_of: Run, nodes: list[str]) -> Run:
    """Carry out a scenario; what comes before its own change is not counted."""
    if name == "together":
        run_of.change(joining=nodes)
        return run_of
    if name == "one by one":
        for node in nodes:
            run_of.change(joining=[node])
        return run_of
    run_of.change(joining=nodes[:-1] if name == "join" else nodes)
    run_of.moves = run_of.minimum = run_of.rounds = 0
    run_of.settled = True
    if name == "join":
        run_of.change(joining=nodes[-1:])
    elif name == "leave":
        run_of.change(leaving=nodes[:1])
    else:
        run_of.change()
    return run_of


def measure(shards: int, nodes: int, name: str, rule: str, seeds: int) -> dict[str, Any]:
    runs: list[Run] = []
    for seed in range(seeds):
        chance = random.Random(seed)
        fleet = PlannedFleet(shards) if rule == "ours" else RivalFleet(shards, RULES[rule], chance)
        names = [f"n{number}" for number in range(nodes)]
        runs.append(scenario(name, Run(fleet, chance), names))
    settled = all(each.settled for each in runs)
    return {
        "shards": shards,
        "nodes": nodes,
        "scenario": name,
        "rule": rule,
        "moves": round(statistics.median(each.moves for each in runs)),
        "fewest": round(statistics.median(each.minimum for each in runs)),
        "rounds": round(statistics.median(each.rounds for each in runs))
        if settled
        else f">{ROUNDS_MAX}",
        "spread": max(each.spread for each in runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--largest", type=int, default=3, help="number of the sizes")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [
        measure(shards, nodes, name, rule, arguments.seeds)
        for shards, nodes in SIZES[: arguments.largest]
        for name in ("together", "one by one", "join", "leave", "steady")
        for rule in ("ours", *RULES)
        # The real rebalancing of a hundred arrivals takes minutes, and shows nothing new.
        if not (name == "one by one" and nodes > 30)
    ]
    print_rows(rows, as_json=arguments.json, note=f"{arguments.seeds} seeds")


if __name__ == "__main__":
    main()
