"""The age of records where one shard has most of the traffic, balanced by count and by load.

`python -m benchmarks.skew [--rate 20000] [--skew 0.9] [--minutes 5] [--interval 0] [--json]` starts
`leasehold dev` with two nodes over a log of 8 shards. The first shard gets so large a part of the
records, and the others share the rest. It is measured by count, and then, once the weights are
learned and the shards have moved, by load.

`slowest` is the shard with the highest median age of the oldest record of its batches. `shards` are
those of each node, and `load` is the part of the records that each node has. Both nodes share the
cores of this machine, which makes the difference smaller than on two hosts.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from benchmarks.figures import print_rows
from benchmarks.figures.live_deployment import LiveDeployment
from benchmarks.figures.live_records import SHARDS, age_figures, log_flow
from benchmarks.figures.process_tree import adopt_orphans
from dagster_leasehold.lease_store.identifiers import ShardId

BUSY_SHARD = ShardId("0")
WARM_UP_S, LEARNING_S = 15.0, 150.0
"""Weights are read once a minute, and a shard that moves waits for a batch to end."""


def measure(
    deployment: LiveDeployment, *, by_load: bool, rate: int, skew: float, minutes: float
) -> dict[str, Any]:
    """Measure a deployment in one of the two ways."""
    deployment.balance_by_load(by_load=by_load)
    with log_flow(deployment.log, rate, skew):
        time.sleep(min(LEARNING_S if by_load else WARM_UP_S, 60 * minutes))
        stretch = deployment.measure(60 * minutes)
        unread = deployment.unread()
        shards = deployment.shards_of_nodes()
    deployment.catch_up()
    slowest = {f"slowest: {name}": age for name, age in age_figures(stretch.slowest()).items()}
    return {
        "balance": "load" if by_load else "count",
        "records/s": rate,
        "committed/s": round(stretch.records / stretch.seconds),
        "shards": " + ".join(str(len(each)) for each in shards),
        "load": " + ".join(f"{_part(each, skew):.0%}" for each in shards),
        "cores": round(stretch.cores, 2),
        **age_figures(stretch.ages),
        **slowest,
        "unread at end": unread,
    }


def _part(shards: Collection[ShardId], skew: float) -> float:
    """Return the part of the records that these shards get."""
    busy = BUSY_SHARD in shards
    return busy * skew + (len(shards) - busy) * (1 - skew) / (SHARDS - 1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--skew", type=float, default=0.9)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--interval", type=float, default=0.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    note = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before, {SHARDS} shards"
    adopt_orphans()
    # The deployment is ended with its block, also where this process is told to end.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with tempfile.TemporaryDirectory(
        prefix="leasehold-skew-", ignore_cleanup_errors=True
    ) as folder:
        home = Path(folder) / "home"
        with LiveDeployment(home, interval_s=arguments.interval) as deployment:
            rows = [
                measure(
                    deployment,
                    by_load=by_load,
                    rate=arguments.rate,
                    skew=arguments.skew,
                    minutes=arguments.minutes,
                )
                for by_load in (False, True)
            ]
    print_rows(rows, as_json=arguments.json, note=note)


if __name__ == "__main__":
    main()
