"""Two Dagster instances and a plain client share one group: only the lease tables are common.

The sensors, stores, logs, clients and the batch loop are real; the runs that the sensors ask for
are carried out in this process, and read with Arrow in place of Spark.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_leasehold.assets.consuming.consumption import Consumer
from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.client import GroupMember, ProcessorWorker, Record
from dagster_leasehold.lease_store.group_rows import Node, Timing
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.member import Member
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.sensors.active_runs import ActiveRuns
from dagster_leasehold.sensors.rebalance import rebalance_step
from dagster_leasehold.sensors.steps import Tick
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.record_feed import SourceFeed
from dagster_leasehold.shard_sources.source import Limits
from tests.ledger_output import ledger_records
from tests.unit.assets.consumption_world import ArrowSweeper

pytestmark = pytest.mark.long

TIMING = Timing(timeout_s=12.0, beat_s=4.0)
SHARDS, BATCH = 6, 20
DEADLINE_S = 120.0


class Instance:
    """One Dagster deployment with one node, whose sensor a test ticks."""

    def __init__(
        self, node: str, url: str, stream: ShardStream, output: Path, instance: dg.DagsterInstance
    ) -> None:
        self._stream = stream
        self._store = open_store(url)
        self._instance = instance
        place = local_place(output)
        self._sweeper = ArrowSweeper(stream.source, place)  # pyright: ignore[reportArgumentType]
        deployment = Deployment(lambda: self._store, (NodeName(node),), TIMING, lambda key: place)
        self._step = rebalance_step(stream, deployment)
        self._cursor: str | None = None

    def tick(self) -> None:
        """One tick of the sensor, and every run that it asks for."""
        outcome = self._step.run(Tick(ActiveRuns(self._instance), self._cursor or ""))
        self._cursor = outcome.cursor
        for request in outcome.run_requests:
            self._run(request.run_config["ops"]["consume__orders"]["config"])

    def _run(self, config: Any) -> None:
        node = NodeName(config["node"])
        key = self._stream.key
        with Member(self._store, key, Node(node, 0, config["incarnation"]), TIMING) as heartbeat:
            Consumer(
                stream=self._stream,
                store=self._store,
                node=node,
                run=str(uuid.uuid4()),
                sweeper=self._sweeper,
                heartbeat=heartbeat,
                clock=time.monotonic,
            ).consume([ShardId(shard) for shard in config["shards"]])


class Collector:
    """Consume as a plain client, and remember each record."""

    def __init__(self, seen: list[tuple[str, bytes]]) -> None:
        self._seen = seen

    def initialize(self, shard: ShardId, cursor: str) -> None: ...

    def process(self, records: tuple[Record, ...]) -> None:
        self._seen += [(record.shard, record.value or b"") for record in records]

    def shutdown(self) -> None: ...


@contextmanager
def plain_client(url: str, stream: ShardStream, seen: list[tuple[str, bytes]]) -> Generator[None]:
    """A worker named `script` on a thread; it leaves with the block."""
    worker = ProcessorWorker(
        GroupMember(open_store(url), stream.key, NodeName("script"), incarnation="script-1"),
        SourceFeed(stream.source),
        lambda _: Collector(seen),
        idle_s=0.05,
    )
    stopping = threading.Event()
    thread = threading.Thread(target=worker.run, args=(stopping,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    address = f"sqlite:///{tmp_path}/leases.db"
    if request.param == "mariadb":
        address = request.getfixturevalue("mariadb_url")
    open_store(address, upgrade=True).close()
    return address


def test_two_deployments_and_a_client_read_each_record_once(url: str, tmp_path: Path) -> None:
    log = LocalLog.create(tmp_path / "log", SHARDS)
    stream = ShardStream(
        name="orders", source=log, limits=Limits(records_max=7), pace=Pace(commit_interval_s=0.0)
    )
    store, output = open_store(url), tmp_path / "output"
    seen: list[tuple[str, bytes]] = []
    written = 0

    def append() -> None:
        nonlocal written
        for shard in range(SHARDS):
            log.append(str(shard), [b"%d" % (written + n) for n in range(BATCH)])
        written += BATCH

    def shares() -> dict[str, int]:
        owners = [str(row.consumer_owner) for row in store.snapshot(stream.key).shards]
        return {owner: owners.count(owner) for owner in owners}

    def read() -> bool:
        return {row.check_point for row in store.snapshot(stream.key).shards} == {str(written)}

    def until(reached: Callable[[], bool], *ticking: Instance) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not reached():
            assert time.monotonic() < deadline, (shares(), written)
            for instance in ticking:
                instance.tick()
            time.sleep(0.2)

    with ExitStack() as stack:
        east, west = (
            Instance(name, url, stream, output, stack.enter_context(dg.DagsterInstance.ephemeral()))
            for name in ("east", "west")
        )
        append()
        east.tick()  # makes the group
        until(read, east, west)
        with plain_client(url, stream, seen):
            until(lambda: shares() == {"east": 2, "west": 2, "script": 2}, east, west)
            append()
            until(read, east, west)
            # West is not asked to leave: its sensor is never ticked again.
            until(lambda: shares() == {"east": 3, "script": 3}, east)
            append()
            until(read, east)
        until(lambda: shares() == {"east": SHARDS}, east)
        append()
        until(read, east)

    values = [
        (shard, value)
        for batch in ledger_records(store, stream.key, output)
        for shard, value in zip(
            batch.column("shard_id").to_pylist(), batch.column("value").to_pylist(), strict=True
        )
    ]
    assert seen
    assert sorted(values + seen) == sorted(
        (str(shard), b"%d" % n) for shard in range(SHARDS) for n in range(written)
    )
    assert verify(store, stream.key) == []
