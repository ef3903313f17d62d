"""A store has one identity for all processes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import UnknownGroup
from dagster_leasehold.lease_store.identifiers import GroupName
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.sql_store import SqlStore
from tests.conformance.test_races import at_once
from tests.conformance.world import World


def test_a_store_has_one_identity(world: World) -> None:
    identity = world.store.identity()
    assert len(identity.id) == 36
    assert world.store.identity() == identity
    assert MemoryStore().identity() != identity


def test_concurrent_processes_agree_on_the_identity(world: World) -> None:
    """Method: each process has a separate connection and no memory."""
    stores = [world.store] * 4
    if isinstance(world.store, SqlStore):
        url = world.store._transactions.engine.url.render_as_string(hide_password=False)
        stores = [open_store(url) for _ in range(4)]
    assert len({each.id for each in at_once(*(store.identity for store in stores))}) == 1


def test_a_group_keeps_the_identity_of_its_first_log(world: World) -> None:
    world.group()
    store, key = world.store, world.key
    assert store.log_of_group(key, "a") == "a"
    assert store.log_of_group(key, "b") == "a"
    assert store.log_of_group(key, "b", instead=True) == "b"
    assert store.log_of_group(key, "b", instead=True) == "b"
    assert store.log_of_group(key, "a") == "b"
    assert len({*at_once(*[lambda: store.log_of_group(key, "c")] * 4)}) == 1
    store.delete_group(key, force=True)
    world.group()
    assert store.log_of_group(key, "c") == "c"
    with pytest.raises(UnknownGroup):
        store.log_of_group(replace(key, group=GroupName("other")), "a")
