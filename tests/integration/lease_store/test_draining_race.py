"""A tenure that is being opened while its group is paused, on a real server."""

from __future__ import annotations

import threading
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.draining import Draining
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.outcomes import NotHeld, Opened
from dagster_leasehold.lease_store.sql_store import SqlStore
from dagster_leasehold.lease_store.sql_store.rows_in_sql import RowsInSql
from dagster_leasehold.lease_store.store import LeaseStore
from tests.conformance.world import A, World, X
from tests.mariadb import MariaDB

pytestmark = pytest.mark.mariadb
PATIENCE_S = 20.0


def of_store(rows: RowsInSql, store: LeaseStore) -> bool:
    """Return True if an operation of this store reads or writes the rows."""
    assert isinstance(store, SqlStore)
    return rows._tx.connection.engine.pool is store._transactions.engine.pool


@pytest.fixture
def stores(mariadb: MariaDB) -> Generator[tuple[LeaseStore, LeaseStore]]:
    url = mariadb.create_database("draining")
    pair = open_store(url, upgrade=True), open_store(url)
    yield pair
    for store in pair:
        store.close()


def test_a_drain_waits_for_a_tenure_opened_before_the_pause(
    stores: tuple[LeaseStore, LeaseStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A run finds the group not paused. 2. It is paused. 3. The drain must see the run.

    The opening waits between its last check and its write until the pause is committed, and the
    drain starts before it continues.
    """
    runner, operator = stores
    world = World(runner, GroupKey.parse("group", "stream"))
    group = world.group()
    world.join(A)
    world.add(X)
    world.claim(A, X)
    looked, go_on = threading.Event(), threading.Event()
    original = RowsInSql.carry_out

    def standing_still(self: RowsInSql, *arguments: Any) -> object:
        if of_store(self, runner) and not looked.is_set():
            looked.set()
            assert go_on.wait(PATIENCE_S)
        return original(self, *arguments)

    monkeypatch.setattr(RowsInSql, "carry_out", standing_still)
    opened: list[object] = []
    looks: list[Draining] = []

    def open_it() -> None:
        opened.append(runner.open_tenure(world.key, X, A, "run-1"))

    def drain_it() -> None:
        looks.append(operator.draining(world.key))

    opening = threading.Thread(target=open_it)
    opening.start()
    assert looked.wait(PATIENCE_S)
    operator.update_group(replace(group, paused=True), observer="ops")
    draining = threading.Thread(target=drain_it)
    draining.start()
    draining.join(0.3)
    assert draining.is_alive(), "the drain waits for the row that the opening holds"
    go_on.set()
    for thread in (opening, draining):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert isinstance(opened[0], Opened)
    assert [shard.run for shard in looks[0].open] == ["run-1"]


def test_a_tenure_after_the_pause_is_refused(
    stores: tuple[LeaseStore, LeaseStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A run is about to lock the row. 2. The group is paused and drained. 3. The run locks the
    row.

    If it had checked the group before step 1, it would open the shard now.
    """
    runner, operator = stores
    world = World(runner, GroupKey.parse("group", "behind"))
    group = world.group()
    world.join(A)
    world.add(X)
    world.claim(A, X)
    original = RowsInSql.shards
    looks: list[Draining] = []

    def overtaken(self: RowsInSql, *arguments: Any, **more: Any) -> Any:
        if of_store(self, runner) and not looks:
            operator.update_group(replace(group, paused=True), observer="ops")
            looks.append(operator.draining(world.key))
        return original(self, *arguments, **more)

    monkeypatch.setattr(RowsInSql, "shards", overtaken)
    outcome = runner.open_tenure(world.key, X, A, "run-1")
    assert looks[0].drained
    assert isinstance(outcome, NotHeld)
