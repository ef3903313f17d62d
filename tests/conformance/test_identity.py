"""A store has one identity, whoever asks for it."""

from __future__ import annotations

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.sql_store import SqlStore
from tests.conformance.test_races import at_once
from tests.conformance.world import World


def test_a_store_has_one_identity(world: World) -> None:
    identity = world.store.identity()
    assert len(identity.id) == 36
    assert world.store.identity() == identity
    assert MemoryStore().identity() != identity


def test_processes_that_ask_at_once_agree(world: World) -> None:
    """Method: each has a connection of its own, and remembers nothing."""
    stores = [world.store] * 4
    if isinstance(world.store, SqlStore):
        url = world.store._transactions.engine.url.render_as_string(hide_password=False)
        stores = [open_store(url) for _ in range(4)]
    assert len({each.id for each in at_once(*(store.identity for store in stores))}) == 1
