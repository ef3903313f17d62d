"""`leasehold doctor` on a home that is well, and on homes where one part is not."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.output.table import group_table
from dagster_leasehold.assets.places.local_place import LocalPlace
from dagster_leasehold.lease_store import database_report, open_store
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.release import HEAD, StoredSchema
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.commands.doctor import Health, clocks, findings_of
from dagster_leasehold.orchestration.commands.target import Target
from dagster_leasehold.orchestration.supervision import preflight
from tests import object_store
from tests.unit.orchestration.consumed_home import KEY, NODE, ConsumedHome


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConsumedHome:
    # That a Java runs is for the tests of the check itself to say.
    monkeypatch.setattr(preflight, "check_spark", lambda _: None)
    # Other tests of this process may have opened an instance.
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    made = ConsumedHome(tmp_path)
    made.append(3)
    made.consume("run-1")
    return made


def examined(home: ConsumedHome, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--json", "--home", str(home.settings.home)])
    document = json.loads(capsys.readouterr().out)
    assert document["healthy"] == (code == 0)
    return code, {each["part"]: each for each in document["findings"]}


def test_each_healthy_part_has_a_line(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    code, parts = examined(home, capsys)
    unwell = {name: each for name, each in parts.items() if each["health"] != "ok"}
    assert (code, unwell.keys()) == (0, {"dagster"}), "no instance was made: a warning"
    assert parts["schema"]["text"] == f"revision {HEAD}."
    assert parts["source of demo"]["text"] == "2 shards, readable."
    assert list(home.output.parent.parent.glob("doctor-*")) == [], "nothing is left behind"
    assert main(["doctor", "--home", str(home.settings.home)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(parts)
    assert all(line.startswith(("ok ", "warning ")) for line in lines)


def without_log(home: ConsumedHome) -> None:
    (home.log.root / "catalog.json").write_text("{")


def without_members(home: ConsumedHome) -> None:
    seen = home.store.snapshot(KEY).nodes[0].lease_id
    home.store.evict(KEY, NODE, seen, observer="test", reason="test")


def without_output(home: ConsumedHome) -> None:
    output = home.output.parent.parent
    output.rename(output.with_name("elsewhere"))
    output.write_text("a file where the folder was")


def without_store(home: ConsumedHome) -> None:
    home.store.close()
    (home.settings.home / "leases.db").unlink()


@pytest.mark.parametrize(
    ("break_it", "part"),
    [
        (without_log, "source of demo"),
        (without_members, f"nodes of {KEY}"),
        (without_output, "output"),
        (without_store, "database"),
    ],
)
def test_one_unhealthy_part_is_named_beside_the_others(
    home: ConsumedHome,
    capsys: pytest.CaptureFixture[str],
    break_it: Callable[[ConsumedHome], None],
    part: str,
) -> None:
    break_it(home)
    code, parts = examined(home, capsys)
    assert code == 1
    assert parts[part]["health"] == "failed"
    assert parts[part]["text"].endswith("."), parts[part]
    assert "\n" not in parts[part]["text"]
    assert parts["spark"]["health"] == "ok", "the other checks are made"


def test_a_schema_of_another_release_says_what_to_do(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_report.schema, "stored", lambda _: StoredSchema(None))
    _, parts = examined(home, capsys)
    assert parts["schema"]["health"] == "failed"
    assert "leasehold db upgrade" in parts["schema"]["text"]


def test_a_file_of_an_older_schema_is_unchanged(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(home.settings.home / "leases.db")) as connection, connection:
        connection.execute("UPDATE leasehold_schema SET version_num = '0023'")
        connection.execute("UPDATE leasehold_schema SET oldest_revision = '0020'")
    code, parts = examined(home, capsys)
    assert "A version before 0.2.0 created the lease store" in parts["schema"]["text"]
    assert (code, parts["schema"]["health"]) == (1, "failed")
    for part in ("clock", "catalog", "nodes"):
        assert parts[part]["health"] == "warning"
        assert parts[part]["text"].startswith("not checked: ")


def test_a_check_leaves_no_folder(home: ConsumedHome) -> None:
    home.settings.output_root.remove_folder()
    main(["doctor", "--home", str(home.settings.home)])
    assert not Path(str(home.settings.output_root)).exists()


def test_a_file_that_cannot_be_read_back_is_removed(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: LocalPlace) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(LocalPlace, "content", refused)
    _, parts = examined(home, capsys)
    assert parts["output"]["health"] == "failed"
    assert "Permission denied" in parts["output"]["text"]
    assert list(home.output.parent.parent.glob("doctor-*")) == []


def test_output_that_returns_other_bytes_is_refused(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalPlace, "content", lambda _: b"")
    _, parts = examined(home, capsys)
    assert parts["output"]["health"] == "failed"
    assert list(home.output.parent.parent.glob("doctor-*")) == []


def test_output_in_an_object_store_is_written_and_read(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in object_store.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    bucket = object_store.new_bucket()
    monkeypatch.setenv("LEASEHOLD_OUTPUT", f"s3://{bucket}/leasehold")
    _, parts = examined(home, capsys)
    assert parts["output"]["health"] == "ok"
    assert parts["output"]["text"].startswith(f"s3://{bucket}/leasehold stores and returns a file")
    assert [key for key in object_store.keys(bucket) if "doctor" in key] == []


def test_an_unreachable_catalog_is_named(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise TableUnavailable("Catalog lake does not answer.")

    monkeypatch.setattr(group_table, "find_table", away)
    code, parts = examined(home, capsys)
    assert (code, parts["catalog"]["health"]) == (1, "failed")
    assert parts["catalog"]["text"] == "Catalog lake does not answer."


def test_different_clocks_are_a_warning(home: ConsumedHome) -> None:
    target = Target.at(home.settings.home)
    [finding] = clocks(target, lambda: utc_now() + timedelta(hours=1))
    assert finding.health is Health.WARNING
    assert "differ by 3600 s" in finding.text


def test_a_journal_whose_times_jump_back_is_a_warning(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    behind = open_store(home.settings.store_url, clock=lambda: utc_now() - timedelta(minutes=10))
    behind.register(KEY, Node(NodeName("b"), 0, "b-1"), observer="test")
    behind.close()
    code, parts = examined(home, capsys)
    assert (code, parts["clock"]["health"]) == (0, "warning")
    assert "step back by up to 600 s" in parts["clock"]["text"]


def test_an_error_ends_only_its_own_check() -> None:
    def check() -> Any:
        raise ZeroDivisionError("boom")
        yield

    (finding,) = findings_of("part", check)
    assert (finding.health, finding.text) == (Health.FAILED, "ZeroDivisionError: boom")
