"""Waiting for committed records: the waiting reader publishes, or the holder of the lock does."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.errors import PublicationRefused, TableUnavailable
from dagster_leasehold.assets.output.table.catalogs import LeaseDatabaseCatalog
from dagster_leasehold.assets.output.table.catching_up import PATIENCE_S, catch_up
from dagster_leasehold.assets.output.table.reading import plan_table
from dagster_leasehold.assets.table_settings import (
    THE_LEASE_DATABASE,
    CatalogSettings,
    TableSettings,
)
from dagster_leasehold.lease_store.errors import StoreReadOnly
from tests.unit.assets.output.table.publishing_world import NODE, Publishing


class Waiting:
    """A reader of a world's stream, under a clock that moves while it sleeps."""

    def __init__(self, folder: Path) -> None:
        self.published = Publishing(folder)
        self.world = self.published.world
        self.world.consume()
        self.now_s = 0.0
        self.meanwhile: Callable[[], object] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.meanwhile()

    def wait(self, table: TableSettings | None = TableSettings()) -> None:  # noqa: B008
        catch_up(
            self.world.store,
            self.world.key,
            self.world.place,
            table=table,
            catalog=THE_LEASE_DATABASE,
            clock=lambda: self.now_s,
            sleep=self.sleep,
        )

    def seen(self) -> int:
        plan = plan_table(self.world.store, self.world.key, self.world.place)
        return sum(file.records for file in plan.files)


@pytest.fixture
def reader(tmp_path: Path) -> Waiting:
    return Waiting(tmp_path)


def test_a_waiting_reader_publishes_if_no_other_process_does(reader: Waiting) -> None:
    reader.wait()
    assert (reader.seen(), reader.now_s) == (20, 0)
    assert reader.published.published() == reader.published.committed()


def test_a_reader_that_cannot_publish_waits_for_the_deployment(reader: Waiting) -> None:
    reader.meanwhile = lambda: reader.published.publish() if reader.now_s == 3 else None
    reader.wait(None)
    assert (reader.seen(), reader.now_s) == (20, 3)


def test_a_reader_waits_for_the_publish_lock_of_a_node(reader: Waiting) -> None:
    lock: Any = reader.published.lock()

    def end() -> None:
        if reader.now_s == 2:
            reader.world.store.release_publish_lock(lock)

    reader.meanwhile = end
    reader.wait()
    assert (reader.seen(), reader.now_s) == (20, 2)


def test_a_node_that_takes_the_lock_publishes_instead_of_the_reader(
    reader: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The reader stages; 2. a node takes the lock, and publishes; 3. the reader commits."""
    commit = reader.world.store.commit_publication
    over: list[object] = []

    def late(*arguments: Any) -> object:
        monkeypatch.undo()
        reader.published.publish()
        over.append(commit(*arguments))
        return over[0]

    monkeypatch.setattr(reader.world.store, "commit_publication", late)
    reader.wait()
    assert str(over) == "[LockOver()]"
    assert reader.published.published() == reader.published.committed()


def test_a_stalled_publisher_is_one_sentence(reader: Waiting) -> None:
    reader.published.lock()
    with pytest.raises(TableUnavailable) as caught:
        reader.wait()
    assert reader.now_s == PATIENCE_S
    assert f"node {NODE} holds the publish lock" in str(caught.value)
    assert "switch on the housekeeping sensor" in str(caught.value)
    assert "leasehold table create orders" in str(caught.value)


def test_a_refused_reader_waits_longer_each_time(
    reader: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = list[float]()

    def refused(*_: object) -> None:
        attempts.append(reader.now_s)
        raise PublicationRefused("The catalog refused it.")

    monkeypatch.setattr(LeaseDatabaseCatalog, "publish", refused)
    with pytest.raises(TableUnavailable, match="nothing was published"):
        reader.wait()
    waits = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert len(attempts) < 20, "in a minute"
    assert max(waits) > 5
    assert waits != sorted(waits) or len(set(waits)) == len(waits), "with jitter"


def test_a_read_only_account_gets_a_sentence(
    reader: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise StoreReadOnly("The database takes no writes.")

    monkeypatch.setattr(reader.world.store, "take_publish_lock", refused)
    with pytest.raises(TableUnavailable, match="account cannot publish: The database takes no wr"):
        reader.wait()
    reader.now_s = 0
    monkeypatch.undo()
    reader.wait()
    assert reader.now_s == 0


def test_a_reader_waits_for_earlier_changes_and_not_for_newer_ones(reader: Waiting) -> None:
    reader.wait()
    reader.world.append(reader.world.ids[0], 1)
    reader.world.consume("run-2")
    commits = iter(range(100))

    def goes_on() -> None:
        reader.published.publish()
        reader.world.append(reader.world.ids[0], 1)
        reader.world.consume(f"run-{next(commits)}-later")

    reader.meanwhile = goes_on
    reader.wait(None)
    assert (reader.seen(), reader.now_s) == (21, 0.5)


def test_a_table_of_another_catalog_is_not_treated_as_missing(reader: Waiting) -> None:
    reader.wait()
    world = reader.world
    name = world.store.publication(world.key).table  # type: ignore[union-attr]
    del world.store._pointers[name]  # type: ignore[arg-type]
    with pytest.raises(TableUnavailable, match="does not have the table"):
        plan_table(world.store, world.key, world.place, catalog=CatalogSettings("other"))
