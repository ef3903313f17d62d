"""Shared clusters and Connect servers that fail: one sentence, no shard held, no record twice.

Each run is a separate process, as in Dagster. A scene can stop it in the middle of its Spark job,
while the home has a file `hold`, or after its first commit, while it has `pause-1`; a replay, after
its first batch.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from dagster_leasehold.assets.consuming import node_consumption
from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.consuming.node_consumption import consume_shards
from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.rewriting import replay
from dagster_leasehold.assets.rewriting.replay import replay_on_spark
from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan
from dagster_leasehold.assets.spark.connect_server import running, stop
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.verification import verify
from tests.acceptance import held_stream
from tests.acceptance.held_stream import HoldingTransform, holding_tables
from tests.integration.assets.runs import NODE, PROJECT, RECORDS, consume, store_of, stream_of
from tests.ledger_output import ledger_records
from tests.ports import free_port
from tests.spark_clusters import connect_server_at, read, standalone_cluster, this_spark
from tests.spark_iceberg import without_spark_connect
from tests.waiting import ClockFrom, wait_for

pytestmark = [pytest.mark.release, pytest.mark.spark, pytest.mark.timeout(1800)]
DEADLINE_S = 400.0
WORKERS = 2
STARVED_AFTER_S = 3.0
HELD_MAX_S = 3600.0
"""Longer than any test: only an interruption ends a held job."""
HOG = """
import sys
from pyspark.sql import SparkSession
session = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false").getOrCreate()
session.sparkContext.parallelize(range(2), 2).count()
print("full", flush=True)
sys.stdin.read()
"""


class World:
    """A home with three shards, and the runs over them."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home, self.folder = home, folder
        self.runs = 0

    @contextmanager
    def run(
        self, mode: str, way: str = "arrow", stall_limit_s: float = DEADLINE_S
    ) -> Generator[subprocess.Popen[str]]:
        """Start a run; it is killed at the end of the block if it has not ended."""
        self.runs += 1
        settings = {
            "home": str(self.home),
            "folder": str(self.folder),
            "run": f"run-{self.runs}",
            "mode": mode,
            "way": way,
            "stall_limit_s": stall_limit_s,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(settings)],
            cwd=PROJECT,
            env=without_spark_connect() | {"SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def until(self, reached: Callable[[], object], process: subprocess.Popen[str]) -> None:
        wait_for("a run", reached, DEADLINE_S, unless=lambda: process.poll() is not None)

    def await_held(self, process: subprocess.Popen[str]) -> None:
        self.until(lambda: any(self.home.glob("held-*")), process)

    def outcome(self, process: subprocess.Popen[str]) -> dict[str, list[str]]:
        """Return for each shard why the run stopped, and the error of its report."""
        out, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
        return json.loads(out.strip().splitlines()[-1])

    def catches_up(self, process: subprocess.Popen[str]) -> None:
        outcome = self.outcome(process)
        assert {reason for reason, _ in outcome.values()} == {StopReason.CAUGHT_UP}, outcome

    def messages(self) -> str:
        path = self.home / "told"
        return path.read_text() if path.exists() else ""

    def let_go(self) -> bool:
        rows = store_of(self.home).snapshot(stream_of(self.home).key).shards
        return {row.consumer_run for row in rows} == {""}

    def check(self) -> None:
        """Each record of the log is committed once."""
        store, key = store_of(self.home), stream_of(self.home).key
        values: dict[str, list[bytes]] = {}
        for batch in ledger_records(store, key, self.home / "output"):
            for shard, value in zip(
                batch.column("shard_id").to_pylist(), batch.column("value").to_pylist(), strict=True
            ):
                values.setdefault(shard, []).append(value)
        # A shuffle keeps no order.
        assert {shard: sorted(own) for shard, own in values.items()} == {
            shard: sorted(b"%s:%d" % (shard.encode(), n) for n in range(RECORDS)) for shard in "012"
        }
        assert verify(store, key) == []


@pytest.fixture
def world(home: Path, tmp_path: Path) -> World:
    return World(home, tmp_path / "spark")


@contextmanager
def all_cores_taken(master: str) -> Generator[None]:
    """Another application holds every core of a cluster inside of the block."""
    with subprocess.Popen(
        [sys.executable, "-c", HOG, master],
        env=without_spark_connect() | {"SPARK_LOCAL_IP": "127.0.0.1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as hog:
        assert hog.stdout is not None
        assert hog.stdout.readline() == "full\n"
        yield
        assert hog.stdin is not None
        hog.stdin.close()


def kill_executors(worker_log: Path) -> None:
    """Kill the executors that workers below this folder have started."""
    killed = 0
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            line = " ".join(each.cmdline())
            if "CoarseGrainedExecutorBackend" in line and each.cwd().startswith(str(worker_log)):
                each.kill()
                killed += 1
    assert killed


def test_a_run_survives_an_expired_session_and_a_restarted_server(
    world: World, tmp_path: Path
) -> None:
    """Method: one run, which pauses between its batches for the one and then for the other."""
    port = free_port()
    conf = {
        "spark.connect.session.manager.defaultSessionTimeout": "15s",
        "spark.connect.session.manager.maintenanceInterval": "1s",
        "spark.log.level": "INFO",
    }
    pauses = [world.home / f"pause-{number}" for number in (1, 2)]
    for pause in pauses:
        pause.touch()
    expired = "that expired and will be closed"
    with ExitStack() as first, ExitStack() as runs:
        first.enter_context(connect_server_at(tmp_path, port, conf))
        run = runs.enter_context(world.run(f"sc://127.0.0.1:{port}"))
        world.until((world.home / "committed-1").exists, run)
        world.until(lambda: expired in read(tmp_path / "connect.log"), run)
        pauses[0].unlink()
        world.until((world.home / "committed-2").exists, run)
        first.close()
        with connect_server_at(tmp_path, port, {}, "again"):
            pauses[1].unlink()
            world.catches_up(run)
    world.check()


def test_a_replay_survives_a_restarted_server(world: World, tmp_path: Path) -> None:
    """Method: the replay pauses between two of its sweeps, while the server changes."""
    port = free_port()
    address = f"sc://127.0.0.1:{port}"
    with ExitStack() as first, ExitStack() as runs:
        first.enter_context(connect_server_at(tmp_path, port, {}))
        with world.run(address) as run:
            world.catches_up(run)
        (world.home / "pause-3").touch()
        run = runs.enter_context(world.run(address, "replay"))
        world.until((world.home / "replayed-3").exists, run)
        first.close()
        with connect_server_at(tmp_path, port, {}, "again"):
            (world.home / "pause-3").unlink()
            assert world.outcome(run) == {shard: ["3 batches", ""] for shard in "012"}
    store, key = store_of(world.home), stream_of(world.home).key
    for shard in "012":
        assert [batch.generation for batch in store.batches(key, ShardId(shard))] == [1, 1, 1]
    world.check()


def test_a_run_without_a_free_core_fails_and_a_later_one_succeeds(
    world: World, tmp_path: Path
) -> None:
    """Method: the run is the driver, and then the client of a server on the same cluster."""
    port = free_port()
    sentence = "has run no task of stream orders for 3 s, as if it had no free core"
    with (
        standalone_cluster(tmp_path, *this_spark(tmp_path), WORKERS) as master,
        ExitStack() as taken,
    ):
        taken.enter_context(all_cores_taken(master))
        served = {"spark.master": master, "spark.executor.memory": "512m"}
        with connect_server_at(tmp_path, port, served):
            address = f"sc://127.0.0.1:{port}"
            for mode in (master, address):
                with world.run(mode, stall_limit_s=10.0) as run:
                    stopped = world.outcome(run)
                assert {reason for reason, _ in stopped.values()} == {StopReason.FAILED}
                for _, error in stopped.values():
                    assert "This run made no progress for 10 s while it waited for" in error
                    assert f"a free core of Spark ({mode}), so it released its shards" in error
                assert f"Spark ({mode}) {sentence}" in world.messages()
                assert world.let_go()
                (world.home / "told").unlink()
        # The server, which waits for cores as well, is gone by now.
        with world.run(master) as run:
            world.until(lambda: f"Spark ({master}) {sentence}" in world.messages(), run)
            taken.close()
            world.catches_up(run)
    world.check()


def test_a_replay_without_a_free_core_fails_and_a_later_one_succeeds(
    world: World, tmp_path: Path
) -> None:
    """Method: a server on a cluster whose cores another application takes after the first run."""
    port = free_port()
    mode = f"sc://127.0.0.1:{port}"
    store, key = store_of(world.home), stream_of(world.home).key

    def generations() -> list[int]:
        return [batch.generation for shard in "012" for batch in store.batches(key, ShardId(shard))]

    with (
        standalone_cluster(tmp_path, *this_spark(tmp_path), WORKERS) as master,
        ExitStack() as taken,
    ):
        with world.run(master) as run:
            world.catches_up(run)
        taken.enter_context(all_cores_taken(master))
        served = {"spark.master": master, "spark.executor.memory": "512m"}
        with connect_server_at(tmp_path, port, served):
            with world.run(mode, "replay", stall_limit_s=10.0) as run:
                given_up = world.outcome(run)
            for batches, error in given_up.values():
                assert batches == "0 batches"
                assert "This run made no progress for 10 s while it waited for" in error
                assert f"a free core of Spark ({mode}), so it released its claims" in error
            sentence = "has run no task of stream orders for 3 s, as if it had no free core"
            assert f"Spark ({mode}) {sentence}" in world.messages()
            assert store.rewrites(key) == []
            assert set(generations()) == {0}, "the old output stays"
            taken.close()
            with world.run(mode, "replay") as run:
                outcome = world.outcome(run)
    assert outcome == {
        shard: [f"{len(store.batches(key, ShardId(shard)))} batches", ""] for shard in "012"
    }
    assert set(generations()) == {1}
    world.check()


@pytest.mark.parametrize("way", ["hold while reading", "hold after a shuffle"])
def test_a_lost_executor_costs_a_task_and_duplicates_no_record(
    world: World, tmp_path: Path, way: str
) -> None:
    """Method: every executor is killed while tasks of the stage are in the middle."""
    (world.home / "hold").touch()
    with standalone_cluster(tmp_path, *this_spark(tmp_path), WORKERS) as master:
        with world.run(master, way) as run:
            world.await_held(run)
            kill_executors(tmp_path / "work")
            (world.home / "hold").unlink()
            world.catches_up(run)
        logs = [read(tmp_path / f"worker-{number}.log") for number in range(WORKERS)]
    assert sum(log.count("Asked to launch executor") for log in logs) > WORKERS
    world.check()


def test_the_next_run_interrupts_the_job_of_a_killed_run(world: World) -> None:
    """Method: it holds all cores of the server that both use, for longer than the test may take."""
    (world.home / "hold").touch()
    try:
        with world.run("connect", "hold while reading") as run:
            world.await_held(run)
            run.send_signal(signal.SIGKILL)
            run.wait()
        server = running(world.folder)
        assert server is not None
        assert not world.let_go(), "the lease is still open to it"
        with world.run("connect", "replace run-1") as run:
            world.catches_up(run)
        assert running(world.folder) == server
    finally:
        stop(world.folder)
    world.check()


def test_a_shared_server_ends_the_job_of_a_killed_run(world: World, tmp_path: Path) -> None:
    """Method: it occupies all cores of the server, on which each run has a separate session."""
    port = free_port()
    conf = {
        "spark.connect.execute.manager.detachedTimeout": "10s",
        "spark.connect.execute.manager.maintenanceInterval": "1s",
    }
    (world.home / "hold").touch()
    with connect_server_at(tmp_path, port, conf):
        with world.run(f"sc://127.0.0.1:{port}", "hold while reading") as run:
            world.await_held(run)
            run.send_signal(signal.SIGKILL)
            run.wait()
        with world.run(f"sc://127.0.0.1:{port}", "replace run-1") as run:
            world.catches_up(run)
    world.check()


class Runner:
    """One run, in a process of its own."""

    def __init__(self, **settings: Any) -> None:
        self.home = Path(settings["home"])
        self.folder = Path(settings["folder"])
        self.run, self.mode, self.way = settings["run"], settings["mode"], settings["way"]
        self.stall_limit_s: float = settings["stall_limit_s"]
        self.steps = 0

    def consume(self) -> dict[str, list[str]]:
        """Consume all shards; return why each stopped, and its error."""
        if self.way.startswith("replace "):
            earlier = self.way.removeprefix("replace ")
            reports = consume(self.home, self.folder, self.run, earlier, mode=self.mode)
            return {shard: [each.stopped.value, each.error] for shard, each in reports.items()}
        node_consumption.time = ClockFrom((self.home / "told").exists)
        store, output = store_of(self.home), local_place(self.home / "output")
        stream = replace(
            stream_of(self.home, self._transform()), pace=Pace(stall_limit_s=self.stall_limit_s)
        )
        done, _ = consume_shards(
            stream,
            Deployment(lambda: store, (NODE,), Timing(), lambda _: output),
            spark=SparkResource(mode=self.mode, folder=str(self.folder)),
            node=NODE,
            incarnation="a-1",
            run=self.run,
            shards=[ShardId(shard) for shard in "012"],
            after_commit=lambda _: self._pause(),
            warn=self._warn,
            starved_after_s=STARVED_AFTER_S,
        )
        return {report.shard: [report.stopped.value, report.error] for report in done}

    def replay(self) -> dict[str, list[str]]:
        """Replay all shards; return the number of replayed batches of each, and its error."""
        spark = SparkResource(mode=self.mode, folder=str(self.folder))
        replay.time = ClockFrom((self.home / "told").exists)
        reports = replay_on_spark(
            replace(stream_of(self.home), pace=Pace(stall_limit_s=self.stall_limit_s)),
            store_of(self.home),
            [ShardId(shard) for shard in "012"],
            ReplaySpan(),
            spark=spark,
            output_root=local_place(self.home / "output"),
            run=self.run,
            ended=lambda _: False,
            progress=lambda *_: self._pause("replayed"),
            warn=self._warn,
            starved_after_s=STARVED_AFTER_S,
        )
        return {shard: [f"{each.batches} batches", each.error] for shard, each in reports.items()}

    def _transform(self) -> Any:
        held_stream.HELD_MAX_S = HELD_MAX_S
        if self.way == "hold while reading":
            return holding_tables(self.home)
        if self.way == "hold after a shuffle":
            held = HoldingTransform(self.home)
            return lambda rows: held(rows.repartition(2))
        return None

    def _pause(self, done: str = "committed") -> None:
        self.steps += 1
        (self.home / f"{done}-{self.steps}").touch()
        while (self.home / f"pause-{self.steps}").exists():
            time.sleep(0.05)

    def _warn(self, sentence: str) -> None:
        with (self.home / "told").open("a") as file:
            file.write(f"{sentence}\n")


if __name__ == "__main__":
    runner = Runner(**json.loads(sys.argv[1]))
    outcome = runner.replay() if runner.way == "replay" else runner.consume()
    sys.stdout.write(json.dumps(outcome) + "\n")
    sys.stdout.flush()
    # Without the farewell of Spark's client to a server that may be gone.
    os._exit(0)
