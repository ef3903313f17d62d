"""`leasehold db`: another store's schema, the copy as JSON, and no password in any sentence."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest
from sqlalchemy import text

from dagster_leasehold.lease_store.transactions import open_engine, parse_url
from dagster_leasehold.orchestration.command_line import main
from tests.environment import forget_settings
from tests.unit.orchestration.consumed_home import ConsumedHome

SECRET = "hunter2"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ConsumedHome]:
    """A drained home, and an empty store in NEW_DATABASE_URL."""
    forget_settings(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEASEHOLD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NEW_DATABASE_URL", f"sqlite:///{tmp_path}/new/leases.db")
    home = ConsumedHome(tmp_path / "home")
    home.append(4)
    home.consume("run-1")
    assert main(["group", "drain", "demo"]) == 0
    assert main(["db", "upgrade", "--env", "NEW_DATABASE_URL"]) == 0
    yield home
    home.store.close()


def test_the_copy_as_json(home: ConsumedHome, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["db", "copy", "--to-env", "NEW_DATABASE_URL", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["groups"] == ["demo/default"]
    assert document["rows"]["batch"] == 2
    assert document["violations"] == []
    assert document["from"].endswith("home/leases.db")
    assert document["to"].endswith("new/leases.db")


def test_a_violation_in_the_copy_is_printed_and_fails(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = open_engine(parse_url(home.settings.store_url.get_secret_value()))
    with engine.begin() as connection:
        connection.execute(text("UPDATE batch SET holder = 'nobody'"))
    assert main(["db", "copy", "--to-env", "NEW_DATABASE_URL"]) == 1
    assert "VIOLATION: fence" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("UNSET_URL", None, "The environment variable UNSET_URL is not set"),
        ("EMPTY_URL", "", "The environment variable EMPTY_URL is not set"),
        (f"mysql+pymysql://a:{SECRET}@db/leases", None, "not the URL itself"),
        ("WRONG_URL", f"mysql+pymysql//a:{SECRET}@db/leases", "cannot be parsed"),
        ("OTHER_URL", f"postgresql://a:{SECRET}@db/leases", "use SQLite, MariaDB or MySQL"),
    ],
)
@pytest.mark.parametrize("command", [("copy", "--to-env"), ("upgrade", "--env")])
def test_a_mistake_is_one_sentence_without_the_password(
    command: tuple[str, str],
    variable: str,
    value: str | None,
    sentence: str,
    home: ConsumedHome,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if value is not None:
        monkeypatch.setenv(variable, value)
    capsys.readouterr()
    assert main(["db", *command, variable]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert SECRET not in error


def test_pruning_reports_deleted_rows(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["db", "prune", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {"older_than_days": 30, "rows": {}, "failures": []}
    assert main(["db", "prune", "--env", "NEW_DATABASE_URL", "--older-than", "7"]) == 0
    assert "Deleted 0 rows older than 7 days." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--older-than", "soon"], "Input should be a valid number"),
        (["--older-than", "0.5"], "History cannot be kept for 0.5 days"),
    ],
)
def test_a_wrong_age_is_refused(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    del home
    assert main(["db", "prune", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_history_that_is_kept_for_ever_needs_an_age(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del home
    monkeypatch.setenv("LEASEHOLD_HISTORY_DAYS", "forever")
    assert main(["db", "prune"]) == 2
    assert "give the age with --older-than" in capsys.readouterr().err
    assert main(["db", "prune", "--older-than", "30"]) == 0
