"""A published table in an object store: DuckDB and PyIceberg read it there, and orphans go."""

from __future__ import annotations

from collections.abc import Generator
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from dagster_leasehold.assets.output.table.staging import METADATA_FOLDER
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.assets.rewriting.vacuum import vacuum
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store.publication_rows import PublishLock
from tests.object_store import ENVIRONMENT, PYICEBERG, StoreClock, new_bucket, store_clock
from tests.table_engines import let_duckdb_into_the_store
from tests.unit.assets.consumption_world import World
from tests.unit.assets.output.table.publishing_world import Publishing

HOUR = timedelta(hours=1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Generator[StoreClock]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    let_duckdb_into_the_store()
    with store_clock() as clock:
        yield clock


@pytest.fixture
def publishing(tmp_path: Path, clock: StoreClock) -> Publishing:
    world = World(tmp_path, elsewhere=output_place(f"s3://{new_bucket()}/out"))
    return Publishing(tmp_path, TableSettings(snapshots_kept=2), world=world)


def test_engines_read_the_table_in_the_store(publishing: Publishing) -> None:
    publishing.world.consume()
    publishing.publish()
    at = publishing.metadata_at()
    assert at.startswith("s3://bucket-")
    assert publishing.published() == publishing.committed()
    rows = StaticTable.from_metadata(at, PYICEBERG).scan().to_arrow()
    assert sorted(rows.column("value").to_pylist()) == publishing.committed()


def test_unreferenced_metadata_is_removed_and_named_files_stay(
    publishing: Publishing, clock: StoreClock
) -> None:
    world = publishing.world
    for number in range(4):
        world.append(world.ids[0], 2)
        world.consume(f"run-{number}")
        publishing.publish()
    lock = publishing.lock()
    assert isinstance(lock, PublishLock)
    publisher = publishing.publisher()
    assert publisher.remove_orphans(lock, older_than=HOUR) == 0, "they are young"
    clock.pass_by(2 * HOUR)
    files = {entry.path for entry in world.place.entries(METADATA_FOLDER)}
    removed = publisher.remove_orphans(lock, older_than=HOUR)
    left = {entry.path for entry in world.place.entries(METADATA_FOLDER)}
    assert removed == len(files) - len(left) > 0
    assert publishing.published() == publishing.committed()


def test_vacuum_keeps_files_of_earlier_snapshots(publishing: Publishing, clock: StoreClock) -> None:
    """1. Two files are merged. 2. The table follows. 3. Its earlier snapshot names them still."""
    world = publishing.world
    world.consume()
    publishing.publish()
    compactor = Compactor(
        store=world.store, key=world.key, output_root=world.place, run="compact-1"
    )
    compactor.compact(world.ids)
    assert publishing.publish().changes == 2
    clock.pass_by(2 * HOUR)
    assert vacuum(world.store, world.key, world.place, older_than=HOUR).removed == ()
    assert publishing.published() == publishing.committed()
    for number in range(2):
        world.append(world.ids[0], 2)
        world.consume(f"run-{number}")
        publishing.publish()
    clock.pass_by(2 * HOUR)
    assert len(vacuum(world.store, world.key, world.place, older_than=HOUR).removed) == 6
    assert publishing.published() == publishing.committed()
