"""Where `leasehold dev` keeps leases: a home keeps what it has, a fresh one gets MariaDB."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import SecretStr

from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.orchestration.commands import dev
from dagster_leasehold.orchestration.commands.dev import described, uses_private_mariadb
from dagster_leasehold.orchestration.settings import Settings

URL = SecretStr("mysql+pymysql://leasehold:secret@db/leases")


def with_mariadb(home: Path) -> Settings:
    folder = home / "mariadb"
    folder.mkdir(parents=True)
    (folder / "access.json").write_text(json.dumps({"port": 3399, "password": "secret"}))
    return Settings(home=home)


@pytest.fixture(params=[True, False])
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(dev, "installed", lambda: request.param)
    return request.param


def test_a_fresh_home_gets_mariadb_where_it_is_installed(installed: bool, tmp_path: Path) -> None:
    assert uses_private_mariadb(Settings(home=tmp_path), sqlite=False, several=True) is installed


def test_one_node_needs_no_database_of_its_own(installed: bool, tmp_path: Path) -> None:
    assert not uses_private_mariadb(Settings(home=tmp_path), sqlite=False, several=False)


def test_sqlite_is_used_where_it_is_asked_for(installed: bool, tmp_path: Path) -> None:
    assert not uses_private_mariadb(Settings(home=tmp_path), sqlite=True, several=True)


def test_a_home_with_leases_in_sqlite_keeps_them(installed: bool, tmp_path: Path) -> None:
    (tmp_path / "leases.db").touch()
    assert not uses_private_mariadb(Settings(home=tmp_path), sqlite=False, several=True)


def test_a_home_with_a_mariadb_keeps_it(installed: bool, tmp_path: Path) -> None:
    settings = with_mariadb(tmp_path)
    assert uses_private_mariadb(settings, sqlite=False, several=True)
    with pytest.raises(InvalidSetting, match="leave out --sqlite"):
        uses_private_mariadb(settings, sqlite=True, several=True)


def test_a_given_address_is_used(installed: bool, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, database_url=URL)
    assert not uses_private_mariadb(settings, sqlite=False, several=True)
    with pytest.raises(InvalidSetting, match="leave out --sqlite"):
        uses_private_mariadb(settings, sqlite=True, several=True)


def test_the_first_line_says_where_everything_is_without_a_secret(tmp_path: Path) -> None:
    private = with_mariadb(tmp_path / "private")
    given = Settings(home=tmp_path, database_url=URL)
    assert described(Settings(home=tmp_path), dagster_elsewhere=False) == (
        "Leases and Dagster's storage are in SQLite."
    )
    assert described(private, dagster_elsewhere=False) == (
        "Leases and Dagster's storage are in this home's own MariaDB on port 3399."
    )
    assert described(given, dagster_elsewhere=False) == (
        "Leases are where LEASEHOLD_DATABASE_URL says, and Dagster's storage is in SQLite."
    )
    assert described(given, dagster_elsewhere=True) == (
        "Leases are where LEASEHOLD_DATABASE_URL says, and Dagster's storage is where "
        "DAGSTER_MYSQL_HOSTNAME says."
    )
