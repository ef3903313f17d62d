"""A table whose newest publication the lease store does not know is unchanged until its adoption.

The lease store was restored from an older copy, recreated, or belongs to another deployment; or the
table is missing. The table shows its last state meanwhile, and runs keep committing.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.output.table.group_table import build_publisher
from dagster_leasehold.assets.output.table.publish_locks import PublishReport, take_lock
from dagster_leasehold.assets.output.table.publisher import Publisher
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.assets.rewriting.vacuum import vacuum
from dagster_leasehold.assets.table_settings import CatalogSettings, TableSettings
from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.publication_rows import PublishLock
from tests.table_engines import duckdb_query
from tests.unit.orchestration.consumed_home import AT_ONCE, KEY, NODE, ConsumedHome

UNKNOWN = "is not the last one of this lease"


@dataclass
class Scene:
    """A stream in SQLite, and its table in one catalog or the other.

    Attributes:
        folder: holds the home, and copies of its database.
        catalog: of the table; the lease database by default.
        database_url: of another lease database than SQLite.
    """

    folder: Path
    catalog: CatalogSettings = field(default_factory=CatalogSettings)
    database_url: str | None = None
    runs: int = 0

    def __post_init__(self) -> None:
        self.home = ConsumedHome(self.folder / "home", database_url=self.database_url)

    def consume(self, records: int = 0) -> None:
        self.runs += 1
        self.home.append(records)
        self.home.consume(f"run-{self.runs}")

    def publish(self, verb: str = "publish", *more: object) -> PublishReport:
        lock = self.lock()
        return getattr(self.publisher(), verb)(lock, *more)

    def lock(self) -> PublishLock:
        name = TableSettings().table_name(self.catalog.name, KEY)
        lock = take_lock(self.home.store, KEY, name, {NODE: "a-1"})
        assert isinstance(lock, PublishLock)
        return lock

    def publisher(self) -> Publisher:
        return build_publisher(
            store=self.home.store,
            key=KEY,
            settings=TableSettings(),
            catalog=self.catalog,
            place=output_place(self.home.output),
        )

    def adopt(self) -> PublishReport:
        """Adopt the table, and publish the batches that wait."""
        self.publish("adopt")
        return self.publish()

    def published(self) -> list[bytes]:
        """The values in the table, as DuckDB reads them."""
        return sorted(row[0] for row in duckdb_query(self.metadata_at(), "value"))

    def metadata_at(self) -> str:
        if self.catalog.properties:
            return self.lake().load_table("leasehold.demo").metadata_location
        pointer = self.home.store.table_pointer(TableSettings().table_name(self.catalog.name, KEY))
        assert pointer is not None
        return pointer.location

    def lake(self) -> Any:
        return load_catalog(self.catalog.name, **self.catalog.properties)

    def committed(self) -> list[bytes]:
        """The values of all committed records, by the ledger."""
        files = (file for batch in self.home.store.each_batch(KEY) for file in batch.files)
        tables = (pq.read_table(self.home.output / file.path) for file in files)
        return sorted(value for table in tables for value in table["value"].to_pylist())

    def dump(self) -> Path:
        """Copy the database."""
        copy = self.folder / "dump.db"
        with sqlite3.connect(self._database) as source, sqlite3.connect(copy) as target:
            source.backup(target)
        return copy

    def restore(self, copy: Path) -> None:
        """Put a copy of the database back."""
        self.home.store.close()
        with sqlite3.connect(copy) as source, sqlite3.connect(self._database) as target:
            source.backup(target)

    @property
    def _database(self) -> Path:
        return self.home.settings.home / "leases.db"


@pytest.fixture(params=["leasehold", "lake"])
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Scene:
    if request.param == "leasehold":
        return Scene(tmp_path)
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": "none"}
    return Scene(tmp_path, CatalogSettings("lake", properties))


def expected(count: int) -> list[bytes]:
    return sorted(b"%d:%d" % (shard, number) for shard in range(2) for number in range(count))


def test_an_adoption_after_a_restore_loses_and_duplicates_no_published_record(scene: Scene) -> None:
    scene.consume(8)
    scene.publish()
    dump = scene.dump()
    scene.consume(8)
    scene.publish()
    scene.restore(dump)
    scene.consume(4)
    assert scene.committed() == expected(20)
    if scene.catalog.properties:
        with pytest.raises(TableUnavailable, match=UNKNOWN):
            scene.publish()
        assert scene.published() == expected(16), "as it was"
        scene.adopt()
    else:
        scene.publish()  # the pointer was restored with the ledger
    assert scene.published() == expected(20)
    scene.consume(1)
    scene.publish()
    assert scene.published() == scene.committed() == expected(21)


def test_records_that_only_the_table_has_stay_readable_under_a_tag(tmp_path: Path) -> None:
    """The table does not say how far it has each shard, so the ledger stays unchanged.

    1. The database is restored. 2. The table is adopted before its records are read again.
    """
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": "none"}
    scene = Scene(tmp_path, CatalogSettings("lake", properties))
    scene.consume(8)
    scene.publish()
    dump = scene.dump()
    scene.consume(8)
    scene.publish()
    scene.restore(dump)
    for states in scene.home.output.glob("metadata/*.shards.json.gz"):
        states.unlink()
    assert scene.publish("adopt").snapshot is not None
    assert scene.published() == expected(8)
    for _ in range(3):
        scene.consume(1)
        scene.publish()
    table = scene.lake().load_table("leasehold.demo")
    named = {each.snapshot_id for each in table.metadata.refs.values()}
    old = [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id not in named]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    vacuum(
        scene.home.store,
        KEY,
        output_place(scene.home.output),
        older_than=AT_ONCE,
        catalog=scene.catalog,
    )
    table = scene.lake().load_table("leasehold.demo")
    (name,) = (name for name in table.metadata.refs if name.startswith("before-adoption-"))
    rows = table.scan(snapshot_id=table.metadata.refs[name].snapshot_id).to_arrow()
    assert sorted(rows["value"].to_pylist()) == expected(16)
    assert scene.published() == scene.committed()


def test_an_adoption_works_without_the_metadata_of_the_older_database(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.consume(8)
    scene.publish()
    dump, at = scene.dump(), Path(scene.metadata_at().removeprefix("file://"))
    scene.consume(8)
    scene.publish()
    at.unlink()
    scene.restore(dump)
    with pytest.raises(TableUnavailable, match="table create --adopt"):
        scene.publish()
    scene.consume()
    scene.adopt()
    assert scene.published() == scene.committed() == expected(16)


def test_a_recreated_group_does_not_touch_the_table_of_the_old_one(scene: Scene) -> None:
    scene.consume(8)
    scene.publish()
    scene.home.store.delete_group(KEY, force=True)
    scene.home.store.create_group(Group(KEY))
    scene.home.join()
    scene.consume()
    with pytest.raises(TableUnavailable, match=UNKNOWN):
        scene.publish()
    assert scene.published() == expected(8)
    scene.adopt()
    assert scene.published() == scene.committed() == expected(8)


def test_a_removed_table_is_not_recreated_without_published_records(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": "none"}
    scene = Scene(tmp_path, CatalogSettings("lake", properties))
    scene.consume(8)
    scene.publish()
    scene.lake().drop_table("leasehold.demo")
    scene.consume(4)
    with pytest.raises(TableUnavailable, match="is gone from catalog lake"):
        scene.publish()
    scene.adopt()
    assert scene.published() == scene.committed() == expected(12)


def test_a_table_that_was_rolled_back_is_not_published_to(tmp_path: Path) -> None:
    """Goal: batches of the snapshots that were undone do not stay out of it for good."""
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": "none"}
    scene = Scene(tmp_path, CatalogSettings("lake", properties))
    scene.consume(8)
    scene.publish()
    first = scene.lake().load_table("leasehold.demo").metadata.current_snapshot().snapshot_id
    scene.consume(4)
    scene.publish()
    scene.lake().load_table("leasehold.demo").manage_snapshots().rollback_to_snapshot(
        first
    ).commit()
    with pytest.raises(TableUnavailable, match="Another program has rolled back the table"):
        scene.publish()
    scene.adopt()
    assert scene.published() == scene.committed() == expected(12)


def test_an_adoption_publishes_waiting_changes(scene: Scene) -> None:
    """Method: files are merged while the table is not ours; the ledger names the merged ones."""
    scene.consume(8)
    scene.publish()
    scene.dump()
    compactor = Compactor(
        store=scene.home.store, key=KEY, output_root=output_place(scene.home.output), run="merging"
    )
    compactor.compact([ShardId("0"), ShardId("1")])
    assert len(scene.home.store.pending_changes(KEY)) == 2
    assert scene.publish("adopt").changes == 2
    assert scene.published() == expected(8)
    assert scene.publish().explanation == "Everything that is committed is published."
    assert scene.published() == scene.committed() == expected(8)


def test_an_adoption_of_a_matching_table_changes_nothing(scene: Scene) -> None:
    scene.consume(8)
    scene.publish()
    assert scene.publish("adopt").records == 0
    assert scene.publish().explanation == "Everything that is committed is published."
    assert scene.published() == expected(8)
