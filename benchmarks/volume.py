"""The cost of what a deployment does and reads, as ledger and journal grow.

`python -m benchmarks.volume [--store sqlite mariadb mysql] [--batches 10000 1000000] [--shards 16]
[--no-verify] [--json]` fills a store with that many committed batches and as many entries of the
journal, by bulk inserts through its tables. Then a fresh process measures, on that store: a beat,
an idle tick, a commit of every shard, a hundred journal entries, the list of one hour's files,
`status`, a scrape of the metrics and `verify`; the median of several calls, and the most memory
that the process ever had. MariaDB and MySQL are servers of its own, with a buffer pool of 64 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.figures import print_rows
from tests.aged_store import INCARNATION, KEY, NODE, Age, Consumption, fill

REPEATS = 15
HOUR = timedelta(hours=1)


@contextmanager
def server_url(store: str) -> Iterator[str]:
    """Make an empty database of a kind, and give its URL."""
    if store == "sqlite":
        with tempfile.TemporaryDirectory(prefix="leasehold-volume-") as folder:
            yield f"sqlite:///{folder}/leases.db"
        return
    from tests import mariadb, mysql

    with mariadb.running() if store == "mariadb" else mysql.running() as server:
        yield server.create_database("volume")


def peak_mb() -> float:
    """Return the most memory that this process ever had, in MB."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def measured(call: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median time of a call, in milliseconds."""
    times: list[float] = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1_000


def measure(url: str, age: Age, *, verify: bool) -> dict[str, float]:
    """Return every cost in milliseconds, and the memory after each that reads much, in MB."""
    from dagster_leasehold.lease_store import open_store
    from dagster_leasehold.lease_store.group_rows import Timing
    from dagster_leasehold.lease_store.journal_rows import EventKind
    from dagster_leasehold.lease_store.rebalancing import Rebalancer
    from dagster_leasehold.lease_store.rules.verification import audit
    from dagster_leasehold.orchestration.metrics import StoreCollector

    store = open_store(url)
    run = Consumption.begin(store, age)
    rebalancer = Rebalancer(
        store,
        KEY,
        serves=(NODE,),
        timing=Timing(),
        observer="benchmark",
        incarnation_of=lambda _: INCARNATION,
    )
    collector = StoreCollector(lambda: store)

    def status() -> None:
        store.snapshot(KEY)
        store.waiting_events(KEY, EventKind.HOOK)

    costs: dict[str, float] = {
        "beat_ms": measured(lambda: store.beat(KEY, NODE, INCARNATION)),
        "tick_ms": measured(rebalancer.tick),
        "commit_ms": measured(run.commit),
        "journal_ms": measured(lambda: store.journal(KEY, limit=100, newest=True)),
        "status_ms": measured(status),
        "scrape_ms": measured(lambda: list(collector.collect())),
    }
    costs["memory_mb"] = peak_mb()
    if not verify:
        return costs
    began = time.perf_counter()
    outcome = audit(store, KEY)
    costs["verify_s"] = time.perf_counter() - began
    assert not outcome.violations, outcome.violations[:3]
    costs["verify_memory_mb"] = peak_mb()
    return costs


def in_a_fresh_process(url: str, age: Age, *, verify: bool) -> dict[str, float]:
    """Return what `measure` finds in a process that has used no memory for anything else."""
    words = ["--measure", url, "--batches", str(age.batches), "--shards", str(age.shards)]
    words += [] if verify else ["--no-verify"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.volume", *words], check=True, stdout=subprocess.PIPE
    )
    return json.loads(done.stdout)


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", nargs="+", default=["sqlite"])
    parser.add_argument("--batches", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--no-verify", action="store_true", help="leave the audit out")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        age = Age(chosen.batches[0], chosen.shards)
        json.dump(measure(chosen.measure, age, verify=not chosen.no_verify), sys.stdout)
        return
    rows: list[dict[str, Any]] = []
    for store in chosen.store:
        for batches in chosen.batches:
            age = Age(batches, chosen.shards)
            with server_url(store) as url:
                began = time.perf_counter()
                fill(url, age)
                # Else the first commits would wait for the disk to take the filling.
                os.sync()
                filled_s = time.perf_counter() - began
                costs = in_a_fresh_process(url, age, verify=not chosen.no_verify)
            rows.append({"store": store, "batches": batches, "filled_s": filled_s, **costs})
            print(json.dumps(rows[-1]), file=sys.stderr)
    print_rows(rows, as_json=chosen.json)


if __name__ == "__main__":
    main()
