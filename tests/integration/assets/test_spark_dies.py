"""Spark dies in the middle of a batch, or its session is closed: a new attempt, nothing twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.spark.connect_server import running, stop
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.verification import verify
from tests.acceptance.held_stream import HoldingTransform
from tests.integration.assets.runs import PROJECT, RECORDS, consume, store_of, stream_of
from tests.ledger_output import ledger_records
from tests.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(1500)]
PATIENCE_S = 400.0
CLOSE = """
import sys
from dagster_leasehold.assets.spark.spark_resource import SparkResource
SparkResource(mode="connect", folder=sys.argv[1]).spark_session.stop()
"""


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
    """Return for each shard why the run stopped, and the error of its report."""
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    return json.loads(out.strip().splitlines()[-1])


def until(reached: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    wait_for("a held batch", reached, PATIENCE_S, unless=lambda: process.poll() is not None)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    spark = tmp_path / "spark"
    yield spark
    stop(spark)


def kill_in_the_middle(home: Path, folder: Path, run: subprocess.Popen[str]) -> None:
    """Kill the server once a batch is held on it."""
    until(lambda: any(home.glob("held-*")), run)
    server = running(folder)
    assert server is not None
    os.killpg(server.pid, signal.SIGKILL)
    for held in home.glob("held-*"):
        held.unlink()


def records_of(home: Path) -> dict[str, list[bytes]]:
    store, key = store_of(home), stream_of(home).key
    values: dict[str, list[bytes]] = {}
    for batch in ledger_records(store, key, home / "output"):
        for shard, value in zip(
            batch.column("shard_id").to_pylist(), batch.column("value").to_pylist(), strict=True
        ):
            values.setdefault(shard, []).append(value)
    return values


def test_a_run_outlives_its_spark_once_in_a_batch_and_each_record_is_committed_once(
    home: Path, folder: Path
) -> None:
    store, key = store_of(home), stream_of(home).key
    written = {shard: [b"%s:%d" % (shard.encode(), n) for n in range(RECORDS)] for shard in "012"}

    # A server that dies again and again: one sentence.
    (home / "hold").touch()
    first = start(home, folder, "run-1")
    try:
        kill_in_the_middle(home, folder, first)
        kill_in_the_middle(home, folder, first)
        stopped = outcome(first)
    finally:
        first.kill()
    assert {reason for reason, _ in stopped.values()} == {StopReason.FAILED}
    for _, error in stopped.values():
        assert "Spark does not answer" in error
        assert "\n" not in error
    assert {row.consumer_run for row in store.snapshot(key).shards} == {""}, "it let go"

    # One that dies once: the run starts another and continues.
    second = start(home, folder, "run-2")
    try:
        kill_in_the_middle(home, folder, second)
        (home / "hold").unlink()
        again = outcome(second)
    finally:
        second.kill()
    assert {reason for reason, _ in again.values()} == {StopReason.CAUGHT_UP}
    assert records_of(home) == written

    # Another process has closed the session that all runs share, and its id can no longer be used.
    server = running(folder)
    assert server is not None
    subprocess.run([sys.executable, "-c", CLOSE, str(folder)], cwd=PROJECT, check=True)
    for shard in "012":
        stream_of(home).source.append(ShardId(shard), [b"more"])
        written[shard].append(b"more")
    third = outcome(start(home, folder, "run-3"))
    assert {reason for reason, _ in third.values()} == {StopReason.CAUGHT_UP}
    now = running(folder)
    assert now is not None
    assert (now.process, now.port) == (server.process, server.port)
    assert now.session_id != server.session_id
    assert records_of(home) == written
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
