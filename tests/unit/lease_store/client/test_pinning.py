"""Shards requested by name: one answer for each, and refusals that cost the group nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NoReturn

import pytest

from dagster_leasehold.lease_store.errors import ShardOccupied, StoreUnavailable, UnknownShard
from dagster_leasehold.lease_store.group_rows import AssignmentMode
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Stale
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
    memory_store,
    owner,
    polled,
    started,
)


@pytest.fixture
def store() -> MemoryStore:
    return memory_store(["0", "1"], assignment=AssignmentMode.PINNED)


def unavailable(*_: object, **__: object) -> NoReturn:
    raise StoreUnavailable("The lease store does not answer.")


def traces(store: MemoryStore) -> tuple[int, int]:
    """The rows that every member has to read again, and the permanent ones."""
    return store.pulse(KEY).group.generation, len(store.journal(KEY))


def test_a_second_connect_returns_the_position_of_the_shard(
    clock: ManualClock, feed: ListFeed, store: MemoryStore
):
    client = started(store, clock, feed, "a")
    assert client.connect(S0, "2") == "2"
    before = traces(store)
    assert client.connect(S0) == "2"
    assert client.connect(S0, "2") == "2"
    client.confirm(polled(client))
    assert client.connect(S0) == "6"
    with pytest.raises(ShardOccupied, match="at cursor 6: disconnect it"):
        client.connect(S0, "2")
    assert traces(store) == before


def test_refused_connects_write_nothing_and_soon_read_nothing(
    clock: ManualClock, feed: ListFeed, store: MemoryStore
):
    a, b = started(store, clock, feed, "a"), started(store, clock, feed, "b")
    a.connect(S0)
    before = traces(store)
    for number in range(50):
        if number == 1:
            asked = store.statements.copy()
        with pytest.raises(ShardOccupied, match="it belongs to a"):
            b.connect(S0)
    assert store.statements == asked, "the answer is known until the next heartbeat"
    assert traces(store) == before
    with pytest.raises(UnknownShard):
        b.connect(ShardId("9"))
    assert traces(store) == before


def test_a_freed_shard_is_connected_at_the_next_check(
    clock: ManualClock, feed: ListFeed, store: MemoryStore
):
    a, b = started(store, clock, feed, "a"), started(store, clock, feed, "b")
    a.connect(S0)
    with pytest.raises(ShardOccupied):
        b.connect(S0)
    a.shutdown()
    b.beat()
    assert b.connect(S0) == "0", "a heartbeat has seen it"

    c = started(store, clock, feed, "c")
    with pytest.raises(ShardOccupied):
        c.connect(S0)
    b.disconnect(S0)
    b.shutdown()
    clock.pass_s(TIMEOUT_S / 3)
    assert c.connect(S0) == "0"


def test_a_failed_connect_is_repeated_after_a_growing_pause(
    clock: ManualClock, feed: ListFeed, store: MemoryStore
):
    client = started(store, clock, feed, "a")
    real = store.claim
    store.claim = lambda *args, **_: dict.fromkeys(args[1], Stale())  # pyright: ignore
    written: list[int] = []
    while len(written) < 5:
        before = traces(store)
        with pytest.raises(ShardOccupied):
            client.connect(S0)
        if traces(store) != before:
            written.append(int(clock()))
        clock.pass_s(1.0)
    pauses = [later - earlier for earlier, later in pairwise(written)]
    assert pauses == [10, 20, 40, 60]
    store.claim = real
    clock.pass_s(60.0)
    assert client.connect(S0) == "0"


def test_a_freed_shard_is_requested_once(clock: ManualClock, feed: ListFeed, store: MemoryStore):
    """The first refusal was seen and cost nothing; the second one is found out by a write."""
    a, b = started(store, clock, feed, "a"), started(store, clock, feed, "b")
    a.connect(S0)
    with pytest.raises(ShardOccupied, match="it belongs to a"):
        b.connect(S0)
    a.shutdown()
    b.beat()
    store.claim = lambda *args, **_: dict.fromkeys(args[1], Stale())  # pyright: ignore
    with pytest.raises(ShardOccupied):
        b.connect(S0)
    before = traces(store)
    for _ in range(10):
        with pytest.raises(ShardOccupied, match="its last request was refused"):
            b.connect(S0)
    assert traces(store) == before


def test_a_shard_requested_by_another_node_is_left_to_it(
    clock: ManualClock, feed: ListFeed, store: MemoryStore
):
    b = started(store, clock, feed, "b")
    rival = next(row for row in store.snapshot(KEY).nodes if row.name == "b")
    store.register(KEY, replace(rival, pinned={S1: None}), observer="test")
    a = started(store, clock, feed, "a")
    before = traces(store)
    with pytest.raises(ShardOccupied, match="b requests it"):
        a.connect(S1)
    assert traces(store) == before
    assert b.partitions() == ()


def test_a_paused_group_receives_no_request(clock: ManualClock, feed: ListFeed, store: MemoryStore):
    client = started(store, clock, feed, "a")
    (group,) = store.groups()
    store.update_group(replace(group, paused=True), observer="operator")
    before = traces(store)
    with pytest.raises(ShardOccupied, match="the group is paused"):
        client.connect(S0)
    assert traces(store) == before


@pytest.mark.parametrize("mode", [AssignmentMode.BALANCED, AssignmentMode.PINNED])
def test_a_closed_shard_is_released_until_it_is_open_again(
    clock: ManualClock, feed: ListFeed, mode: AssignmentMode
):
    store = memory_store(["0"], assignment=mode)
    client = started(store, clock, feed, "a")
    client.connect(S0)
    client.confirm(polled(client))
    client.beat()
    assert client.partitions() == (S0,)

    store.sync_shards(KEY, [ShardListing(S0, subscribable=False)], observer="test")
    clock.pass_s(BEAT_S)
    client.beat()
    assert client.partitions() == ()
    assert client.current_offsets() == {}
    assert checkpoint(store) == "4"
    assert owner(store) == "a", "it stays assigned"

    store.sync_shards(KEY, [ShardListing(S0)], observer="test")
    clock.pass_s(BEAT_S)
    client.beat()
    assert client.partitions() == (S0,)
    assert client.connect(S0) == "4"


def test_another_client_can_connect_a_disconnected_shard(
    clock: ManualClock, feed: ListFeed, store: MemoryStore
):
    a, b = started(store, clock, feed, "a"), started(store, clock, feed, "b")
    a.connect(S0)
    a.confirm(polled(a))
    b.connect(S1)
    a.disconnect(S0)
    b.disconnect(S1)
    assert b.connect(S0) == "4"
    assert a.connect(S1) == "0"
    assert (owner(store, "0"), owner(store, "1")) == ("b", "a")
    with pytest.raises(ShardOccupied, match="it belongs to b"):
        a.connect(S0)


@pytest.mark.parametrize(
    ("connects", "silent"),
    [(True, "claim"), (True, "open_tenure"), (True, "save_checkpoint"), (False, "close_tenure")],
)
def test_a_shard_is_free_for_others_after_a_failed_connect_or_disconnect(
    clock: ManualClock,
    feed: ListFeed,
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    connects: bool,
    silent: str,
):
    a, b = started(store, clock, feed, "a"), started(store, clock, feed, "b")
    if not connects:
        a.connect(S0)
    call = a.connect if connects else a.disconnect
    with monkeypatch.context() as patch:
        patch.setattr(store, silent, unavailable)
        with pytest.raises((StoreUnavailable, ShardOccupied)):
            call(S0)
    clock.pass_s(BEAT_S)
    a.beat()
    clock.pass_s(BEAT_S)
    assert b.connect(S0) == "0"
    with pytest.raises(ShardOccupied, match="it belongs to b"):
        a.connect(S0)


def test_a_shard_that_its_owner_no_longer_requests_moves_after_its_batch(
    clock: ManualClock, feed: ListFeed
):
    """The group was shared by number when its only client began to read."""
    store = memory_store(["0"])
    a = started(store, clock, feed, "a")
    a.connect(S0)
    a.beat()
    batch = polled(a)
    (group,) = store.groups()
    store.update_group(replace(group, assignment=AssignmentMode.PINNED), observer="operator")
    b = started(store, clock, feed, "b")
    for _ in range(2):
        with pytest.raises(ShardOccupied, match="a transfers it"):
            b.connect(S0)
        clock.pass_s(BEAT_S)
        a.beat()
    a.confirm(batch)
    clock.pass_s(BEAT_S)
    assert b.connect(S0) == "4"
