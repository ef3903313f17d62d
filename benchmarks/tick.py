"""The duration of one tick of rebalancing, from 10 to 1,000,000 shards.

`python -m benchmarks.tick [--shards 10 1000 10000 100000] [--nodes 10] [--json]` measures on a
SQLite store. For one of the nodes: the tick of a node that has nothing to do; the first tick of a
new process, which reads and plans the whole group; and the pure plan alone, for the settled group
and for one that a node has just left. For a process that plans for all nodes, in processor time:
its first tick, an idle one, the one after a tenth as many nodes have joined, and the peak of its
memory.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from benchmarks.figures import print_rows
from benchmarks.upkeep import KEY, TIMING, settled_group
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.rebalancing import Rebalancer
from dagster_leasehold.lease_store.rules.planning import plan
from dagster_leasehold.lease_store.snapshot_memory import FEW_SHARDS
from dagster_leasehold.lease_store.store import LeaseStore


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
    """A process that plans for all nodes of a group. Time stands still: nobody beats."""

    def __init__(self, url: str) -> None:
        self._store = open_store(url)
        self._rebalancer = Rebalancer(
            self._store,
            KEY,
            serves=(),
            timing=TIMING,
            observer="planner",
            incarnation_of=str,
            clock=lambda: 0.0,
            beats=False,
            follows_above=FEW_SHARDS,
            serving=lambda nodes: tuple(node.name for node in nodes),
        )

    def tick(self) -> float:
        """Return the processor time of a tick, in milliseconds."""
        began = time.process_time()
        self._report = self._rebalancer.tick()
        return (time.process_time() - began) * 1000

    def measure(self, joining: int, repeats: int) -> dict[str, Any]:
        first = self.tick()
        idle = statistics.median(self.tick() for _ in range(repeats))
        for number in range(joining):
            self._store.register(KEY, Node(NodeName(f"j{number}"), 0, "1"), observer="benchmark")
        join = self.tick()
        assert self._report.plan.moves == 0
        self._store.close()
        return {
            "all_first_cpu_ms": round(first),
            "all_idle_cpu_ms": round(idle, 1),
            "all_join_cpu_ms": round(join),
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }


def planner_of_all(url: str, joining: int, repeats: int) -> dict[str, Any]:
    """Measure it, in a process of its own."""
    return Planner(url).measure(joining, repeats)


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
            planner = pool.submit(planner_of_all, url, max(nodes // 10, 1), repeats).result()
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
