"""`leasehold table create` publishes committed files unchanged."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from dagster_leasehold.assets.errors import PublicationRefused
from dagster_leasehold.assets.output.table.catalogs import LeaseDatabaseCatalog
from dagster_leasehold.assets.table_settings import CatalogSettings, TableSettings
from dagster_leasehold.lease_store.publication_rows import PublishLock
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.commands import publish
from tests.table_engines import duckdb_query
from tests.unit.orchestration.consumed_home import KEY, NODE, ConsumedHome

NAME = TableSettings().table_name(CatalogSettings().name, KEY)


@pytest.fixture
def home(tmp_path: Path) -> ConsumedHome:
    """A home whose committed output was not published."""
    home = ConsumedHome(tmp_path / "home")
    home.append(10)
    home.consume("run-1")
    return home


def test_table_create_publishes_files_that_match_the_ledger(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in home.output.rglob("*.parquet")}
    assert main(["table", "create", "demo", "--home", str(home.settings.home), "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome == {
        "table": ["leasehold", "leasehold", "demo"],
        "batches": 6,
        "records": 20,
        "files": 6,
        "differences": [],
        "notes": [],
        "rejected": [],
    }
    assert {path: path.stat().st_mtime_ns for path in home.output.rglob("*.parquet")} == before
    pointer = home.store.table_pointer(NAME)
    assert pointer is not None
    values = sorted(row[0] for row in duckdb_query(pointer.location, "value"))
    assert values == sorted(b"%d:%d" % (shard, n) for shard in range(2) for n in range(10))


def test_verify_compares_table_and_ledger(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    """Method: the test removes published rows from the ledger, past every rule."""
    at = ["--home", str(home.settings.home)]
    assert main(["verify", *at, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["table"] is None
    assert main(["table", "create", "demo", *at]) == 0
    assert main(["verify", *at]) == 0
    assert "demo/default: 6 files in the table, no differences." in capsys.readouterr().out
    with sqlite3.connect(home.settings.home / "leases.db") as database:
        database.execute("UPDATE batch SET files = '[]' WHERE shard_id = '0' AND sequence = 0")
    assert main(["verify", *at]) == 1
    output = capsys.readouterr().out
    assert "no violations" in output
    assert output.count("DIFFERENCE") == 1
    assert "The table contains a file that the ledger does not: " in output
    assert main(["verify", *at, "--json"]) == 1
    (difference,) = json.loads(capsys.readouterr().out)["table"]["differences"]
    assert difference in output
    assert main(["table", "create", "demo", *at]) == 1
    assert f"they differ from the ledger's: {difference}" in capsys.readouterr().out


def test_a_refusal_is_one_attempt_and_one_sentence(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = list[object]()

    def refused(*_: object) -> None:
        attempts.append(None)
        raise PublicationRefused("Catalog lake refused a publication.")

    with monkeypatch.context() as patched:
        patched.setattr(LeaseDatabaseCatalog, "publish", refused)
        assert main(["table", "create", "demo", "--home", str(home.settings.home)]) != 0
    assert "Catalog lake refused a publication." in capsys.readouterr().err
    assert len(attempts) == 1
    assert main(["table", "create", "demo", "--home", str(home.settings.home)]) == 0


def test_a_table_is_adopted_on_request(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--home", str(home.settings.home)]
    assert main(["table", "create", "demo", *at]) == 0
    with sqlite3.connect(home.settings.home / "leases.db") as database:
        database.execute("UPDATE publication SET last_publication = NULL")
    assert main(["table", "create", "demo", *at]) != 0
    assert "is not the last one of this lease" in capsys.readouterr().err
    assert main(["verify", *at]) == 1
    assert main(["table", "create", "demo", "--adopt", *at]) == 0
    assert main(["verify", *at]) == 0


def test_table_create_needs_no_live_node(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    for node in home.store.snapshot(KEY).nodes:
        home.store.evict(KEY, node.name, node.lease_id, observer="test", reason="gone")
    assert main(["table", "create", "demo", "--home", str(home.settings.home)]) == 0
    assert "Published 6 batches of 20 records" in capsys.readouterr().out


def test_table_create_waits_for_another_publisher_and_says_so(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "LOCK_WAIT_S", 0.0)
    assert isinstance(home.store.take_publish_lock(KEY, NODE, "a-1", NAME), PublishLock)
    home.store.register(KEY, other(), observer="test")
    snapshot = home.store.snapshot(KEY)
    first = next(node for node in snapshot.nodes if node.name == NODE)
    home.store.evict(KEY, NODE, first.lease_id, observer="test", reason="gone")
    assert main(["table", "create", "demo", "--home", str(home.settings.home)]) == 0
    assert "Published 6 batches of 20 records" in capsys.readouterr().out


def other() -> object:
    from dagster_leasehold.lease_store.group_rows import Node
    from dagster_leasehold.lease_store.identifiers import NodeName

    return Node(NodeName("b"), 0, "b-1")


def test_table_evolve_shows_its_changes_first(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["demo", "--home", str(home.settings.home)]
    change = ["table", "evolve", *at, "--rename", "value=line", "--remove", "attributes"]
    assert main(change) == 2
    assert "has no table yet: create it with" in capsys.readouterr().err
    assert main(["table", "create", *at]) == 0
    capsys.readouterr()
    assert main(change) == 0
    output = capsys.readouterr().out
    assert "Column 'value' (field id 5) is renamed to 'line'." in output
    assert "Column 'attributes' (field id 6) is removed." in output
    assert "Nothing was changed: repeat the command with --apply." in output
    pointer = home.store.table_pointer(NAME)
    assert pointer is not None
    assert len(duckdb_query(pointer.location, "value, attributes")) == 20
    assert main([*change, "--apply", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["applied"] is True
    pointer = home.store.table_pointer(NAME)
    assert pointer is not None
    assert sorted(duckdb_query(pointer.location, "line"))[0] == (b"0:0",)
    assert main([*change, "--apply"]) == 0
    assert "The table already has these columns." in capsys.readouterr().out
    assert main(["cat", *at, "--json"]) == 0
    row = json.loads(capsys.readouterr().out.splitlines()[0])
    assert row["line"] == "0:0"
    assert not {"value", "attributes"} & {*row}
    for wrong in ("value", "=x", "value="):
        assert main(["table", "evolve", *at, "--rename", wrong]) == 2
        assert "write OLD=NEW" in capsys.readouterr().err
    assert main(["verify", "--home", str(home.settings.home)]) == 0
