"""A member whose beats were not confirmed in time continues only if no other node took over."""

from __future__ import annotations

import pytest

from dagster_leasehold.lease_store.client import GroupMember
from dagster_leasehold.lease_store.errors import LeaseLost, ShardNotOpen, StoreUnavailable
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import NotHeld, Opened
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.shard_rows import Tenure
from tests.manual_clock import ManualClock
from tests.unit.lease_store.client.world import (
    BEAT_S,
    KEY,
    S0,
    TIMEOUT_S,
    ListFeed,
    checkpoint,
    member,
    memory_store,
    owner,
    polled,
    started,
)

LAPSE_S = 0.75 * TIMEOUT_S


def holding(store: MemoryStore, clock: ManualClock, name: str = "a") -> tuple[GroupMember, Tenure]:
    """A member with shard 0 open."""
    joined = member(store, clock, name)
    joined.register()
    assert joined.heartbeat(()) == (S0,)
    outcome = joined.open(S0)
    assert isinstance(outcome, Opened)
    joined.heartbeat((S0,))
    return joined, outcome.tenure


def evict(store: MemoryStore, clock: ManualClock) -> GroupMember:
    """Another member, which watches until it may take the shard."""
    other = member(store, clock, "b")
    other.register()
    while owner(store) != "b":
        clock.pass_s(BEAT_S)
        other.heartbeat(())
    return other


def test_work_from_before_a_lapse_is_saved_under_the_same_tenure(clock: ManualClock):
    store = memory_store(["0"])
    a, tenure = holding(store, clock)
    a.save_checkpoint(S0, "100")
    clock.pass_s(LAPSE_S)
    assert not a.trusted
    assert not a.holds(S0)
    assert a.heartbeat((S0,)) == (S0,), "nobody took it meanwhile"
    a.require(S0, tenure)
    a.release(S0)
    assert checkpoint(store) == "100"
    assert [entry.epoch for entry in store.journal(KEY) if entry.kind == "open"] == [1]
    assert verify(store, KEY) == []


def test_a_call_after_a_lapse_beats_first(clock: ManualClock):
    store = memory_store(["0"])
    a, tenure = holding(store, clock)
    clock.pass_s(LAPSE_S)
    beats = store.statements["beat"]
    a.save_checkpoint(S0, "4", persist=True, tenure=tenure)
    assert store.statements["beat"] == beats + 1
    assert a.trusted
    assert a.trusted_until == clock() + LAPSE_S
    assert checkpoint(store) == "4"


def test_a_member_evicted_during_a_lapse_does_not_continue(clock: ManualClock):
    store = memory_store(["0"])
    a, tenure = holding(store, clock)
    a.save_checkpoint(S0, "100")
    b = evict(store, clock)
    assert isinstance(b.open(S0), Opened)
    b.save_checkpoint(S0, "7", persist=True)
    with pytest.raises(LeaseLost):
        a.require(S0, tenure)
    with pytest.raises(ShardNotOpen):
        a.save_checkpoint(S0, "100", persist=True)
    assert isinstance(a.open(S0), NotHeld)
    with pytest.raises(LeaseLost):
        store.save_checkpoint(tenure, "100")
    a.heartbeat(())
    assert checkpoint(store) == "7"
    assert verify(store, KEY) == []


def test_a_shard_that_returned_to_its_old_holder_has_another_tenure(clock: ManualClock):
    """1. a lapses; 2. b takes the shard, reads on and leaves; 3. a is back, and it is a's again."""
    store = memory_store(["0"])
    a, tenure = holding(store, clock)
    a.save_checkpoint(S0, "100")
    b = evict(store, clock)
    assert isinstance(b.open(S0), Opened)
    b.save_checkpoint(S0, "7", persist=True)
    b.shutdown()
    assert a.heartbeat((S0,)) == ()
    assert owner(store) == "a"
    with pytest.raises(LeaseLost):
        a.save_checkpoint(S0, "100", persist=True, tenure=tenure)
    assert checkpoint(store) == "7"
    assert a.heartbeat(()) == (S0,)


def test_a_tenure_that_ended_during_a_lapse_is_detected(clock: ManualClock):
    """The member keeps its place, but the shard's epoch rose: nothing is even tried."""
    store = memory_store(["0"])
    a, _ = holding(store, clock)
    a.save_checkpoint(S0, "100")
    clock.pass_s(LAPSE_S)
    store.force_checkpoint(KEY, S0, "7", observer="operator", reason="test")
    with pytest.raises(LeaseLost, match="tenure 1 is over"):
        a.require(S0)
    assert a.trusted, "its other shards continue"
    assert store.statements["save_checkpoint"] == 0
    assert checkpoint(store) == "7"


@pytest.mark.parametrize("verb", ["beat", "progress"])
def test_a_lapsed_member_does_nothing_until_the_store_confirms_it(clock: ManualClock, verb: str):
    store = memory_store(["0"])
    a, _ = holding(store, clock)
    clock.pass_s(LAPSE_S)

    def away(*_: object) -> None:
        raise StoreUnavailable("away")

    real = getattr(store, verb)
    setattr(store, verb, away)
    with pytest.raises(StoreUnavailable):
        a.require(S0)
    with pytest.raises(StoreUnavailable):
        a.save_checkpoint(S0, "3", persist=True)
    a.save_checkpoint(S0, "4")
    assert not a.trusted
    assert checkpoint(store) is None
    setattr(store, verb, real)
    a.require(S0)
    a.release(S0)
    assert checkpoint(store) == "4", "what was done meanwhile was kept in memory"


def test_a_beat_that_took_longer_than_its_trust_does_not_count(clock: ManualClock):
    store = memory_store(["0"])
    a, _ = holding(store, clock)
    clock.pass_s(LAPSE_S)
    real = store.progress

    def slow(*args: object) -> object:
        clock.pass_s(LAPSE_S)
        return real(*args)  # pyright: ignore

    store.progress = slow  # pyright: ignore
    with pytest.raises(StoreUnavailable, match="too slowly"):
        a.require(S0)
    assert not a.trusted


def test_a_pull_client_continues_with_its_batch_after_a_lapse(clock: ManualClock, feed: ListFeed):
    """Here a hundred records were read twice, although no other node had touched the shard."""
    store = memory_store(["0"])
    client = started(store, clock, feed, "a")
    client.connect(S0)
    client.confirm(polled(client))
    client._protect_s = 60.0
    batch = polled(client)
    clock.pass_s(LAPSE_S)
    client.beat()
    client.confirm(batch)
    assert polled(client).start == "8"
    clock.pass_s(LAPSE_S)
    with pytest.raises(Exception, match="not confirmed yet"):
        client.poll(ShardId("0"))
    client.shutdown()
    assert checkpoint(store) == "8"
    assert verify(store, KEY) == []


def test_an_unanswered_beat_does_not_renew_trust(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    store = memory_store(["0"])
    a, _ = holding(store, clock)
    until = a.trusted_until

    def unanswered(*_: object) -> None:
        raise StoreUnavailable("The request was lost.")

    monkeypatch.setattr(store, "beat", unanswered)
    clock.pass_s(BEAT_S)
    assert a.heartbeat((S0,)) == (S0,), "the rest of the heartbeat was answered"
    assert a.trusted_until == until
    clock.pass_s(until - clock())
    assert not a.trusted, "others evict it a quarter of the timeout later"
