"""A standalone Spark cluster on the loopback: a master, two workers, and only the address set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.verification import verify
from tests.integration.assets.runs import PROJECT, RECORDS, consume, store_of, stream_of, unchanged
from tests.ledger_output import ledger_records
from tests.spark_clusters import START_S, read, standalone_cluster, this_spark

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(1200)]
RUN_S = 800.0
WORKERS = 2


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a cluster of two workers with one core each."""
    with standalone_cluster(tmp_path, *this_spark(tmp_path), WORKERS) as address:
        yield address


def test_a_run_works_on_a_cluster_with_only_its_address_set(
    home: Path, master: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(home), str(tmp_path / "spark"), master],
        cwd=PROJECT,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.strip().splitlines()[-1]) == dict.fromkeys(
        "012", StopReason.CAUGHT_UP.value
    )
    # The cluster did the work: both workers were given an executor of the run.
    for number in range(WORKERS):
        assert "Asked to launch executor" in read(tmp_path / f"worker-{number}.log")
    store, key = store_of(home), stream_of(home).key
    values: dict[str, list[bytes]] = {}
    for batch in ledger_records(store, key, home / "output"):
        for shard, value in zip(
            batch.column("shard_id").to_pylist(), batch.column("value").to_pylist(), strict=True
        ):
            values.setdefault(shard, []).append(value)
    assert values == {
        shard: [*(b"%s:%d" % (shard.encode(), n) for n in range(RECORDS)), b"more"]
        for shard in "012"
    }
    assert verify(store, key) == []


def main(home: Path, folder: Path, master: str) -> None:
    consume(home, folder, "run-1", mode=master)
    # The other way through Spark, in the same session.
    for shard in "012":
        stream_of(home).source.append(ShardId(shard), [b"more"])
    reports = consume(home, folder, "run-2", transform=unchanged, mode=master)
    # Executors register one by one; both have by the time that the session ends.
    deadline = time.monotonic() + START_S
    from pyspark.sql import SparkSession

    session = SparkSession.active()
    context = session.sparkContext._jsc.sc()
    while context.getExecutorMemoryStatus().size() < WORKERS + 1 and time.monotonic() < deadline:
        time.sleep(0.2)
    session.stop()
    reasons = {shard: report.stopped.value for shard, report in reports.items()}
    sys.stdout.write(json.dumps(reasons) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
