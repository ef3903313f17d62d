"""The pull client: connecting, protect time, hand-over, gaps, and the modes of assignment."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from dagster_leasehold.lease_store.client import PullClient, PulledBatch
from dagster_leasehold.lease_store.errors import (
    BatchUnconfirmed,
    ConfirmedTooLate,
    CursorInvalid,
    GapHeld,
    LeaseLost,
    ModuloIdTaken,
    ShardNotOpen,
    ShardOccupied,
    UnknownShard,
)
from dagster_leasehold.lease_store.group_rows import AssignmentMode, GapPolicy, Group
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardListing
from tests.manual_clock import ManualClock
from tests.unit.lease_store.client.world import (
    BEAT_S,
    KEY,
    PROTECT_S,
    S0,
    S1,
    TIMEOUT_S,
    ListFeed,
    checkpoint,
    memory_store,
    moving_to,
    owner,
    polled,
    pull_client,
    started,
)


def test_poll_and_confirm_move_the_offsets(clock: ManualClock, feed: ListFeed):
    store = memory_store(["0"])
    client = started(store, clock, feed, "a")
    assert client.partitions() == (S0,)
    assert client.connect(S0) == "0"
    batch = polled(client)
    assert [record.value for record in batch.records] == [b"0:0", b"0:1", b"0:2", b"0:3"]
    offsets = client.current_offsets()[S0]
    assert (offsets.polled, offsets.confirmed, offsets.persisted) == ("4", "0", "0")
    client.confirm(batch)
    assert checkpoint(store) == "0"
    client.confirm(polled(client), persist=True)
    offsets = client.current_offsets()[S0]
    assert (offsets.polled, offsets.confirmed, offsets.persisted) == ("8", "8", "8")
    assert checkpoint(store) == "8"
    client.confirm(polled(client))
    assert client.poll(S0) is None
    client.shutdown()
    assert checkpoint(store) == "10"
    assert owner(store) is None


def test_a_part_of_a_batch_can_be_confirmed(clock: ManualClock, feed: ListFeed):
    client = started(memory_store(["0"]), clock, feed, "a")
    client.connect(S0)
    batch = polled(client)
    with pytest.raises(ValueError, match="is not a cursor of this batch"):
        client.confirm(batch, upto="9")
    client.confirm(batch, upto=batch.records[1].next_cursor)
    assert polled(client).records[0].value == b"0:2"


def test_poll_without_a_shard_takes_turns(clock: ManualClock, feed: ListFeed):
    client = started(memory_store(["0", "1"]), clock, feed, "a")
    for shard in client.partitions():
        client.connect(shard)
    first, second = client.poll(), client.poll()
    assert first is not None
    assert second is not None
    assert {first.shard, second.shard} == {"0", "1"}
    assert client.poll() is None, "both are unconfirmed"


def test_an_unconfirmed_batch_is_protected_and_then_rolled_back(clock: ManualClock, feed: ListFeed):
    store = memory_store(["0"])
    client = started(store, clock, feed, "a")
    client.connect(S0)
    late = polled(client)
    clock.pass_s(PROTECT_S - 0.1)
    with pytest.raises(BatchUnconfirmed):
        client.poll(S0)
    clock.pass_s(0.1)
    with pytest.raises(ConfirmedTooLate):
        client.confirm(late)
    again = polled(client)
    assert again.records == late.records
    with pytest.raises(ConfirmedTooLate):
        client.confirm(late)
    client.confirm(again, persist=True)
    assert checkpoint(store) == "4"
    with pytest.raises(ConfirmedTooLate):
        client.confirm(again)


def test_a_shard_is_transferred_once_its_batch_is_confirmed(clock: ManualClock, feed: ListFeed):
    store = memory_store(["0", "1"])
    a = started(store, clock, feed, "a")
    batches = {}
    for shard in a.partitions():
        a.connect(shard)
        batches[shard] = polled(a, shard)
    a.beat()
    b = started(store, clock, feed, "b")
    moving = moving_to(store, "b")
    a.beat()
    assert owner(store, moving) == "a"
    announced = next(row for row in store.snapshot(KEY).shards if row.shard == moving)
    assert announced.handoff_eta_s == PROTECT_S
    b.beat()
    assert b.partitions() == ()
    a.confirm(batches[moving])
    assert owner(store, moving) == "b"
    assert checkpoint(store, moving) == "4"
    b.beat()
    assert b.connect(moving) == "4"
    with pytest.raises(ShardNotOpen):
        a.poll(moving)


def test_a_shard_is_transferred_when_the_protect_time_of_its_batch_ends(
    clock: ManualClock, feed: ListFeed
):
    store = memory_store(["0", "1"])
    a = started(store, clock, feed, "a")
    for shard in a.partitions():
        a.connect(shard)
        a.confirm(polled(a, shard))
        polled(a, shard)
    a.beat()
    b = started(store, clock, feed, "b")
    moving = moving_to(store, "b")
    for _ in range(3):
        a.beat()
        b.beat()
        assert owner(store, moving) == "a"
        clock.pass_s(BEAT_S - 1)
    a.beat()
    b.beat()
    assert owner(store, moving) == "b"
    assert b.connect(moving) == "4", "the confirmed batch is persisted, the other comes again"


def test_unconfirmed_records_of_a_dead_client_are_delivered_again(
    clock: ManualClock, feed: ListFeed
):
    store = memory_store(["0"])
    a = started(store, clock, feed, "a")
    a.connect(S0)
    a.confirm(polled(a), persist=True)
    lost = polled(a)
    b = started(store, clock, feed, "b")
    for _ in range(10):
        clock.pass_s(BEAT_S)
        b.beat()
    assert b.partitions() == (S0,)
    assert b.connect(S0) == "4"
    assert polled(b).records == lost.records
    with pytest.raises(ConfirmedTooLate):
        a.confirm(lost)
    with pytest.raises(LeaseLost):
        a.poll(S0)
    with pytest.raises(ShardNotOpen):
        a.poll(S0)


def test_a_fenced_confirm_is_raised_once_and_moves_nothing(clock: ManualClock, feed: ListFeed):
    store = memory_store(["0"])
    a = started(store, clock, feed, "a")
    a.connect(S0)
    batch = polled(a)
    store.force_checkpoint(KEY, S0, "7", observer="operator", reason="test")
    with pytest.raises(LeaseLost):
        a.confirm(batch, persist=True)
    with pytest.raises(ShardNotOpen):
        a.confirm(batch, persist=True)
    a.beat()
    assert checkpoint(store) == "7"
    assert a.connect(S0) == "7"


def test_a_bootstrap_cursor_starts_the_shard_and_forces_a_stored_checkpoint(
    clock: ManualClock, feed: ListFeed
):
    store = memory_store(["0"])
    client = started(store, clock, feed, "a")
    assert client.connect(S0, "3") == "3"
    client.confirm(polled(client, count=3), persist=True)
    client.disconnect(S0)
    assert client.connect(S0, "-1") == "6"
    client.disconnect(S0)
    with pytest.raises(CursorInvalid):
        client.connect(S0, "nonsense")
    assert checkpoint(store) == "6"
    assert client.connect(S0, "2") == "2"
    assert checkpoint(store) == "2"
    forces = [entry for entry in store.journal(KEY) if entry.kind == "force"]
    assert [entry.check_point for entry in forces] == ["2"]


def test_a_cursor_outside_the_shard_is_clamped_and_recorded_as_a_gap(
    clock: ManualClock, feed: ListFeed
):
    store = memory_store(["0", "1"])
    feed.begins[S0] = 5
    client = started(store, clock, feed, "a")
    assert client.connect(S0, "2") == "5"
    assert client.connect(S1, "99") == "10"
    assert [(gap.shard, gap.start, gap.end) for gap in store.gaps(KEY)] == [
        ("0", "2", "5"),
        ("1", "10", "10"),
    ]
    (force,) = [entry for entry in store.journal(KEY) if entry.kind == "force"]
    assert (force.shard, force.check_point) == ("1", "10")
    assert force.reason == "connected with the bootstrap cursor 99"
    assert polled(client).records[0].value == b"0:5"


@pytest.mark.parametrize(("asked", "begin"), [("1000000000", "10"), ("2", "5")])
def test_a_second_connect_with_a_clamped_cursor_returns_the_position(
    clock: ManualClock, feed: ListFeed, asked: str, begin: str
):
    store = memory_store(["0"])
    feed.begins[S0] = 5
    client = started(store, clock, feed, "a")
    assert client.connect(S0, asked) == begin
    feed.append("0", b"late")
    assert client.connect(S0, asked) == begin
    client.confirm(polled(client))
    with pytest.raises(ShardOccupied, match="disconnect it before you begin elsewhere"):
        client.connect(S0, asked)


@pytest.mark.parametrize(
    ("policy", "value", "end"), [(GapPolicy.BEGIN, b"0:6", "6"), (GapPolicy.END, b"late", "10")]
)
def test_records_removed_while_connected_become_a_gap(
    clock: ManualClock, feed: ListFeed, policy: GapPolicy, value: bytes, end: str
):
    store = memory_store(["0"], gap_policy=policy)
    client = started(store, clock, feed, "a")
    client.connect(S0)
    client.confirm(polled(client))
    feed.begins[S0] = 6
    if policy is GapPolicy.END:
        assert client.poll(S0) is None
    feed.append("0", b"late")
    assert polled(client).records[0].value == value
    assert [(gap.start, gap.end) for gap in store.gaps(KEY)] == [("4", end)]
    assert checkpoint(store) == end


def test_a_group_that_holds_at_gaps_continues_once_the_loss_is_accepted(
    clock: ManualClock, feed: ListFeed
):
    store = memory_store(["0", "1"])
    client = started(store, clock, feed, "a")
    for shard in client.partitions():
        client.connect(shard)
    client.confirm(polled(client))
    feed.begins[S0] = 6
    for _ in range(2):
        with pytest.raises(GapHeld, match="from 4 to 6 of shard 0"):
            client.poll(S0)
    other = client.poll()
    assert other is not None
    assert other.shard == S1, "the shard that holds does not hold up the others"
    with pytest.raises(GapHeld):
        client.poll()
    assert checkpoint(store) == "4"
    (gap,) = store.gaps(KEY)
    store.acknowledge_gap(KEY, gap, observer="operator")
    assert polled(client).records[0].value == b"0:6"
    assert checkpoint(store) == "6"


def test_the_initial_position_counts_only_without_a_checkpoint(clock: ManualClock, feed: ListFeed):
    store = memory_store(["0", "1"], initial_position="end")
    client = started(store, clock, feed, "a")
    assert client.connect(S0) == "10"
    store.force_checkpoint(KEY, S1, "4", observer="operator", reason="test")
    assert client.connect(S1) == "4"


def test_a_finished_shard_frees_its_children_which_start_at_their_first_record(
    clock: ManualClock, feed: ListFeed
):
    store = MemoryStore()
    store.create_group(Group(KEY, timeout_s=TIMEOUT_S, initial_position="end", ordered=True))
    store.sync_shards(
        KEY, [ShardListing(S0, read_only=True), ShardListing(S1, parents=(S0,))], observer="test"
    )
    feed.read_only.add(S0)
    client = started(store, clock, feed, "a")
    assert client.partitions() == (S0,)
    client.connect(S0, "0")
    client.confirm(polled(client, count=6))
    client.confirm(polled(client, count=6))
    assert {row.shard: row.state for row in store.snapshot(KEY).shards} == {
        "0": ShardState.OVER,
        "1": ShardState.NOT_ALLOC,
    }
    assert checkpoint(store) == "10"
    client.beat()
    assert client.partitions() == (S1,)
    assert client.connect(S1) == "0"


@pytest.mark.parametrize("mode", [AssignmentMode.BALANCED, AssignmentMode.PINNED])
def test_the_error_of_a_waiting_child_names_its_parents(
    clock: ManualClock, feed: ListFeed, mode: AssignmentMode
):
    store = memory_store(["0"], assignment=mode, ordered=True)
    listing = [ShardListing(S0), ShardListing(S1, parents=(S0,))]
    store.sync_shards(KEY, listing, observer="test")
    client = started(store, clock, feed, "a")
    with pytest.raises(ShardOccupied, match=r"it waits for its parents \(0\)"):
        client.connect(S1)
    orphan = ShardListing(ShardId("2"), parents=(ShardId("9"),))
    feed.append("2", b"first")
    store.sync_shards(KEY, [*listing, orphan], observer="test")
    clock.pass_s(BEAT_S)
    client.beat()
    with pytest.raises(ShardOccupied, match=r"never listed \(9\)"):
        client.connect(ShardId("2"))


def test_an_empty_finished_shard_is_over(clock: ManualClock):
    feed = ListFeed({S0: []}, read_only={S0})
    store = memory_store(["0"])
    client = started(store, clock, feed, "a")
    client.connect(S0)
    assert client.poll(S0) is None
    assert store.snapshot(KEY).shards[0].state is ShardState.OVER
    assert client.current_offsets() == {}


def test_modulo_clients_take_their_ranks_and_conflicts_are_refused(
    clock: ManualClock, feed: ListFeed
):
    store = memory_store(["0", "1"], assignment=AssignmentMode.MODULO)
    a = started(store, clock, feed, "a", 2, 1)
    assert a.partitions() == (S1,)
    b = pull_client(store, clock, feed, "b")
    with pytest.raises(ModuloIdTaken):
        b.start(2, 1)
    b.start(2, 0)
    assert b.partitions() == (S0,)
    with pytest.raises(ShardOccupied, match="it belongs to b"):
        a.connect(S0)


@pytest.mark.parametrize("beats", [0, 1])
@pytest.mark.parametrize("mode", [AssignmentMode.MODULO, AssignmentMode.BALANCED])
def test_a_shard_that_its_source_closed_is_not_connected(
    clock: ManualClock, feed: ListFeed, mode: AssignmentMode, beats: int
):
    store = memory_store(["0"], assignment=mode)
    client = started(store, clock, feed, "a", 1, 0)
    assert client.partitions() == (S0,)
    store.sync_shards(KEY, [ShardListing(S0, subscribable=False)], observer="test")
    for _ in range(beats):
        clock.pass_s(BEAT_S)
        client.beat()
    with pytest.raises(
        ShardOccupied, match="its source does not allow consumers to subscribe to it now"
    ):
        client.connect(S0)
    assert owner(store) == "a", "it stays assigned"
    store.sync_shards(KEY, [ShardListing(S0)], observer="test")
    assert client.connect(S0) == "0"


def test_a_negative_count_switches_modulo_off(clock: ManualClock, feed: ListFeed):
    store = memory_store(["0", "1"], assignment=AssignmentMode.MODULO)
    a, b = started(store, clock, feed, "a", -1), started(store, clock, feed, "b", -1)
    a.beat()
    b.beat()
    assert len(a.partitions()) == len(b.partitions()) == 1


def test_pinned_clients_get_only_the_shards_that_they_connect(clock: ManualClock, feed: ListFeed):
    store = memory_store(["0", "1"], assignment=AssignmentMode.PINNED)
    a, b = started(store, clock, feed, "a"), started(store, clock, feed, "b")
    assert a.partitions() == ()
    assert a.connect(S0, "2") == "2"
    a.beat()
    assert a.partitions() == (S0,)
    with pytest.raises(ShardOccupied, match="it belongs to a"):
        b.connect(S0)
    with pytest.raises(UnknownShard):
        b.connect(ShardId("9"))
    assert b.connect(S1) == "0"
    a.beat()
    assert a.partitions() == (S0,)
    a.confirm(polled(a))
    a.disconnect(S0)
    assert checkpoint(store) == "6"


def test_shards_of_a_paused_group_are_released_and_return(clock: ManualClock, feed: ListFeed):
    store = memory_store(["0"])
    client = started(store, clock, feed, "a")
    client.connect(S0)
    client.confirm(polled(client))
    client.beat()
    (group,) = store.groups()
    store.update_group(replace(group, paused=True), observer="operator")
    client.beat()
    assert client.partitions() == ()
    assert checkpoint(store) == "4"
    with pytest.raises(ShardNotOpen):
        client.poll(S0)
    store.update_group(replace(group, paused=False), observer="operator")
    client.beat()
    assert client.connect(S0) == "4"


def test_a_slow_log_does_not_delay_beats(clock: ManualClock, feed: ListFeed):
    store = memory_store(["0"])
    client = started(store, clock, feed, "a")
    client.connect(S0)
    reading, may_go_on = threading.Event(), threading.Event()
    real = feed.fetch

    def slow(shard: ShardId, cursor: str, *, records_max: int):
        reading.set()
        assert may_go_on.wait(10)
        return real(shard, cursor, records_max=records_max)

    feed.fetch = slow  # pyright: ignore
    batches: list[PulledBatch | None] = []
    poller = threading.Thread(target=lambda: batches.append(client.poll(S0)))
    poller.start()
    assert reading.wait(10)
    for _ in range(8):
        clock.pass_s(BEAT_S)
        client.beat()
    may_go_on.set()
    poller.join(10)
    assert batches[0] is not None
    assert batches[0].end == "10"


def test_the_background_thread_beats_and_ends(feed: ListFeed):
    store = MemoryStore()
    store.create_group(Group(KEY, timeout_s=3.0))
    store.sync_shards(KEY, [ShardListing(S0)], observer="test")
    client = PullClient(store, KEY, feed, name=NodeName("a"), incarnation="a-process")
    client.start()
    client.connect(S0)
    beats = store.statements["beat"]
    deadline = time.monotonic() + 20
    while store.statements["beat"] < beats + 2:
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
    client.confirm(polled(client), persist=True)
    client.shutdown()
    assert not [thread for thread in threading.enumerate() if thread.name == "beats-a"]
    assert owner(store) is None
