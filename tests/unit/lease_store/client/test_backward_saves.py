"""A client's save that would move a shard back is refused, and the client keeps the shard."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dagster_leasehold.lease_store.client import GroupMember
from dagster_leasehold.lease_store.errors import CheckpointRefused
from dagster_leasehold.lease_store.ledger_rows import BatchCommit, BatchStatistics, Intent
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rules.refusals import checkpoint_behind
from dagster_leasehold.lease_store.shard_rows import Tenure
from tests.manual_clock import ManualClock
from tests.unit.lease_store.client.world import (
    BEAT_S,
    KEY,
    S0,
    checkpoint,
    make_group,
    member,
    memory_store,
    owner,
)


def reader(store: MemoryStore, clock: ManualClock) -> GroupMember:
    """A member that has the one shard open."""
    client = member(store, clock, "a")
    client.register()
    client.heartbeat(())
    assert isinstance(client.open(S0), Opened)
    client.heartbeat((S0,))
    return client


def in_a_group_of_clients(clock: ManualClock) -> tuple[MemoryStore, GroupMember]:
    store = memory_store()
    client = reader(store, clock)
    client.save_checkpoint(S0, "10", persist=True)
    return store, client


def in_a_group_with_runs(clock: ManualClock) -> tuple[MemoryStore, GroupMember]:
    store = memory_store()
    client = reader(store, clock)
    lease = store.snapshot(KEY).shards[0]
    tenure = Tenure(KEY, S0, client.node, lease.consumer_epoch, lease.consumer_run)
    store.record_intents([Intent(tenure, 0, "0", "10")])
    store.commit([BatchCommit(tenure, 0, "0", "10", "attempt", (), BatchStatistics(records=10))])
    client.release(S0)
    assert isinstance(client.open(S0), Opened)
    client.heartbeat((S0,))
    return store, client


World = Callable[[ManualClock], tuple[MemoryStore, GroupMember]]
GROUPS = [in_a_group_of_clients, in_a_group_with_runs]


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("persist", [True, False], ids=["at once", "by interval"])
def test_a_backward_save_is_refused_and_the_shard_stays(
    clock: ManualClock, group: World, persist: bool
):
    store, client = group(clock)
    for _ in range(2):
        with pytest.raises(CheckpointRefused, match="'10' and does not go back to '9'"):
            client.save_checkpoint(S0, "9", persist=persist)
    clock.pass_s(BEAT_S * 2.1)
    assert client.heartbeat((S0,)) == (S0,)
    assert (client.holds(S0), checkpoint(store), owner(store)) == (True, "10", "a")
    assert store.gaps(KEY) == []
    client.save_checkpoint(S0, "12", persist=persist)
    client.shutdown()
    assert checkpoint(store) == "12"


@pytest.mark.parametrize("group", GROUPS)
def test_a_backward_save_keeps_a_waiting_save(clock: ManualClock, group: World):
    store, client = group(clock)
    client.save_checkpoint(S0, "12")
    with pytest.raises(CheckpointRefused):
        client.save_checkpoint(S0, "9")
    client.release(S0)
    assert checkpoint(store) == "12"


@pytest.mark.parametrize("group", GROUPS)
def test_a_shard_is_not_finished_before_its_checkpoint(clock: ManualClock, group: World):
    store, client = group(clock)
    with pytest.raises(CheckpointRefused):
        client.finish(S0, "9")
    assert client.holds(S0)
    client.finish(S0, "12")
    assert checkpoint(store) == "12"


class OrdersOtherwise(MemoryStore):
    """A store whose order the client does not know: for it, `11.1` is before `10`."""

    def save_checkpoint(self, tenure: Tenure, cursor: str) -> None:
        if cursor == "11.1":
            raise checkpoint_behind(tenure, cursor, "10")
        super().save_checkpoint(tenure, cursor)


@pytest.fixture
def ordering(clock: ManualClock) -> tuple[MemoryStore, GroupMember]:
    store = OrdersOtherwise()
    make_group(store)
    client = reader(store, clock)
    client.save_checkpoint(S0, "10", persist=True)
    return store, client


def test_a_save_refused_by_the_store_keeps_the_shard(
    clock: ManualClock, ordering: tuple[MemoryStore, GroupMember]
):
    store, client = ordering
    with pytest.raises(CheckpointRefused, match=r"'10' and does not go back to '11\.1'"):
        client.save_checkpoint(S0, "11.1", persist=True)
    assert client.holds(S0)
    client.save_checkpoint(S0, "12", persist=True)
    assert checkpoint(store) == "12"


@pytest.mark.parametrize("leave", ["release", "shutdown", "beat", "unreported"])
def test_a_waiting_save_that_the_store_refuses_does_not_block_others(
    clock: ManualClock,
    ordering: tuple[MemoryStore, GroupMember],
    caplog: pytest.LogCaptureFixture,
    leave: str,
):
    store, client = ordering
    client.save_checkpoint(S0, "11.1")
    match leave:
        case "release":
            client.release(S0)
        case "shutdown":
            client.shutdown()
        case "unreported":
            client.heartbeat(())
        case _:
            clock.pass_s(BEAT_S * 2.1)
            assert client.heartbeat((S0,)) == (S0,)
    assert checkpoint(store) == "10"
    assert "does not go back to '11.1'" in caplog.text
    if leave == "beat":
        client.save_checkpoint(S0, "12", persist=True)
        assert checkpoint(store) == "12"
    else:
        assert store.snapshot(KEY).shards[0].consumer_run == ""
