"""The duration of one tick of rebalancing, from 10 to 1,000,000 shards.

`python -m benchmarks.tick [--shards 10 1000 10000 100000] [--nodes 10] [--json]` measures on a
SQLite store. For one of the nodes: the tick of a node that has nothing to do; the first tick of a
new process, which reads and plans the whole group; and the pure plan alone, for the settled group
and for one XX
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from benchmarks.figures import print_rows
from benchmarks.upkeep import KEY, TIMING, settled_group
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.rebalancing import FEW_SHARDS, Rebalancer
from dagster_leasehold.lease_store.rules.planning import plan
from dagster_leasehold.lease_store.store import LeaseStore

LOOKS = 8
"""The ticks within T while nodes are silent."""


def timed(action: Callable[[], object], repeats: int) -> float:
    """Return the median duration, in milliseconds."""
    durations: list[float] = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        durations.append(time.perf_counter() - began)
    return statistics.median(durations) * 1000


def ticking_node(store: LeaseStore, name: NodeName, clock: Callable[[], float]) -> Rebalancer:
    return Rebalancer(
        store,
        KEY,
        serves=(name,),
        timing=TIMING,
        observer=str(name),
        incarnation_of=lambda served: f"{served}-1",
        clock=clock,
    )


class Planner:
    """A process that plans for all nodes of a group. Time stands still, so a tick is never cut."""

    def __init__(self, url: str) -> None:
        self._store = open_store(url)
        self._now = 0.0
        self._rebalancer = Rebalancer(
            self._store,
            KEY,
            serves=(),
            timing=TIMING,
            observer="planner",
            incarnation_of=str,
            clock=lambda: self._now,
            beats=False,
            follows_above=FEW_SHARDS,
            serving=lambda nodes: tuple(node.name for node in nodes),
        )

    def tick(self) -> float:
        """Return the processor time of a tick, in milliseconds."""
        began = time.process_time()
        report = self._rebalancer.tick()
        taken = (time.process_time() - began) * 1000
        assert report.plan.moves == 0
        return taken

    def _join(self, names: Iterable[NodeName]) -> None:
        for name in names:
            self._store.register(KEY, Node(name, 0, f"{name}-1"), observer="benchmark")

    def _leave(self, names: Iterable[NodeName]) -> None:
        for name in names:
            self._store.leave(KEY, name, f"{name}-1")

    def _silence(self, living: Iterable[NodeName]) -> None:
        for _ in range(LOOKS):
            self._now += TIMING.timeout_s / LOOKS
            self.tick()
        for name in living:
            self._store.beat(KEY, name, f"{name}-1")
        self._now += 1

    def measure(self, nodes: int, repeats: int) -> dict[str, Any]:
        """Change a tenth of the nodes, each time in another way."""
        tenth, flapping = max(nodes // 10, 1), nodes // 100
        first = [NodeName(f"n{number}") for number in range(nodes)]
        more = [NodeName(f"j{number}") for number in range(tenth)]
        taken = {"first": self.tick()}
        taken["idle"] = statistics.median(self.tick() for _ in range(repeats))
        self._join(more)
        taken["join"] = self.tick()
        self._silence(first)
        taken["die"] = self.tick()
        self._leave(first[:tenth])
        taken["leave"] = self.tick()
        self._join(first[:flapping])
        self._leave(first[tenth : tenth + flapping])
        taken["flap"] = self.tick()
        self._store.close()
        figures: dict[str, Any] = {f"all_{kind}_cpu_ms": round(ms) for kind, ms in taken.items()}
        return figures | {"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}


def planner_of_all(url: str, nodes: int, repeats: int) -> dict[str, Any]:
    """Measure it, in a process of its own."""
    return Planner(url).measure(nodes, repeats)


def measure(shards: int, nodes: int, repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/leases.db"
        store = open_store(url)
        names = settled_group(store, shards, nodes)
        # Time stands still but for what each tick is given, so that nobody is judged dead.
        now = [0.0]
        node = ticking_node(store, names[0], lambda: now[0])
        node.tick()

        def idle() -> None:
            now[0] += TIMING.beat_s / repeats
            report = node.tick()
            if report.decisions:
                raise RuntimeError(f"the tick was not idle: {report.explanation}")

        idle_ms = timed(idle, repeats)
        first_ms = timed(lambda: ticking_node(store, names[1], lambda: 0.0).tick(), 1)
        snapshot = store.snapshot(KEY)
        store.close()
        settled_ms = timed(lambda: plan(snapshot, live=frozenset(names)), 3)
        leaving_ms = timed(lambda: plan(snapshot, live=frozenset(names[1:])), 3)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            planner = pool.submit(planner_of_all, url, nodes, repeats).result()
    return {
        "shards": shards,
        "nodes": nodes,
        "idle_tick_ms": round(idle_ms, 2),
        "first_tick_ms": round(first_ms, 2),
        "plan_settled_ms": round(settled_ms, 2),
        "plan_after_leave_ms": round(leaving_ms, 2),
        **planner,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[10, 1000, 10_000, 100_000])
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [measure(shards, arguments.nodes, arguments.repeats) for shards in arguments.shards]
    print_rows(rows, as_json=arguments.json, note="SQLite")


if __name__ == "__main__":
    main()
