"""A home is moved or copied: its table follows by one command, and both copies continue."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dagster_leasehold.assets.table_settings import CatalogSettings, TableSettings
from dagster_leasehold.orchestration.command_line import main
from tests.table_engines import duckdb_query
from tests.unit.orchestration.consumed_home import KEY, ConsumedHome

pytestmark = pytest.mark.long

NAME = TableSettings().table_name(CatalogSettings().name, KEY)
PUBLICATIONS = 25
"""More than the metadata files that a table keeps."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a table of 20 records, which no process has open."""
    home = ConsumedHome(tmp_path / "home")
    home.append(10)
    home.consume("run-1")
    assert main(["table", "create", "demo", "--home", str(home.settings.home)]) == 0
    home.store.close()
    return home.settings.home


def values(home: Path) -> list[bytes]:
    """The values in the table, as DuckDB reads them."""
    opened = ConsumedHome(home)
    pointer = opened.store.table_pointer(NAME)
    opened.store.close()
    assert pointer is not None
    assert pointer.location.startswith(f"file://{home}/")
    return sorted(row[0] for row in duckdb_query(pointer.location, "value"))


def expected(count: int) -> list[bytes]:
    return sorted(b"%d:%d" % (shard, number) for shard in range(2) for number in range(count))


def go_on(home: Path, run: str) -> None:
    """Consume one more record of each shard, and publish."""
    opened = ConsumedHome(home)
    opened.append(1)
    opened.consume(run)
    opened.store.close()
    assert main(["table", "create", "demo", "--home", str(home)]) == 0


def test_the_table_follows_a_home_that_was_moved(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / "elsewhere" / "home"
    shutil.move(home, moved)
    at = ("--home", str(moved))
    for command in (("cat", "demo"), ("table", "create", "demo"), ("vacuum", "demo")):
        capsys.readouterr()
        assert main([*command, *at]) == 2
        error = capsys.readouterr().err
        assert "make its table follow with `leasehold table move`" in error
        assert error.count("\n") == 1
    assert main(["table", "move", "demo", *at]) == 0
    assert "The table has 6 files; they equal the ledger's." in capsys.readouterr().out
    assert values(moved) == expected(10)
    assert main(["verify", "demo", *at]) == 0
    assert main(["table", "move", "demo", *at]) == 0
    assert capsys.readouterr().out.endswith("table is already correct.\n")


def test_publication_continues_long_after_a_move(home: Path, tmp_path: Path) -> None:
    """Goal: metadata of the old place expires without an error."""
    moved = tmp_path / "moved"
    shutil.move(home, moved)
    assert main(["table", "move", "demo", "--home", str(moved)]) == 0
    for number in range(PUBLICATIONS):
        go_on(moved, f"run-{number + 2}")
    assert values(moved) == expected(10 + PUBLICATIONS)
    assert main(["vacuum", "demo", "--home", str(moved)]) == 0
    assert main(["verify", "demo", "--home", str(moved)]) == 0


def test_a_home_and_its_copy_continue_separately(home: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    assert main(["table", "move", "demo", "--home", str(copy)]) == 0
    go_on(copy, "run-2")
    assert values(home) == expected(10)
    go_on(home, "run-3")
    go_on(home, "run-4")
    assert values(home) == expected(12)
    assert values(copy) == expected(11)
    for each in (home, copy):
        assert main(["verify", "demo", "--home", str(each)]) == 0


def test_a_table_is_not_moved_to_a_folder_without_its_output(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / "moved"
    shutil.move(home, moved)
    shutil.move(moved / "output", tmp_path / "left behind")
    assert main(["table", "move", "demo", "--home", str(moved)]) == 2
    error = capsys.readouterr().err
    assert "move all output to the folder of the setting output, and repeat this command." in error
    assert error.count("\n") == 1
    shutil.move(tmp_path / "left behind", moved / "output")
    assert main(["table", "move", "demo", "--home", str(moved)]) == 0
    assert values(moved) == expected(10)


def test_a_catalog_of_the_user_keeps_the_location_of_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEHOLD_CATALOG", "lake")
    properties = f'{{"type": "sql", "uri": "sqlite:///{tmp_path}/lake.db", "warehouse": "none"}}'
    monkeypatch.setenv("LEASEHOLD_CATALOG_PROPERTIES", properties)
    home = ConsumedHome(tmp_path / "home")
    home.append(10)
    home.consume("run-1")
    home.store.close()
    moved = tmp_path / "moved"
    assert main(["table", "create", "demo", "--home", str(tmp_path / "home")]) == 0
    shutil.copytree(tmp_path / "home", moved)
    capsys.readouterr()
    assert main(["table", "move", "demo", "--home", str(moved)]) == 2
    assert (
        "remove the table from the catalog, but not its files, and recreate it"
        in capsys.readouterr().err
    )
