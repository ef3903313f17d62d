"""A table moves to another name or catalog, with its snapshots, and publication continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_leasehold.lease_store.publication_rows import TableName
from dagster_leasehold.orchestration.command_line import main
from tests.declared import declare, stream_text
from tests.failpoints import Failpoint
from tests.rest_catalog import give_token, rest_catalog
from tests.unit.orchestration.consumed_home import KEY, ConsumedHome

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

POINTS = (Failpoint.BEFORE_RENAME,)
PROGRAM = ("-m", "dagster_leasehold.orchestration.command_line")
FORMER = TableName("leasehold", "leasehold", "demo")


class Scene:
    """A home with a published table of 20 records, and the settings that name the table."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.home, self._set = root, root / "home", monkeypatch.setenv
        self.runs = 0
        self.more(10)

    def more(self, records: int) -> None:
        """Consume more records of each shard, and publish."""
        opened = ConsumedHome(self.home)
        self.runs += 1
        opened.append(records)
        opened.consume(f"run-{self.runs}")
        opened.store.close()
        assert self.call("create") == 0

    def call(self, command: str) -> int:
        return main(["table", command, "demo", "--home", str(self.home)])

    def catalog_of(self, name: str) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.root}/{name}.db", "warehouse": "none"}

    def use(self, name: str) -> None:
        """Name another catalog in the settings, or the lease database."""
        properties = {} if name == "leasehold" else self.catalog_of(name)
        self._set("LEASEHOLD_CATALOG", name)
        self._set("LEASEHOLD_CATALOG_PROPERTIES", json.dumps(properties))

    def rename(self, name: str) -> None:
        """Name another table in the declaration of the stream."""
        text = stream_text("demo", iceberg=f"TableSettings(name={name!r})")
        declare(self.home, text, before="from dagster_leasehold import TableSettings")

    def open(self, name: str) -> Catalog:
        from pyiceberg.catalog import load_catalog

        return load_catalog(name, **self.catalog_of(name))

    def table(self) -> TableName | None:
        opened = ConsumedHome(self.home)
        try:
            publication = opened.store.publication(KEY)
            return None if publication is None else publication.table
        finally:
            opened.store.close()

    def pointer(self, name: TableName) -> str | None:
        opened = ConsumedHome(self.home)
        try:
            pointer = opened.store.table_pointer(name)
            return None if pointer is None else pointer.location
        finally:
            opened.store.close()


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_a_table_moves_to_another_catalog_with_its_snapshots(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.more(1)
    scene.use("lake")
    assert scene.call("create") == 2
    assert "move the table with `leasehold table move demo`" in capsys.readouterr().err
    assert scene.call("move") == 0
    assert "is now leasehold.demo of catalog lake." in capsys.readouterr().out
    assert scene.pointer(FORMER) is None
    scene.more(1)
    table = scene.open("lake").load_table(("leasehold", "demo"))
    assert table.scan().to_arrow().num_rows == 24
    assert len(table.metadata.snapshots) == 3, "the snapshots before the move stay"
    assert scene.call("move") == 0
    assert capsys.readouterr().out.endswith("table is already correct.\n")


def test_a_table_moves_back_into_the_lease_database(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.use("lake")
    assert scene.call("move") == 0
    scene.more(1)
    scene.use("leasehold")
    for name, value in scene.catalog_of("lake").items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper()}", value)
    capsys.readouterr()
    assert scene.call("move") == 0
    assert "Remove the entry leasehold.demo of catalog lake, but not its files." in (
        capsys.readouterr().out
    )
    scene.more(1)
    assert scene.table() == FORMER
    assert scene.pointer(FORMER) is not None


@pytest.mark.parametrize("catalog", ["leasehold", "lake"])
def test_a_table_is_renamed_within_its_catalog(scene: Scene, catalog: str) -> None:
    scene.use(catalog)
    scene.call("move")
    scene.rename("web.visits")
    assert scene.call("move") == 0
    after = TableName(catalog, "web", "visits")
    assert scene.table() == after
    scene.more(1)
    assert (scene.pointer(after) is None) == (catalog == "lake")
    assert scene.pointer(FORMER) is None
    if catalog == "lake":
        assert scene.open("lake").load_table(("web", "visits")).scan().to_arrow().num_rows == 22
        assert scene.open("lake").list_tables("leasehold") == []


def test_a_table_moves_to_a_rest_catalog_and_is_renamed_there(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_token(monkeypatch)
    with rest_catalog(scene.root) as uri:
        monkeypatch.setenv("LEASEHOLD_CATALOG", "lake")
        properties = json.dumps({"type": "rest", "uri": uri})
        monkeypatch.setenv("LEASEHOLD_CATALOG_PROPERTIES", properties)
        assert scene.call("move") == 0
        scene.more(1)
        scene.rename("web.visits")
        assert scene.call("move") == 0
        scene.more(1)
        assert scene.table() == TableName("lake", "web", "visits")
        assert scene.pointer(FORMER) is None


@pytest.mark.parametrize("renames", [False, True])
def test_an_interrupted_move_is_repeated(scene: Scene, renames: bool) -> None:
    scene.use("lake")
    if renames:
        assert scene.call("move") == 0
        scene.rename("web.visits")
    before = scene.table()

    [point] = POINTS
    point.kills(*PROGRAM, "table", "move", "demo", "--home", scene.home)
    assert scene.table() == before
    assert scene.call("move") == 0
    scene.more(1)
    after = scene.table()
    assert after is not None
    assert scene.open("lake").load_table((after.namespace, after.name)).scan().count() == 22


def test_a_table_is_not_moved_over_another_one(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyiceberg.schema import Schema

    lake = scene.open("lake")
    lake.create_namespace("leasehold")
    lake.create_table(("leasehold", "demo"), Schema(), location=f"file://{scene.root}/other")
    scene.use("lake")
    capsys.readouterr()
    assert scene.call("move") == 2
    assert "already has another table leasehold.demo" in capsys.readouterr().err
    assert scene.table() == FORMER
