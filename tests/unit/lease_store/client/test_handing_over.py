"""Transfers: failures, retries, and transfers that are called off."""

from __future__ import annotations

import pytest

from dagster_leasehold.lease_store.errors import LeaseLost, ShardNotOpen, StoreUnavailable
from tests.manual_clock import ManualClock
from tests.unit.lease_store.client.world import (
    BEAT_S,
    KEY,
    ListFeed,
    memory_store,
    moving_to,
    owner,
    polled,
    started,
)


def test_a_shard_lost_during_its_release_is_raised_by_the_next_call(
    clock: ManualClock, feed: ListFeed
):
    """A checkpoint in memory could not be stored: the caller has to receive an error."""
    store = memory_store(["0", "1"])
    a = started(store, clock, feed, "a")
    for shard in a.partitions():
        a.connect(shard)
        a.confirm(polled(a, shard))
    a.beat()
    started(store, clock, feed, "b")
    moving = moving_to(store, "b")
    real = store.save_checkpoint

    def lost_just_before(tenure: object, cursor: str):
        store.force_checkpoint(KEY, moving, "9", observer="operator", reason="test")
        return real(tenure, cursor)  # pyright: ignore

    store.save_checkpoint = lost_just_before  # pyright: ignore
    a.beat()
    store.save_checkpoint = real
    with pytest.raises(LeaseLost):
        a.poll(moving)
    with pytest.raises(ShardNotOpen):
        a.poll(moving)


def test_an_unanswered_release_is_repeated(clock: ManualClock, feed: ListFeed):
    store = memory_store(["0", "1"])
    a = started(store, clock, feed, "a")
    for shard in a.partitions():
        a.connect(shard)
    a.beat()
    started(store, clock, feed, "b")
    moving = moving_to(store, "b")
    real = store.close_tenure

    def away(*_: object, **__: object):
        raise StoreUnavailable("away")

    store.close_tenure = away  # pyright: ignore
    a.beat()
    assert a.poll(moving) is None, "nothing more is read of a shard that is leaving"
    store.close_tenure = real
    a.beat()
    assert owner(store, moving) == "b"


def test_a_client_continues_a_shard_whose_transfer_was_called_off(
    clock: ManualClock, feed: ListFeed
):
    """The next node leaves while the holder works on its last batch, which then times out."""
    store = memory_store(["0", "1"])
    a = started(store, clock, feed, "a")
    for shard in a.partitions():
        a.connect(shard)
        polled(a, shard)
    a.beat()
    b = started(store, clock, feed, "b")
    moving = moving_to(store, "b")
    a.beat()
    assert a.poll() is None, "it is leaving, and the other's batch is not confirmed"
    b.shutdown()
    for _ in range(8):
        clock.pass_s(BEAT_S - 1)
        a.beat()
    assert owner(store, moving) == "a"
    assert polled(a, moving)
