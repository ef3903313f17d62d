"""Table and ledger are compared while both change: only lasting differences are reported."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from dagster_leasehold.assets.output.table import comparison
from dagster_leasehold.assets.output.table.comparison import Comparison
from dagster_leasehold.assets.table_settings import CatalogSettings
from dagster_leasehold.lease_store.publication_rows import PublishLock
from tests.unit.assets.output.table.publishing_world import Publishing
from tests.unit.assets.output.table.test_publishing_incidents import Incidents

READS = ("publication", "published_until", "pending_changes", "table_pointer", "each_batch")


def compared(publishing: Publishing) -> Comparison:
    return publishing.publisher().comparison.compare()


def somebody_elses(publishing: Publishing) -> Any:
    """The table as another engine has it, which writes to it, too."""
    catalog: Any = load_catalog(publishing.catalog.name, **publishing.catalog.properties)
    return catalog.load_table("leasehold.orders")


@pytest.fixture
def lake(tmp_path: Path) -> Publishing:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": "none"}
    return Publishing(tmp_path, catalog=CatalogSettings("lake", properties))


def test_an_unpublished_batch_is_no_difference(tmp_path: Path) -> None:
    publishing = Publishing(tmp_path)
    lock = publishing.lock()
    assert isinstance(lock, PublishLock)
    assert compared(publishing) == Comparison(0, ()), "before there is a table"
    publishing.world.consume()
    assert compared(publishing) == Comparison(0, ())
    publishing.publish()
    publishing.world.append(publishing.world.ids[0], 5)
    publishing.world.consume("run-2")
    assert compared(publishing) == Comparison(6, ())


def test_files_that_another_program_removed_or_duplicated_are_named(lake: Publishing) -> None:
    lake.world.consume()
    lake.publish()
    first, second = lake.world.ids[:2]
    removed = [f for b in lake.world.store.batches(lake.world.key, first) for f in b.files]
    doubled = next(lake.world.store.each_batch(lake.world.key, second)).files[0]
    somebody_elses(lake).delete(f"shard_id = '{first}'")
    place = f"file://{lake.world.output}/{doubled.path}"
    somebody_elses(lake).add_files([place], check_duplicate_files=False)
    outcome = compared(lake)
    assert outcome.files == 6 - len(removed) + 1
    trouble, *differences = outcome.differences
    net = sum(file.records for file in removed) - doubled.records
    assert f"Another program has removed {net} records from the table" in trouble
    assert sorted(differences) == sorted(
        [
            *(
                f"The file {file.path} of {file.records} records is missing in the table."
                for file in removed
            ),
            "The table contains a file that the ledger does not: "
            f"{doubled.path} of {doubled.records} records.",
        ]
    )


def test_a_few_of_very_many_differences_are_named(
    lake: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "DIFFERENCES_MAX", 1)
    lake.world.consume()
    lake.publish()
    somebody_elses(lake).delete()
    _, first, last = compared(lake).differences
    assert "is missing in the table" in first
    assert last == "More files differ."


def test_files_of_a_pending_publication_count(
    lake: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.world.consume()
    with monkeypatch.context() as patched:
        patched.setattr(lake.store, "commit_publication", lambda *_: None)
        lake.publish()
    assert compared(lake) == Comparison(6, ())


@pytest.mark.parametrize("seed", range(4))
def test_concurrent_work_is_not_reported_as_a_difference(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: before each read of the store, a process can consume, publish, rewrite or go back."""
    incidents = Incidents(tmp_path, seed, monkeypatch)
    store: Any = incidents.world.store
    chance = random.Random(seed)
    busy = False

    def happens(verb: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal busy
            if not busy and chance.random() < 0.4:
                busy = True
                steps = (incidents.consume, incidents.publish, incidents.compact, incidents.force)
                chance.choice(steps)()
                busy = False
            return verb(*arguments, **options)

        return call

    for _ in range(3):
        incidents.consume()
        incidents.publish()
        with monkeypatch.context() as patched:
            for verb in READS:
                patched.setattr(store, verb, happens(getattr(store, verb)))
            assert compared(incidents.publishing).differences == ()
