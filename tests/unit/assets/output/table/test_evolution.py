"""Columns that an operator renames or removes, in files of every age, as each engine reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyiceberg.catalog import load_catalog

from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.errors import ColumnsUnchangeable, TableUnavailable, TransformError
from dagster_leasehold.assets.output.committed_output import CommittedOutput
from dagster_leasehold.assets.output.table.columns import ColumnAgreement, columns_of, merged
from dagster_leasehold.assets.output.table.evolution import Evolution, apply_evolution
from dagster_leasehold.assets.output.table.publisher import Publisher
from dagster_leasehold.assets.publication_check import PublicationCheck
from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.assets.rewriting.replay import Replayer
from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan
from dagster_leasehold.assets.table_settings import CatalogSettings, TableSettings
from dagster_leasehold.lease_store.publication_rows import PublishLock
from tests.table_engines import duckdb_rows, polars_rows, pyiceberg_rows
from tests.unit.assets.output.table.publishing_world import Publishing

Rows = list[dict[str, Any]]
OLD = {"n": 1, "price": 7, "nested": {"a": 1}}
NEW = {"m": 2, "nested": {"a": 2}}


class Scene(Publishing):
    """A table of a stream whose transform returns chosen columns."""

    runs = 0

    def consume(self, *returned: dict[str, Any]) -> None:
        """Consume one record of a shard for each of these columns and values, in one batch."""
        world = self.world
        world.append(world.ids[0], len(returned))
        rest = iter(returned)

        def transform(rows: pa.RecordBatch) -> pa.RecordBatch:
            values = [next(rest, returned[-1]) for _ in range(rows.num_rows)]
            added = pa.Table.from_pylist(values).to_batches()[0]
            for name in {name: None for each in values for name in each}:
                column = pa.array([each.get(name) for each in values])
                rows = rows.append_column(name, column)
            assert added.num_rows == rows.num_rows
            return rows

        world.sweeper.keeps = transform
        self.runs += 1
        report = world.consume(f"run-{self.runs}")[world.ids[0]]
        if report.stopped is StopReason.FAILED:
            raise TransformError(report.error)

    def evolve(self, *, publisher: Any = None, **changes: Any) -> list[str]:
        lock = self.lock()
        assert isinstance(lock, PublishLock), lock
        try:
            publisher = publisher or self.publisher()
            return list(
                apply_evolution(publisher, lock, Evolution(**changes), "operator").sentences
            )
        finally:
            self.store.release_publish_lock(lock)

    def tell_workers(self) -> None:
        """Give the sweeper the names, as each new run does."""
        names = ColumnAgreement(self.store, self.world.key).earlier_names()
        sweeper = self.world.sweeper
        sweeper.partitioning = type(sweeper.partitioning)(names=names)

    def output(self) -> CommittedOutput:
        world = self.world
        return CommittedOutput(world.store, world.key, world.place, catalog=self.catalog)

    def compact(self) -> None:
        world = self.world
        compactor = Compactor(
            store=world.store, key=world.key, output_root=world.place, run=f"merge-{self.runs}"
        )
        for report in compactor.compact(world.ids).values():
            assert not report.error, report.error

    def check(self, name: str, values: list[Any], *gone: str) -> None:
        """Check a column as every engine and this package read it, and that others are gone."""
        at = self.metadata_at()
        dataset = self.output().dataset()
        engines: dict[str, Rows] = {
            "pyiceberg": pyiceberg_rows(at),
            "duckdb": duckdb_rows(at),
            "polars": polars_rows(at),
            "batches": [row for each in self.output().plan().batches() for row in each.to_pylist()],
            "dataset": dataset.to_table().to_pylist(),
            "again": dataset.to_table().to_pylist(),
            "lazy": pl.scan_pyarrow_dataset(dataset).collect().to_dicts(),
            "duckdb of dataset": duckdb.sql("FROM dataset").to_arrow_table().to_pylist(),
        }
        for engine, rows in engines.items():
            column = sorted((row[name] for row in rows), key=lambda each: (each is None, each))
            assert column == values, engine
            assert not {*rows[0]} & {*gone}, engine


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path)
    scene.world.sweeper.keeps = lambda rows: rows.slice(0, 0)
    scene.world.consume("run-0")  # the records that the world begins with
    return scene


def test_all_files_show_a_renamed_column_under_its_new_name(scene: Scene) -> None:
    """Goal: published, committed and later files, old and new transforms, one field id."""
    scene.consume(OLD)
    scene.publish()
    field_id = scene.metadata().schema().find_field("n").field_id
    scene.consume(OLD | {"n": 3})
    sentences = scene.evolve(renamed={"n": "m"})
    assert sentences == [
        f"Column 'n' (field id {field_id}) is renamed to 'm'. "
        "Runs may still return the earlier name."
    ]
    scene.check("m", [1, 3], "n")
    assert scene.metadata().schema().find_field("m").field_id == field_id
    scene.consume(NEW)
    scene.consume(OLD | {"n": 4})  # a run at work still has the earlier declaration
    scene.publish()
    scene.check("m", [1, 2, 3, 4], "n")
    dataset = scene.output().dataset()
    assert dataset.filter(ds.field("m") > 2).count_rows() == 2
    assert dataset.to_table(["m"], filter=ds.field("nested", "a") == 2).to_pydict() == {"m": [2]}
    before = scene.metadata().snapshots[0].snapshot_id
    old = scene.output().dataset(snapshot_id=before).to_table().to_pylist()
    assert [row["n"] for row in old] == [1], "an earlier snapshot has its own names"


def test_compaction_and_replay_write_the_current_names(scene: Scene) -> None:
    scene.consume(OLD)
    scene.evolve(renamed={"n": "m"})
    scene.consume(NEW)
    scene.consume(OLD)
    scene.publish()
    scene.compact()
    scene.publish()
    scene.check("m", [1, 1, 2], "n")
    batches = scene.world.store.batches(scene.world.key)
    (merged_file,) = [file for each in batches for file in each.files if file.batches > 1]
    columns = columns_of((scene.world.place / merged_file.path).schema())
    assert "n" not in {column["name"] for column in columns}
    scene.tell_workers()
    world = scene.world
    world.sweeper.keeps = lambda rows: rows.append_column("n", pa.array([9] * rows.num_rows))
    replayer = Replayer(
        stream=world.stream,
        store=world.store,
        output_root=world.place,
        sweeper=world.sweeper,
        run="replay-1",
    )
    reports = replayer.replay([world.ids[0]], ReplaySpan())
    assert not any(each.error for each in reports.values()), reports
    scene.publish()
    assert {row["m"] for row in duckdb_rows(scene.metadata_at())} == {9}


def test_records_of_both_names_become_one_column(scene: Scene) -> None:
    """Goal: a producer renames a field while a batch has records of both schemas."""
    scene.consume(OLD)
    scene.evolve(renamed={"n": "m"})
    with pytest.raises(TransformError, match="was renamed from 'n', and the new records have both"):
        scene.consume(OLD, NEW)
    scene.tell_workers()
    scene.consume(OLD, NEW)
    scene.publish()
    assert {row["m"] for row in duckdb_rows(scene.metadata_at())} == {1, 2}
    with pytest.raises(TransformError, match="return only the new name"):
        scene.consume({"n": 1, "m": 2})


def test_a_removed_column_stays_removed_until_it_is_restored(scene: Scene) -> None:
    scene.consume(OLD)
    (sentence,) = scene.evolve(removed=["price"])
    assert sentence.endswith("is removed. Files keep its values.")
    scene.consume(OLD)  # a run at work still has the earlier declaration
    scene.publish()
    scene.check("n", [1, 1], "price")
    with pytest.raises(TransformError, match="'price' is long in the table, but string"):
        scene.consume({"price": "x"})
    scene.consume(NEW)
    scene.publish()
    scene.compact()
    scene.publish()
    scene.check("n", [1, 1, None, None], "price")
    assert scene.evolve(restored=["price"]) == [
        "Column 'price' is shown again, with the values in the files."
    ]
    scene.check("price", [7, 7, None, None])


def test_a_name_comes_back_to_a_column_that_had_it(scene: Scene) -> None:
    scene.consume(OLD)
    scene.evolve(renamed={"n": "m"})
    scene.consume(NEW)
    scene.evolve(renamed={"m": "n"})
    scene.check("n", [1, 2], "m")
    scene.evolve(renamed={"n": "N"})
    scene.check("N", [1, 2], "m", "n")


def test_a_repeated_change_publishes_what_an_interrupted_one_did_not(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the catalog does not answer once the columns are agreed."""
    scene.consume(OLD)
    scene.publish()

    def away(*_: object, columns: bool = False) -> Any:
        if columns:
            raise TableUnavailable("Catalog lake did not answer.")
        return Publisher.publish(*_)  # type: ignore[arg-type]

    publisher = scene.publisher()
    monkeypatch.setattr(publisher, "publish", lambda *a, **k: away(publisher, *a, **k))
    with pytest.raises(TableUnavailable):
        scene.evolve(publisher=publisher, renamed={"n": "m"})
    assert "n" in pyiceberg_rows(scene.metadata_at())[0]
    assert scene.evolve(renamed={"n": "m"}) == []
    scene.check("m", [1], "n")
    snapshots = len(scene.metadata().snapshots)
    assert scene.evolve(renamed={"n": "m"}) == []
    assert len(scene.metadata().snapshots) == snapshots


def test_publication_checks_see_the_current_names(scene: Scene) -> None:
    scene.consume(OLD)
    scene.evolve(renamed={"n": "m"})
    scene.consume(OLD | {"n": 2})
    checks = (PublicationCheck("positive", sql="m > 0", on_failure="quarantine"),)
    scene.settings = replace(scene.settings, publication_checks=checks)
    scene.publish()
    scene.check("m", [1, 2], "n")
    scene.consume(OLD | {"n": 3}, OLD | {"n": -3})
    while scene.publish().more:
        pass
    scene.check("m", [1, 2, 3], "n")


def test_a_change_is_in_the_journal(scene: Scene) -> None:
    scene.consume(OLD)
    scene.evolve(renamed={"n": "m"}, removed=["price"])
    (entry,) = [each for each in scene.store.journal(scene.world.key) if each.kind == "columns"]
    assert entry.observer == "operator"
    assert "renamed to 'm'" in entry.reason
    assert "Column 'price'" in entry.reason


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "Nothing was requested"),
        ({"renamed": {"x": "y"}}, "has no column 'x': it has 'shard_id'"),
        ({"removed": ["nested.a"]}, "Nested fields cannot be renamed or removed"),
        ({"renamed": {"n": "price"}}, "The table has or had a column 'price'"),
        ({"renamed": {"n": "PRICE"}}, "engines that read the table cannot distinguish"),
        ({"renamed": {"shard_id": "s"}}, "'shard_id' is reserved"),
        ({"renamed": {"n": "Event_Time"}}, "'Event_Time' is reserved"),
        ({"removed": ["cursor"]}, "'cursor' is reserved"),
        ({"renamed": {"n": "_file"}}, "'_file' has a name that Iceberg reserves"),
        ({"removed": ["n"], "renamed": {"n": "m"}}, "is to change twice"),
        ({"renamed": {"user": "person"}}, "'user' cannot be renamed, because"),
        ({"removed": ["user"]}, "'user' cannot be removed, because"),
        ({"renamed": {"n": "m", "price": "m"}}, "The table has or had a column 'm'"),
    ],
)
def test_a_change_that_cannot_be_applied_is_refused(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    scene = Scene(tmp_path, TableSettings(partitioning=("user",)))
    scene.consume(OLD | {"user": "ann"})
    scene.publish()
    before = scene.store.publication(scene.world.key)
    with pytest.raises((ColumnsUnchangeable, TransformError), match=sentence):
        scene.evolve(**changes)
    assert scene.store.publication(scene.world.key).columns == before.columns
    assert scene.store.publication(scene.world.key).number == before.number


def test_a_publisher_at_work_sees_the_columns_of_other_processes(scene: Scene) -> None:
    scene.consume({"n": 1})
    publisher = scene.publisher()
    for columns in ({"n": 1, "late": 2}, {"n": 1}):
        lock = scene.lock()
        assert isinstance(lock, PublishLock)
        publisher.publish(lock)
        scene.store.release_publish_lock(lock)
        scene.consume(columns)
    scene.evolve(renamed={"n": "m"})
    scene.consume({"n": 1})
    lock = scene.lock()
    assert isinstance(lock, PublishLock)
    publisher.publish(lock)
    scene.store.release_publish_lock(lock)
    scene.check("m", [1, 1, 1, 1], "n")
    scene.check("late", [2, None, None, None])


@pytest.mark.parametrize("ahead", ["table", "ledger"])
def test_a_restored_store_takes_the_names_of_its_table(scene: Scene, ahead: str) -> None:
    before = columns_of(pa.schema([("n", pa.int64()), ("price", pa.int64())]))
    renamed = [{"name": "m", "type": "long", "earlier": ["n"]}, before[1] | {"removed": True}]
    pair = (before, renamed) if ahead == "table" else (renamed, before)
    assert merged(*pair) == renamed


def test_another_catalog_has_the_changes(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "none"}

    class Elsewhere(Scene):
        def metadata_at(self) -> str:
            return (
                load_catalog("lake", **properties).load_table("leasehold.orders").metadata_location
            )

    scene = Elsewhere(tmp_path, catalog=CatalogSettings("lake", properties))
    scene.consume(OLD)
    scene.publish()
    scene.evolve(renamed={"n": "m"}, removed=["price"])
    scene.consume(NEW)
    scene.publish()
    assert {row["m"] for row in duckdb_rows(scene.metadata_at())} == {1, 2}
    assert "price" not in pyiceberg_rows(scene.metadata_at())[0]
    # The lease store is restored: it has the columns from before.
    lock = scene.lock()
    assert isinstance(lock, PublishLock)
    key = scene.world.key
    columns = scene.store.publication(key).columns
    old = [
        {"name": (each.get("earlier") or [each["name"]])[0], "type": each["type"]}
        for each in columns.columns
    ]
    scene.store.agree_columns(key, old, seen_version=columns.version)
    scene.publisher().adopt(lock)
    scene.store.release_publish_lock(lock)
    assert {row["m"] for row in duckdb_rows(scene.metadata_at())} == {1, 2}
    assert not {"n", "price"} & {*pyiceberg_rows(scene.metadata_at())[0]}
