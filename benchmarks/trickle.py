"""The CPU time of a small commit, in all processes together.

`python -m benchmarks.trickle [--database mariadb] [--commits 60] [--json]` starts `leasehold dev`
with one node over a log of 8 shards, and lets a run follow them. Every `--pace` seconds it appends
300 records to all shards at once, which the run commits together. It measures the CPU time of each
part of the deployment over so many commits, and takes off what the same deployment, with the same
run waiting, takes at rest in that time.

Before that, a backlog makes some hundred commits of the same size, one after the other, in which
Java compiles what each job runs.

All that works because of a commit counts: the run, Spark's JVM and its Python workers, the
database server, and what publishes and reports commits later. This program's own time, which the
appends take, does not.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.figures import print_rows
from benchmarks.figures.live_deployment import DATABASES, KEY, LiveDeployment, new_home
from benchmarks.figures.live_records import SHARDS
from benchmarks.figures.process_tree import cpu_by_part
from benchmarks.local_log import values
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.times import utc_now

RECORDS = 300
RECORDS_OF_SHARD_MAX = -(-RECORDS // SHARDS)
REPORT_S, REST_S = 35.0, 25.0
"""The time until all commits are reported, and the time of the rest. Spark ends workers that were
without a task for a minute."""
WAKING = 5
"""The commits after the rest that are not measured."""
IDLE_LIMIT_S = 3_600.0
"""The run outlives the rest."""


class Trickle:
    """Appends of 300 records to all shards of a deployment."""

    def __init__(self, deployment: LiveDeployment, pace_s: float) -> None:
        self._log = deployment.log
        self._pace_s = pace_s
        self._records = values(RECORDS)

    def append(self, times: int) -> None:
        """Append so many times, at the pace; return when the last records are committed."""
        began_s = time.monotonic()
        for number in range(1, times + 1):
            self._append(1)
            time.sleep(max(0.0, began_s + number * self._pace_s - time.monotonic()))

    def append_backlog(self, commits: int) -> None:
        """Append at once what so many commits take."""
        self._append(commits)

    def _append(self, times: int) -> None:
        for shard in range(SHARDS):
            self._log.append(str(shard), self._records[shard::SHARDS] * times)


def measure(
    home: Path, *, commits: int, warm_up: int, pace_s: float, variables: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return a row for each part of the deployment, and one for all."""
    if url := variables.get("LEASEHOLD_DATABASE_URL"):
        open_store(url, upgrade=True).close()
    deployment = LiveDeployment(
        home,
        interval_s=pace_s / 2,
        idle_limit_s=IDLE_LIMIT_S,
        nodes=1,
        variables=variables,
        stream={"limits": f"Limits(records_max={RECORDS_OF_SHARD_MAX})"},
    )
    trickle = Trickle(deployment, pace_s)
    trickle.append_backlog(warm_up)
    with deployment:
        deployment.catch_up()
        trickle.append(WAKING)
        time.sleep(REPORT_S)
        before, began_s = cpu_by_part(), time.monotonic()
        time.sleep(REST_S)
        rest, rest_s = _since(before), time.monotonic() - began_s
        trickle.append(WAKING)
        before, began_s = cpu_by_part(), time.monotonic()
        began = utc_now()
        trickle.append(commits)
        spent, spent_s = _since(before), time.monotonic() - began_s
        made = _commits(deployment, began)
    print(f"{made} commits of {commits} appends in {spent_s:.0f} s", file=sys.stderr)
    rows = [
        {
            "part": part,
            "cores at rest": rest.get(part, 0.0) / rest_s,
            "cores": seconds / spent_s,
            "ms a commit": 1000 * (seconds - rest.get(part, 0.0) * spent_s / rest_s) / commits,
        }
        for part, seconds in spent.items()
    ]
    rows.sort(key=lambda row: -row["ms a commit"])
    names = [*rows[0]][1:]
    return [*rows, {"part": "all"} | {name: sum(row[name] for row in rows) for name in names}]


def _since(before: Mapping[str, float]) -> dict[str, float]:
    return {part: max(0.0, spent - before.get(part, 0.0)) for part, spent in cpu_by_part().items()}


def _commits(deployment: LiveDeployment, began: datetime) -> int:
    """Return the number of commits since `began`: transactions, each of some shards."""
    store = open_store(deployment.settings.store_url)
    try:
        times = {row.committed_at for row in store.each_batch(KEY)}
    finally:
        store.close()
    return sum(time is not None and time >= began for time in times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--database", choices=DATABASES, default="sqlite")
    parser.add_argument("--commits", type=int, default=60)
    parser.add_argument("--warm-up", type=int, default=400, help="commits before them")
    parser.add_argument("--pace", type=float, default=1.0, help="seconds from one to the next")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with new_home(arguments.database) as (folder, variables):
        rows = measure(
            folder / "home",
            commits=arguments.commits,
            warm_up=arguments.warm_up,
            pace_s=arguments.pace,
            variables=variables,
        )
    note = f"{arguments.database}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} after"
    print_rows(rows, as_json=arguments.json, note=note)


if __name__ == "__main__":
    main()
