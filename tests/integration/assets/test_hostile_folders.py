"""Homes in folders with hostile names: the whole way from log to table, or one sentence.

Method: lines are loaded, consumed and published in a home of that name, and the table is read by
`leasehold cat` and by engines that know the location of its metadata alone.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.lease_store.transactions import parse_url, sqlite_path
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.settings import Settings
from tests.declared import declare
from tests.environment import forget_settings
from tests.table_engines import duckdb_with_iceberg, polars_scan, pyiceberg_rows
from tests.unit.orchestration.consumed_home import KEY, ConsumedHome

LINES = ["first", "", "größe"]
TAKEN = [
    "a b",
    "50%off",
    "100%",
    "%zz",
    "a+b",
    "größe 日本 😀",
    "e\u0301",
    "it's",
    'say "x"',
    "a=b",
    "a*b",
    "a[b]",
    "{a,b}",
    "_x",
    ".x",
    "a\\b",
    "a;b&c|d",
    "$HOME",
    "~",
    "(a) <b> `c`",
    "a@b",
    "^!a",
    " both ends ",
    "-x",
    "a..b",
    "x" * 200,
]
REFUSED = ["x?1", "a:b", "x#1", "50%25off", "%2F", "a\tb", "a\nb", "a\x01b", "a\x7fb", "a\udcffb"]

OF_HOMES = ("a:b", "50%25off", "%2F")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_settings(monkeypatch)
    monkeypatch.setenv("LEASEHOLD_MODULE", declare(tmp_path / "declared", "demo"))
    monkeypatch.syspath_prepend(tmp_path / "declared")
    (tmp_path / "homes").mkdir()
    monkeypatch.chdir(tmp_path / "homes")


@pytest.mark.parametrize("name", TAKEN)
def test_every_engine_reads_the_output_in_a_hostile_folder(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("LEASEHOLD_HOME", name)
    (tmp_path / "in.log").write_text("".join(f"{line}\n" for line in LINES))
    assert main(["load", "demo", str(tmp_path / "in.log"), "--shards", "1"]) == 0
    assert main(["group", "create", "demo"]) == 0
    home = ConsumedHome(Path(name))
    home.join()
    home.consume("run-1")
    assert main(["table", "create", "demo"]) == 0
    assert main(["verify", "demo"]) == 0
    capsys.readouterr()
    assert main(["cat", "demo"]) == 0
    read = [json.loads(line)["value"] for line in capsys.readouterr().out.splitlines()]
    assert read == LINES

    pointer = home.store.table_pointer(home.stream.iceberg.table_name("leasehold", KEY))
    home.store.close()
    assert pointer is not None
    values = [line.encode() for line in LINES]
    metadata = pointer.location
    query = "SELECT value FROM iceberg_scan(?) ORDER BY cursor"
    assert duckdb_with_iceberg().execute(query, [metadata]).fetchall() == [(v,) for v in values]
    assert [row["value"] for row in pyiceberg_rows(metadata)] == values
    assert polars_scan(metadata).collect()["value"].to_list() == values
    # Nothing went beside the home.
    assert [path.name for path in Path.cwd().iterdir()] == [name]
    assert (Path(name) / "leases.db").is_file()


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("variable", ["LEASEHOLD_HOME", "LEASEHOLD_OUTPUT"])
def test_a_path_that_cannot_be_an_address_is_refused_before_any_write(
    name: str,
    variable: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    if variable == "LEASEHOLD_OUTPUT" and name in OF_HOMES:
        pytest.skip("only the files of Dagster and Java, in the home, are elsewhere by such a name")
    monkeypatch.setenv(variable, name)
    monkeypatch.setenv("LEASEHOLD_HOME", name if variable == "LEASEHOLD_HOME" else "home")
    (tmp_path / "in.log").write_text("line\n")
    assert main(["load", "demo", str(tmp_path / "in.log")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "choose another" in error
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("name", [*TAKEN, "x?1", "x#1", "50%25off", "a%2Fb"])
def test_a_url_of_a_path_opens_that_path(name: str) -> None:
    """Goal: also where a home would be refused: two files are never one."""
    settings = Settings.model_construct(home=Path(name), database_url=None)
    path = sqlite_path(parse_url(settings.store_url.get_secret_value()))
    assert path == Path(name).absolute() / "leases.db"


@pytest.mark.parametrize("uri", ["file:///tmp/x?1", "file:///tmp/x#1", "file:///tmp/x%3F1"])
def test_a_uri_of_such_a_folder_is_refused(uri: str) -> None:
    with pytest.raises(InvalidSetting):
        output_place(uri)
