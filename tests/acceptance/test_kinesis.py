"""A Kinesis stream through real Dagster processes: split, killed, merged; each record once."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from itertools import count
from pathlib import Path

import pytest
from dagster import DagsterInstance

from dagster_leasehold.assets.partitions import PROCESS_TAG
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.settings import Settings
from tests.acceptance import held_stream
from tests.acceptance.held_stream import committed, intended
from tests.dagster_deployment import dagster_deployment
from tests.declared import declare, stream_text
from tests.kinesis_servers import REGION, SECRET_KEY
from tests.sources.world import NewRecord
from tests.sources.worlds.kinesis import FAST, KinesaliteWorld
from tests.waiting import wait_for

KEY = GroupKey.parse("default", held_stream.STREAM)
WAIT_S = 300.0
pytestmark = [
    pytest.mark.release,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(1200),
]


class Producer:
    """Puts numbered records, and knows which shard has which."""

    def __init__(self, world: KinesaliteWorld) -> None:
        self._world = world
        self._numbers = count()
        self.sent: dict[str, list[bytes]] = {}

    def put(self, shard: ShardId, records: int) -> None:
        values = [f"{shard[-3:]}:{next(self._numbers)}".encode() for _ in range(records)]
        self._world.put(shard, [NewRecord(value) for value in values])
        self.sent.setdefault(shard, []).extend(values)


@pytest.fixture
def world(tmp_path: Path) -> Generator[KinesaliteWorld]:
    world = KinesaliteWorld(tmp_path)
    try:
        yield world
    finally:
        world.close()


def states(store: LeaseStore) -> dict[str, ShardState]:
    return {row.shard: row.state for row in store.snapshot(KEY).shards}


def test_a_stream_split_and_merged_under_killed_runs_is_consumed_once(
    tmp_path: Path, world: KinesaliteWorld
) -> None:
    """Kill -9 a run in its Spark job, split before it is repeated, merge when that is consumed."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "hold").touch()
    settings = Settings(home=home, nodes=("node-a",))
    options = {"stream": world.name, "region": REGION, "endpoint_url": world.proxy.url, **FAST}
    pace = "Pace(commit_interval_s=0, idle_limit_s=1)"
    declare(home, stream_text(KEY.stream, "kinesis", options=options, pace=pace))
    producer = Producer(world)
    first, second = (row.shard for row in world.source.list_shards())
    producer.put(first, 300)
    producer.put(second, 300)
    store = open_store(settings.store_url.get_secret_value(), upgrade=True)
    output = settings.output_folder(KEY.stream, KEY.group)
    started = dagster_deployment(settings, module="tests.acceptance.kinesis_definitions")

    def consumed() -> bool:
        # The ledger first: reading all output at every check would slow the machine down.
        read = sum(batch.statistics.records or 0 for batch in store.batches(KEY))
        sent = sum(len(values) for values in producer.sent.values())
        return read >= sent and committed(store, output) == producer.sent

    with started, DagsterInstance.from_config(str(settings.dagster_home)) as instance:
        killed = wait_for("a batch in its Spark job", lambda: intended(store, home), WAIT_S)
        run = instance.get_run_by_id(killed)
        assert run is not None
        os.kill(int(run.tags[PROCESS_TAG].split("|")[1]), signal.SIGKILL)
        low, high = world.split(first)
        for shard in (low, high, second):
            producer.put(shard, 200)
        (home / "hold").unlink()
        wait_for("all records after the split", consumed, WAIT_S)
        merged = world.merge(high, second)
        producer.put(low, 100)
        producer.put(merged, 100)
        wait_for("all records after the merge", consumed, WAIT_S)
        over = {first, high, second}
        wait_for(
            "the parents to be over",
            lambda: {shard for shard, at in states(store).items() if at is ShardState.OVER} == over,
            WAIT_S,
        )
    assert committed(store, output) == producer.sent
    assert verify(store, KEY) == []
    assert store.gaps(KEY) == []
    assert killed not in {batch.run for batch in store.batches(KEY)}
    assert_nowhere(home, SECRET_KEY)


def assert_nowhere(home: Path, secret: str) -> None:
    """No file that the processes left contains a secret."""
    for path in home.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path
