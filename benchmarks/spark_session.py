"""Costs of one warm Spark Connect server for all runs, next to a classic session in each.

`python -m benchmarks.spark_session [--streams 1 4] [--rounds 3] [--json]` starts `leasehold dev`
on a local log and SQLite in both modes, one deployment after the other:

* `first commit s`: from a record in each shard of each stream to the last of these commits. The
  first round meets no Spark; for the later ones the runs have ended for want of records, so that
  Dagster launches them anew. What the sensor's interval of 5 s adds is part of both.
* `MiB`: the memory (proportional set size) of all processes while each stream has a run at work.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import print_rows
from benchmarks.figures.process_tree import MEBIBYTE, memory_bytes, trees
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.settings import load_settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.acceptance.leasehold_process import running
from tests.declared import declare, stream_text
from tests.ports import free_port
from tests.waiting import wait_for

SHARDS, START_S, SETTLE_S = 4, 300.0, 5.0
MODES = ("connect", "local[2]")
PACE = "Pace(commit_interval_s=1, idle_limit_s=8)"


def measure(mode: str, streams: int, rounds: int) -> dict[str, Any]:
    """Measure a deployment of some streams, whose runs reach Spark in one mode."""
    folder = Path(tempfile.mkdtemp(prefix="leasehold-spark-"))
    home = folder / "home"
    names = [f"stream{number}" for number in range(streams)]
    logs = [LocalLog.create(home / "logs" / name, SHARDS) for name in names]
    texts = [stream_text(name, pace=PACE) for name in names]
    declare(home, *texts, settings=f'spark = "{mode}"\n')
    settings = load_settings(home=home)
    try:
        with running("dev", "--home", home, "--port", free_port(), folder=folder) as dev:
            dev.until((home / "leases.db").exists, START_S)
            store = open_store(settings.store_url)
            wait_for("shards with owners", lambda: owned(store) == streams * SHARDS, START_S)
            seconds: list[float] = []
            sizes: list[float] = []
            for number in range(1, rounds + 2):
                seconds.append(committed_s(store, logs, number))
                time.sleep(SETTLE_S)
                sizes.append(memory_bytes(trees([dev.pid])) / MEBIBYTE)
                wait_for("the runs to end", lambda: not opened(store), START_S)
            dev.end(signal.SIGINT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "mode": mode,
        "streams": streams,
        "first commit, cold s": round(seconds[0], 1),
        "first commit s": round(statistics.median(seconds[1:]), 1),
        "MiB": round(statistics.median(sizes)),
    }


def owned(store: LeaseStore) -> int:
    """Return the number of shards that a node owns."""
    keys = [group.key for group in store.groups()]
    rows = [row for key in keys for row in store.snapshot(key).shards]
    return sum(row.consumer_owner is not None for row in rows)


def opened(store: LeaseStore) -> int:
    """Return the number of shards that a run has open."""
    rows = [row for group in store.groups() for row in store.snapshot(group.key).shards]
    return sum(bool(row.consumer_run) for row in rows)


def committed_s(store: LeaseStore, logs: list[LocalLog], records: int) -> float:
    """Append a record to each shard; return the seconds until `records` of each are committed."""
    began_s = time.monotonic()
    for log in logs:
        for row in log.list_shards():
            log.append(row.shard, [b"{}"])

    def committed() -> bool:
        totals = [each for group in store.groups() for each in store.totals(group.key)]
        return sum(each.records for each in totals) == len(logs) * SHARDS * records

    wait_for("the commits", committed, START_S)
    return time.monotonic() - began_s


def main() -> None:
    """Measure both modes, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [measure(mode, streams, given.rounds) for streams in given.streams for mode in MODES]
    print_rows(rows, as_json=given.json)


if __name__ == "__main__":
    main()
