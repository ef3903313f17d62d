"""The duration of one tick of rebalancing, from 10 to 100,000 shards.

`python -m benchmarks.tick [--shards 10 1000 10000 100000] [--json]` measures, on a SQLite store
and for one of ten nodes: the tick of a node that has nothing to do; the first tick of a new
process, which reads and plans the whole group; and the pure plan alone, for the settled group and
for one that a node has just left.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.figures import print_rows
from benchmarks.upkeep import KEY, TIMING, settled_group
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.rebalancing import Rebalancer
from dagster_leasehold.lease_store.rules.planning import plan
from dagster_leasehold.lease_store.store import LeaseStore

NODES = 10


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


def measure(shards: int, repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{folder}/leases.db")
        names = settled_group(store, shards, NODES)
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
        first_ms = timed(lambda: ticking_node(store, names[1], lambda: 0.0).tick(), 3)
        snapshot = store.snapshot(KEY)
        store.close()
    settled_ms = timed(lambda: plan(snapshot, live=names), 3)
    leaving_ms = timed(lambda: plan(snapshot, live=names[1:]), 3)
    return {
        "shards": shards,
        "idle_tick_ms": round(idle_ms, 2),
        "first_tick_ms": round(first_ms, 2),
        "plan_settled_ms": round(settled_ms, 2),
        "plan_after_leave_ms": round(leaving_ms, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[10, 1000, 10_000, 100_000])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [measure(shards, arguments.repeats) for shards in arguments.shards]
    print_rows(rows, as_json=arguments.json, note=f"SQLite, one of {NODES} nodes")


if __name__ == "__main__":
    main()
