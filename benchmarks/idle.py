"""The cores that an idle deployment takes, by the number of its streams.

Dagster's daemon and a code server look at streams without records. What the webserver takes is
somebody's who looks at it. The figures are processor time per second, so that other work on the
machine hardly counts.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.figures import print_rows
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.dagster_deployment import dagster_deployment
from tests.declared import declare
from tests.waiting import wait_for

SHARDS = 4
SETTLED_S = 300.0
SPENDERS = {"daemon": "dagster._daemon", "code server": "grpc"}


def spent_s(home: Path) -> dict[str, float]:
    """Return the processor time of the daemon and of the code server so far, in seconds."""
    spent = dict.fromkeys(SPENDERS, 0.0)
    for process in psutil.process_iter(["cmdline", "environ", "cpu_times"]):
        if (process.info["environ"] or {}).get("LEASEHOLD_HOME") != str(home):
            continue
        words = " ".join(process.info["cmdline"] or ())
        for name, sign in SPENDERS.items():
            if sign in words:
                times = process.info["cpu_times"]
                spent[name] += times.user + times.system
    return spent


def measure(streams: int, seconds: float) -> dict[str, Any]:
    """Measure a deployment of some streams."""
    folder = Path(tempfile.mkdtemp(prefix="leasehold-idle-"))
    names = [f"stream{number:02d}" for number in range(streams)]
    try:
        settings = Settings(home=folder, nodes=("node-a",))
        declare(folder, *names)
        for name in names:
            LocalLog.create(folder / "logs" / name, SHARDS)
        store = open_store(settings.store_url)

        def held() -> bool:
            keys = [group.key for group in store.groups()]
            rows = [row for key in keys for row in store.snapshot(key).shards]
            return sum(row.consumer_owner is not None for row in rows) == streams * SHARDS

        with dagster_deployment(settings):
            wait_for("owners of all shards", held, SETTLED_S)
            time.sleep(30.0)
            before, began_s = spent_s(folder), time.monotonic()
            time.sleep(seconds)
            after, passed_s = spent_s(folder), time.monotonic() - began_s
        store.close()
        cores = {name: round((after[name] - before[name]) / passed_s, 3) for name in SPENDERS}
        return {"streams": streams, **cores, "cores": round(sum(cores.values()), 3)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [measure(streams, arguments.seconds) for streams in arguments.streams]
    print_rows(rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
