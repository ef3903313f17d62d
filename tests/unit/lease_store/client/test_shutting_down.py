"""A member that leaves while its store does not answer: shards with unsaved cursors are not
freed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dagster_leasehold.lease_store.client import GroupMember
from dagster_leasehold.lease_store.errors import CheckpointUnsaved, LeaseLost, StoreUnavailable
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Opened
from tests.manual_clock import ManualClock
from tests.unit.lease_store.client.world import (
    KEY,
    S0,
    S1,
    TIMEOUT_S,
    checkpoint,
    memory_store,
    owner,
)


def holding(store: MemoryStore, clock: ManualClock, *shards: ShardId) -> GroupMember:
    """A member that waits by its virtual clock, with a checkpoint in memory for each shard."""
    member = GroupMember(
        store, KEY, NodeName("a"), incarnation="a-process", clock=clock, pause=clock.pass_s
    )
    member.register()
    for shard in shards:
        assert isinstance(member.open(shard), Opened)
    member.heartbeat(shards)
    for shard in shards:
        member.save_checkpoint(shard, "8")
    return member


def locked(
    store: MemoryStore, clock: ManualClock, seconds: float, shard: str = "0"
) -> Callable[..., None]:
    """`save_checkpoint` of a store in which another process locks a shard's row for a while."""
    free_at, real = clock() + seconds, store.save_checkpoint

    def save(tenure: object, cursor: str) -> None:
        if clock() < free_at and tenure.shard == shard:  # pyright: ignore
            raise StoreUnavailable("the row is locked")
        real(tenure, cursor)  # pyright: ignore

    return save


def test_a_failed_flush_is_repeated_before_any_shard_is_freed(clock: ManualClock):
    store = memory_store(["0", "1"])
    member = holding(store, clock, S0, S1)
    store.save_checkpoint = locked(store, clock, 6.0)  # pyright: ignore
    member.shutdown()
    assert (checkpoint(store, "0"), checkpoint(store, "1")) == ("8", "8")
    assert owner(store) is None
    assert not store.snapshot(KEY).nodes[0].member


def test_a_shard_with_an_unsaved_checkpoint_is_not_released(clock: ManualClock):
    store = memory_store(["0", "1"])
    member = holding(store, clock, S0, S1)
    real = store.save_checkpoint
    store.save_checkpoint = locked(store, clock, 1e9)  # pyright: ignore
    began = clock()
    with pytest.raises(CheckpointUnsaved, match="shard 0 of group events/readers"):
        member.shutdown()
    assert clock() - began <= TIMEOUT_S + 1
    assert checkpoint(store, "1") == "8"
    assert (owner(store, "0"), owner(store, "1")) == ("a", "a"), "it is still a member"
    store.save_checkpoint = real
    member.shutdown()
    assert checkpoint(store, "0") == "8"
    assert owner(store, "0") is None


def test_a_shutdown_reports_a_member_that_was_evicted(clock: ManualClock):
    store = memory_store(["0"])
    member = holding(store, clock, S0)
    clock.pass_s(TIMEOUT_S)
    row = store.snapshot(KEY).nodes[0]
    store.evict(KEY, row.name, row.lease_id, observer="b", reason="test")
    with pytest.raises(LeaseLost):
        member.shutdown()
    assert checkpoint(store) is None
    assert not member.trusted


def test_a_tenure_that_ends_with_the_membership_is_no_error(clock: ManualClock):
    """The checkpoint is there: that the tenure's end got no answer before makes no difference."""
    store = memory_store(["0"])
    member = holding(store, clock, S0)

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    store.close_tenure = away  # pyright: ignore
    member.shutdown()
    assert checkpoint(store) == "8"
    assert owner(store) is None
