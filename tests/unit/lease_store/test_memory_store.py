"""The store in memory: an operation on one shard costs the same in an old group."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NoReturn

from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.times import utc_now
from tests.conformance.world import A, World, X, Y


class Untouchable:
    """A row of another shard: reading any part of it fails."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise AssertionError(f"{name} of another shard's row was read")


def test_no_operation_on_a_shard_reads_rows_of_another() -> None:
    """Goal: years of a group can be simulated. Method: rows of another shard that cannot be
    read.
    """
    store = MemoryStore()
    world = World(store, GroupKey.parse("orders", "default"))
    world.group()
    world.join(A)
    world.add(X, Y)
    world.claim(A, X, Y)
    rows: Any = store._groups[world.key]
    rows.batches[Y, 0] = rows.journal[Y, 10**6] = Untouchable()
    tenure = world.open(A, X).tenure
    world.consume(tenure, "0", "5")
    world.consume(tenure, "5", "7", sequence=1)
    store.record_gap(tenure, start="7", end="9", reason="trimmed")
    before = utc_now() + timedelta(days=1)
    while store.prune_batches(world.key, X, before=before, keep=1).more:
        pass
    assert store.prune_journal(world.key, X, before=before, keep=1).rows > 0
    store.force_checkpoint(world.key, X, "0", observer="test", reason="again")
    assert [batch.sequence for batch in store.batches(world.key, X, state=None)] == [0, 1]
    assert len(list(store.batches_since(world.key, {X: 0}))) == 0
    assert store.journal(world.key, shard=X)[-1].kind == "force"
