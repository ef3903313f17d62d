"""A run whose Spark stalls releases its shards, and the next one continues.

A separate process consumes, as in Dagster. In turn, the user's code, Spark's Python workers and the
whole server stall.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dagster_leasehold.assets.consuming import node_consumption
from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.consuming.node_consumption import consume_shards
from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.guarding import run_on_spark
from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.spark.connect_server import ConnectServer, running, stop
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.assets.spark.spark_session import WORKER_DAEMON
from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.verification import verify
from tests.acceptance.held_stream import HoldingTransform, holding_tables
from tests.integration.assets.runs import NODE, PROJECT, RECORDS, store_of, stream_of
from tests.ledger_output import ledger_records
from tests.waiting import ClockFrom, wait_for

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(900)]
STALL_LIMIT_S, DEADLINE_S = 2.0, 240.0
ABANDON_S = 1.0
DAEMONS = {"pyspark.daemon", WORKER_DAEMON}
"""For a frozen Spark: after a longer wait it would not answer again."""


class Home:
    """A home, its Spark server, and runs over its shards."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home, self.folder = home, folder
        self.runs = 0

    def start(self, way: str, abandon_s: float = run_on_spark.ABANDON_S) -> subprocess.Popen[str]:
        self.runs += 1
        arguments = (self.home, self.folder, f"run-{self.runs}", way, abandon_s)
        return subprocess.Popen(
            [sys.executable, "-m", __name__, *map(str, arguments)],
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def outcome(self, process: subprocess.Popen[str]) -> dict[str, list[str]]:
        """Return for each shard why the run stopped, and the error of its report."""
        out, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
        return json.loads(out.strip().splitlines()[-1])

    def stall(self, way: str, freeze: Callable[[], None] | None = None) -> None:
        """A run that stalls in the middle of its batch, together with the processes that `freeze`
        stops.
        """
        (self.home / "hold").touch()
        process = self.start(way, ABANDON_S) if freeze else self.start(way)
        try:
            wait_for(
                "a held batch",
                lambda: any(self.home.glob("held-*")),
                DEADLINE_S,
                unless=lambda: process.poll() is not None,
            )
            if freeze:
                freeze()
            (self.home / "armed").touch()
            stopped = self.outcome(process)
        finally:
            process.kill()
            (self.home / "hold").unlink()
            (self.home / "armed").unlink(missing_ok=True)
            for held in self.home.glob("held-*"):
                held.unlink()
        assert {reason for reason, _ in stopped.values()} == {StopReason.FAILED}
        for _, error in stopped.values():
            assert "This run made no progress for 2 s while it waited for Spark" in error
        shards = store_of(self.home).snapshot(stream_of(self.home).key).shards
        assert {row.consumer_run for row in shards} == {""}, "it let go"
        assert {row.check_point for row in shards} == {None}

    def server(self) -> ConnectServer:
        server = running(self.folder)
        assert server is not None
        return server

    def freeze_python(self) -> None:
        """Freeze the workers that read, transform and write, and the processes that start them."""
        frozen = 0
        for each in psutil.Process(self.server().pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if DAEMONS & {*each.cmdline()}:
                    each.suspend()
                    frozen += 1
        assert frozen


@pytest.fixture
def world(home: Path, tmp_path: Path) -> Iterator[Home]:
    folder = tmp_path / "spark"
    yield Home(home, folder)
    stop(folder)


def test_a_stalled_run_releases_its_shards_and_the_next_one_commits_each_record_once(
    world: Home,
) -> None:
    warm = "from dagster_leasehold.assets.spark.spark_session import connect_address; "
    warm += "import pathlib, sys; connect_address(pathlib.Path(sys.argv[1]))"

    def warm_up() -> ConnectServer:
        subprocess.run([sys.executable, "-c", warm, str(world.folder)], cwd=PROJECT, check=True)
        return world.server()

    first = warm_up()
    world.stall("arrow")
    assert world.server() == first, "the user's code hung; Spark itself did not"

    world.stall("frames", world.freeze_python)
    assert not first.alive()

    second = warm_up()
    world.stall("arrow", lambda: os.killpg(second.pid, signal.SIGSTOP))
    assert not second.alive()

    again = world.outcome(world.start("frames"))
    assert {reason for reason, _ in again.values()} == {StopReason.CAUGHT_UP}
    store, key = store_of(world.home), stream_of(world.home).key
    records: dict[str, list[bytes]] = {}
    for batch in ledger_records(store, key, world.home / "output"):
        for shard, value in zip(
            batch.column("shard_id").to_pylist(), batch.column("value").to_pylist(), strict=True
        ):
            records.setdefault(shard, []).append(value)
    assert records == {
        shard: [b"%s:%d" % (shard.encode(), n) for n in range(RECORDS)] for shard in "012"
    }
    assert verify(store, key) == []


def main(home: Path, folder: Path, run: str, way: str, abandon_s: float) -> None:
    run_on_spark.ABANDON_S = abandon_s
    node_consumption.time = ClockFrom((home / "armed").exists)
    store = store_of(home)
    transform = holding_tables(home) if way == "arrow" else HoldingTransform(home)
    stream = replace(stream_of(home, transform), pace=Pace(stall_limit_s=STALL_LIMIT_S))
    reports, _ = consume_shards(
        stream,
        Deployment(lambda: store, (NODE,), Timing(), lambda _: local_place(home / "output")),
        spark=SparkResource(mode="connect", folder=str(folder)),
        node=NODE,
        incarnation="a-1",
        run=run,
        shards=[ShardId(shard) for shard in "012"],
        after_commit=lambda _: None,
    )
    stopped = {report.shard: [report.stopped.value, report.error] for report in reports}
    sys.stdout.write(json.dumps(stopped) + "\n")
    sys.stdout.flush()
    # Without the farewell of Spark's client to a server that may be gone.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4], float(sys.argv[5]))
