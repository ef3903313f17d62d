"""The Spark server dies in the middle of a batch: one clear error, a new attempt, nothing twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.spark.connect_server import running, stop
from dagster_leasehold.lease_store.rules.verification import verify
from tests.acceptance.held_stream import HoldingTransform
from tests.integration.assets.runs import PROJECT, RECORDS, consume, store_of, stream_of
from tests.ledger_output import ledger_records

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(1500)]
PATIENCE_S = 400.0


def start(home: Path, folder: Path, run: str) -> subprocess.Popen[str]:
    """A run as a process of its own, as Dagster has it."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__, str(home), str(folder), run],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def outcome(process: subprocess.Popen[str]) -> dict[str, list[str]]:
    """For each shard, why the run stopped and what its report says of an error."""
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    return json.loads(out.strip().splitlines()[-1])


def until(reached: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert process.poll() is None, "the run ended before its batch was held"
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    spark = tmp_path / "spark"
    yield spark
    stop(spark)


def test_a_run_whose_spark_server_dies_says_so_and_the_next_one_commits_each_record_once(
    home: Path, folder: Path
) -> None:
    (home / "hold").touch()
    first = start(home, folder, "run-1")
    try:
        until(lambda: any(home.glob("held-*")), first)
        server = running(folder)
        assert server is not None
        os.killpg(server.pid, signal.SIGKILL)
        stopped = outcome(first)
    finally:
        (home / "hold").unlink()
        first.kill()
    assert {reason for reason, _ in stopped.values()} == {StopReason.FAILED}
    for _, error in stopped.values():
        assert "Spark" in error
        assert "\n" not in error
    store, key = store_of(home), stream_of(home).key
    assert {row.consumer_run for row in store.snapshot(key).shards} == {""}, "it let go"

    again = outcome(start(home, folder, "run-2"))
    assert {reason for reason, _ in again.values()} == {StopReason.CAUGHT_UP}
    values: dict[str, list[bytes]] = {}
    for batch in ledger_records(store, key, home / "output"):
        for shard, value in zip(
            batch.column("shard_id").to_pylist(), batch.column("value").to_pylist(), strict=True
        ):
            values.setdefault(shard, []).append(value)
    assert values == {
        shard: [b"%s:%d" % (shard.encode(), n) for n in range(RECORDS)] for shard in "012"
    }
    assert verify(store, key) == []


def main(home: Path, folder: Path, run: str) -> None:
    reports = consume(home, folder, run, transform=HoldingTransform(home))
    reasons = {shard: [report.stopped.value, report.error] for shard, report in reports.items()}
    sys.stdout.write(json.dumps(reasons) + "\n")
    sys.stdout.flush()
    # Without the farewell of Spark's client to a server that may be gone.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
