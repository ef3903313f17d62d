"""A standalone Spark cluster on the loopback: a master, two workers, and only the address set."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.spark.spark_session import spark_environment
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess
from tests.dagster_deployment import wait_for
from tests.integration.assets.runs import PROJECT, RECORDS, consume, store_of, stream_of, unchanged
from tests.ledger_output import ledger_records
from tests.ports import free_port

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(1200)]
START_S, RUN_S = 300.0, 800.0
WORKERS = 2


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a cluster of two workers with one core each."""
    environment = spark_environment(tmp_path, os.environ) | {
        # Spark would bind to the address of another interface.
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        # Masters and workers need little; by default each asks for a gigabyte.
        "SPARK_DAEMON_MEMORY": "256m",
    }
    import pyspark

    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    package = "org.apache.spark.deploy"
    listening = ["--host", "127.0.0.1", "--webui-port", "0"]
    commands = {
        "master": [f"{package}.master.Master", *listening, "--port", str(port)],
        **{
            f"worker-{number}": [
                *(f"{package}.worker.Worker", *listening),
                *("--cores", "1", "--memory", "1g", address),
            ]
            for number in range(WORKERS)
        },
    }
    log = tmp_path / "master.log"
    with ExitStack() as stack:
        for name, command in commands.items():
            stack.enter_context(
                ChildProcess(
                    name,
                    [program, *command],
                    log=tmp_path / f"{name}.log",
                    environment=environment,
                    folder=tmp_path,
                )
            )
            if name == "master":
                wait_for("the master", lambda: "Starting Spark master" in read(log), START_S)
        # A worker that gets no answer registers again.
        registered = re.compile(r"Registering worker (\S+)")
        wait_for("both workers", lambda: len({*registered.findall(read(log))}) == WORKERS, START_S)
        yield address


def read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def test_only_the_address_is_set_and_a_run_works_on_the_cluster(
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
