"""Plain clients on real stores and a real log: shared, handed over, taken over, fenced."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.client import GroupMember, ProcessorWorker, PullClient, Record
from dagster_leasehold.lease_store.errors import LeaseholdError, LeaseLost, ShardNotOpen
from dagster_leasehold.lease_store.group_rows import GapPolicy, Group
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.record_feed import SourceFeed
from tests.freezing import freeze

pytestmark = pytest.mark.long

KEY = GroupKey.parse("readers", "events")
S0 = ShardId("0")
DEADLINE_S = 60.0
RECORDS = 50


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/leases.db"
    return request.getfixturevalue("mariadb_url")


@pytest.fixture
def store(url: str) -> Generator[LeaseStore]:
    store = open_store(url, upgrade=True)
    yield store
    store.close()


def new_log(folder: Path, shards: int) -> LocalLog:
    log = LocalLog.create(folder, shards, clock=lambda: datetime(2026, 1, 2, tzinfo=UTC))
    for shard in range(shards):
        log.append(str(shard), [f"{shard}:{number}".encode() for number in range(RECORDS)])
    return log


def create_group(
    store: LeaseStore, log: LocalLog, timeout_s: float, policy: GapPolicy = GapPolicy.HOLD
) -> None:
    store.create_group(Group(KEY, timeout_s=timeout_s, gap_policy=policy))
    store.sync_shards(KEY, log.list_shards(), observer="test")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        threading.Event().wait(0.02)


class Collector:
    """Notes each record with the worker that processed it."""

    def __init__(self, worker: str, seen: list[tuple[str, str, str]]) -> None:
        self.worker = worker
        self.seen = seen

    def initialize(self, shard: ShardId, cursor: str) -> None: ...

    def process(self, records: tuple[Record, ...]) -> None:
        self.seen += [(self.worker, record.shard, record.cursor) for record in records]

    def shutdown(self) -> None: ...


def test_workers_that_join_and_leave_process_each_record_once(store: LeaseStore, tmp_path: Path):
    """Three workers come one by one, one leaves: clean hand-overs repeat and lose nothing."""
    log = new_log(tmp_path / "log", 4)
    create_group(store, log, timeout_s=10.0)
    seen: list[tuple[str, str, str]] = []
    running: dict[str, tuple[threading.Thread, threading.Event]] = {}

    def start(name: str) -> None:
        worker = ProcessorWorker(
            GroupMember(store, KEY, NodeName(name), incarnation=f"{name}-process"),
            SourceFeed(log),
            lambda _: Collector(name, seen),
            records_max=3,
            idle_s=0.05,
        )
        stopping = threading.Event()
        thread = threading.Thread(target=worker.run, args=(stopping,), daemon=True)
        thread.start()
        running[name] = (thread, stopping)

    def holders() -> set[str]:
        rows = store.snapshot(KEY).shards
        return {str(row.consumer_owner) for row in rows if row.consumer_owner}

    start("a")
    wait_until(lambda: len(seen) >= RECORDS)
    start("b")
    wait_until(lambda: holders() == {"a", "b"})
    start("c")
    for shard in range(4):
        log.append(str(shard), [b"late"] * RECORDS)
    wait_until(lambda: holders() == {"a", "b", "c"})
    running["a"][1].set()
    running["a"][0].join(DEADLINE_S)
    wait_until(lambda: holders() == {"b", "c"})
    wait_until(lambda: len(seen) >= 8 * RECORDS)
    for thread, stopping in running.values():
        stopping.set()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert len(seen) == 8 * RECORDS
    assert {(shard, cursor) for _, shard, cursor in seen} == {
        (str(shard), str(cursor)) for shard in range(4) for cursor in range(2 * RECORDS)
    }
    assert {row.check_point for row in store.snapshot(KEY).shards} == {str(2 * RECORDS)}
    assert verify(store, KEY) == []


def consume_until_told(url: str, log: Path, confirmed: int, parent: Connection) -> None:
    """Another process: confirms some records, and the next ones only on request."""
    store = open_store(url)
    client = PullClient(
        store, KEY, SourceFeed(LocalLog(log)), name=NodeName("doomed"), incarnation="doomed-1"
    )
    client.start()
    client.connect(S0)
    first = client.poll(S0, records_max=confirmed)
    assert first is not None
    client.confirm(first, persist=True)
    second = client.poll(S0, records_max=5)
    assert second is not None
    parent.send("polled")
    parent.recv()
    outcomes: list[str] = []
    for _ in range(2):
        try:
            client.confirm(second, persist=True)
        except LeaseholdError as error:
            outcomes.append(type(error).__name__)
    parent.send(outcomes)


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_a_process_that_dies_or_freezes_is_replaced_from_its_checkpoint(
    store: LeaseStore, url: str, tmp_path: Path, fault: str
):
    log = new_log(tmp_path / "log", 1)
    create_group(store, log, timeout_s=5.0)
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    doomed = processes.Process(
        target=consume_until_told, args=(url, log.root, 7, there), daemon=True
    )
    doomed.start()
    try:
        # Not at its checkpoint: frozen before it polls, it would get the error at once.
        assert here.poll(DEADLINE_S)
        assert here.recv() == "polled"
        assert store.snapshot(KEY).shards[0].check_point == "7"
        assert doomed.pid is not None
        if fault == "kill":
            doomed.kill()
        else:
            freeze(doomed.pid)
        standby = PullClient(
            store, KEY, SourceFeed(log), name=NodeName("standby"), incarnation="standby-1"
        )
        standby.start()
        wait_until(lambda: standby.partitions() == (S0,))
        assert standby.connect(S0) == "7"
        batch = standby.poll(S0)
        assert batch is not None
        assert batch.records[0].value == b"0:7"
        if fault == "freeze":
            os.kill(doomed.pid, signal.SIGCONT)
            here.send("confirm")
            assert here.poll(DEADLINE_S)
            assert here.recv() == ["LeaseLost", "ShardNotOpen"]
        standby.confirm(batch, persist=True)
        standby.shutdown()
    finally:
        doomed.kill()
        doomed.join(DEADLINE_S)
    row = store.snapshot(KEY).shards[0]
    assert row.check_point == str(RECORDS)
    assert verify(store, KEY) == []


def test_a_stale_holder_gets_one_error_and_changes_nothing(store: LeaseStore, tmp_path: Path):
    """Virtual time: the holder stops beating, another takes over by its own observation."""
    log = new_log(tmp_path / "log", 1)
    create_group(store, log, timeout_s=30.0)
    now = [0.0]

    def member(name: str) -> GroupMember:
        joining = GroupMember(
            store, KEY, NodeName(name), incarnation=f"{name}-1", clock=lambda: now[0]
        )
        joining.register()
        return joining

    stale = member("stale")
    stale.heartbeat(())
    opened = stale.open(S0)
    assert isinstance(opened, Opened)
    stale.save_checkpoint(S0, "3", persist=True)
    taker = member("taker")
    for _ in range(6):
        now[0] += 5.0
        assert taker.heartbeat(()) == (), "not a second before the timeout"
    now[0] += 0.5
    assert taker.heartbeat(()) == (S0,)
    taken = taker.open(S0)
    assert isinstance(taken, Opened)
    assert (taken.check_point, taken.tenure.epoch) == ("3", 2)
    taker.save_checkpoint(S0, "8", persist=True)
    with pytest.raises(LeaseLost):
        store.save_checkpoint(opened.tenure, "4")
    with pytest.raises(LeaseLost):
        stale.save_checkpoint(S0, "4", persist=True)
    with pytest.raises(ShardNotOpen):
        stale.save_checkpoint(S0, "4", persist=True)
    assert store.snapshot(KEY).shards[0].check_point == "8"
    taker.shutdown()
    assert verify(store, KEY) == []


def test_records_removed_under_a_client_become_a_gap(store: LeaseStore, tmp_path: Path):
    log = LocalLog.create(tmp_path / "log", 1)
    for number in range(6):
        log.append("0", [f"{number}".encode()])
    create_group(store, log, timeout_s=30.0, policy=GapPolicy.BEGIN)
    client = PullClient(
        store, KEY, SourceFeed(log), name=NodeName("a"), incarnation="a-1", background=False
    )
    client.start()
    assert client.connect(S0) == "0"
    batch = client.poll(S0, records_max=1)
    assert batch is not None
    client.confirm(batch)
    begin = log.retain("0", "4")
    assert begin == "4"
    batch = client.poll(S0)
    assert batch is not None
    assert batch.records[0].value == b"4"
    client.confirm(batch)
    client.shutdown()
    assert [(gap.start, gap.end) for gap in store.gaps(KEY)] == [("1", "4")]


def test_a_split_shard_is_read_to_its_end_before_its_children(store: LeaseStore, tmp_path: Path):
    log = new_log(tmp_path / "log", 1)
    create_group(store, log, timeout_s=10.0)
    children = log.split("0")
    for child in children:
        log.append(child, [b"child"])
    store.sync_shards(KEY, log.list_shards(), observer="test")
    seen: list[tuple[str, str, str]] = []
    worker = ProcessorWorker(
        GroupMember(store, KEY, NodeName("a"), incarnation="a-1"),
        SourceFeed(log),
        lambda _: Collector("a", seen),
        records_max=20,
        idle_s=0.01,
    )
    stopping = threading.Event()
    thread = threading.Thread(target=worker.run, args=(stopping,), daemon=True)
    thread.start()
    wait_until(lambda: len(seen) == RECORDS + 2)
    stopping.set()
    thread.join(DEADLINE_S)
    assert [shard for _, shard, _ in seen[:RECORDS]] == ["0"] * RECORDS
    assert {shard for _, shard, _ in seen[RECORDS:]} == set(children)
    assert verify(store, KEY) == []
