"""Where a client begins to read: stored before the first record, and never past a loss unseen."""

from __future__ import annotations

import pytest

from dagster_leasehold.lease_store.client import Fetched, ProcessorWorker, PullClient
from dagster_leasehold.lease_store.errors import GapHeld, StoreUnavailable
from dagster_leasehold.lease_store.group_rows import GapPolicy, Group
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import Intent
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.shard_rows import ShardListing
from tests.manual_clock import ManualClock
from tests.unit.lease_store.client.world import (
    BEAT_S,
    KEY,
    S0,
    S1,
    TIMEOUT_S,
    ListFeed,
    checkpoint,
    member,
    memory_store,
    polled,
    pull_client,
    started,
)


class Idle:
    """A processor that does nothing."""

    def initialize(self, shard: ShardId, cursor: str) -> None:
        pass

    def process(self, records: object) -> None:
        pass

    def shutdown(self) -> None:
        pass


def succeed(store: MemoryStore, clock: ManualClock, feed: ListFeed) -> PullClient:
    """A client that takes over after all others have died."""
    client = pull_client(store, clock, feed, "successor")
    client.start()
    for _ in range(8):
        clock.pass_s(BEAT_S)
        client.beat()
    assert client.partitions()
    return client


def test_a_successor_starts_where_the_first_client_started(clock: ManualClock, feed: ListFeed):
    """1. records are delivered and not confirmed; 2. the client dies; 3. the log's end moves."""
    store = memory_store(["0"], initial_position="end")
    first = started(store, clock, feed, "a")
    assert first.connect(S0) == "10"
    feed.append("0", b"delivered")
    assert polled(first).start == "10"
    feed.append("0", b"later")
    second = succeed(store, clock, feed)
    assert second.connect(S0) == "10"
    assert [record.value for record in polled(second).records] == [b"delivered", b"later"]


def test_records_removed_before_the_successor_started_are_a_gap(clock: ManualClock, feed: ListFeed):
    store = memory_store(["0"], gap_policy=GapPolicy.BEGIN)
    first = started(store, clock, feed, "a")
    first.connect(S0)
    polled(first)
    feed.begins[S0] = 2
    second = succeed(store, clock, feed)
    assert second.connect(S0) == "0"
    assert polled(second).start == "2"
    assert [(gap.start, gap.end) for gap in store.gaps(KEY)] == [("0", "2")]


def test_the_start_of_a_worker_is_stored_before_its_first_record(
    clock: ManualClock, feed: ListFeed
):
    store = memory_store(["0"], initial_position="end")
    joining = member(store, clock, "a")
    joining.register()
    worker = ProcessorWorker(joining, feed, lambda _: Idle(), clock=clock)
    worker.beat()
    worker.step()
    assert checkpoint(store) == "10"


def test_a_bootstrap_cursor_is_stored_before_the_first_record(clock: ManualClock, feed: ListFeed):
    store = memory_store(["0"], initial_position="end")
    client = started(store, clock, feed, "a")
    assert client.connect(S0, "3") == "3"
    assert checkpoint(store) == "3"


def test_no_record_is_delivered_before_the_start_position_is_stored(
    clock: ManualClock, feed: ListFeed
):
    store = memory_store(["0"], initial_position="end")
    client = started(store, clock, feed, "a")

    def away(*_: object) -> None:
        raise StoreUnavailable("away")

    real, store.save_checkpoint = store.save_checkpoint, away  # pyright: ignore
    with pytest.raises(StoreUnavailable):
        client.connect(S0)
    assert client.current_offsets() == {}
    store.save_checkpoint = real
    assert client.connect(S0) == "10"
    assert checkpoint(store) == "10"


def test_a_client_starts_at_the_intended_range_of_a_run(clock: ManualClock, feed: ListFeed):
    """The run may have shown records of it to its transform before it died."""
    store = memory_store(["0"], gap_policy=GapPolicy.BEGIN)
    run = member(store, clock, "run")
    run.register()
    run.heartbeat(())
    opened = store.open_tenure(KEY, S0, run.node, "run-1")
    assert isinstance(opened, Opened)
    store.record_intents([Intent(opened.tenure, 0, "0", "5")])
    feed.begins[S0] = 3
    client = succeed(store, clock, feed)
    assert client.connect(S0) == "0"
    assert polled(client).start == "3"
    assert [(gap.start, gap.end) for gap in store.gaps(KEY)] == [("0", "3")]
    assert verify(store, KEY) == []


def orphaned_child(policy: GapPolicy) -> tuple[MemoryStore, ListFeed]:
    """Shard 1 came of shard 0, which is over; retention has removed its first four records."""
    store = MemoryStore()
    store.create_group(Group(KEY, timeout_s=TIMEOUT_S, gap_policy=policy, ordered=False))
    listing = [ShardListing(S0, read_only=True), ShardListing(S1, parents=(S0,))]
    store.sync_shards(KEY, listing, observer="test")
    feed = ListFeed({S0: [], S1: [b"%d" % n for n in range(10)]}, read_only={S0})
    feed.begins[S1] = 4
    return store, feed


@pytest.mark.parametrize(
    ("policy", "end", "cursor"), [(GapPolicy.BEGIN, "4", "4"), (GapPolicy.END, "10", "10")]
)
def test_a_child_whose_beginning_was_removed_has_a_gap(
    clock: ManualClock, policy: GapPolicy, end: str, cursor: str
):
    store, feed = orphaned_child(policy)
    client = started(store, clock, feed, "a")
    assert client.connect(S1) == "0", "what follows decides, as behind any checkpoint"
    batch = client.poll(S1)
    assert [(gap.shard, gap.start, gap.end) for gap in store.gaps(KEY)] == [(S1, "0", end)]
    assert checkpoint(store, "1") == cursor
    assert (batch.start if batch else "10") == cursor


def test_a_group_that_holds_waits_at_a_child_whose_beginning_was_removed(clock: ManualClock):
    store, feed = orphaned_child(GapPolicy.HOLD)
    client = started(store, clock, feed, "a")
    client.connect(S1)
    for _ in range(2):
        with pytest.raises(GapHeld, match="from 0 to 4 of shard 1"):
            client.poll(S1)
    (gap,) = store.gaps(KEY)
    assert (gap.start, gap.end, gap.skipped) == ("0", "4", False)
    store.acknowledge_gap(KEY, gap, observer="operator")
    assert polled(client, S1).start == "4"


def test_a_complete_child_starts_without_a_gap(clock: ManualClock):
    store, feed = orphaned_child(GapPolicy.HOLD)
    del feed.begins[S1]
    client = started(store, clock, feed, "a")
    assert client.connect(S1) == "0"
    assert polled(client, S1).start == "0"
    assert store.gaps(KEY) == []


def test_a_cursor_that_moves_without_records_is_kept(clock: ManualClock, feed: ListFeed):
    """A log renews the cursors of an idle shard, which otherwise expire with time."""
    store = memory_store(["0"], initial_position="end")
    client = started(store, clock, feed, "a")
    client.connect(S0)
    feed.fetch = lambda shard, cursor, *, records_max: Fetched(cursor, "12")  # pyright: ignore
    assert client.poll(S0) is None
    assert client.current_offsets()[S0].confirmed == "12"
    client.shutdown()
    assert checkpoint(store) == "12"

    joining = member(store, clock, "w")
    joining.register()
    worker = ProcessorWorker(joining, feed, lambda _: Idle(), clock=clock)
    worker.beat()
    feed.fetch = lambda shard, cursor, *, records_max: Fetched(cursor, "13")  # pyright: ignore
    worker.step()
    assert not worker.step(), "nothing came"
    worker.shutdown()
    assert checkpoint(store) == "13"
