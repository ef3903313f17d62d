"""URLs of lease stores, and the engines that are made of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import SecretStr

from dagster_leasehold.lease_store import open_store, transactions
from dagster_leasehold.lease_store.errors import InvalidSetting, StoreError
from dagster_leasehold.lease_store.transactions import (
    LOCK_WAIT_S,
    SQL_MODE,
    open_engine,
    parse_url,
    sqlite_path,
)


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        ("sqlite:////tmp/leases.db", "sqlite+pysqlite"),
        ("mysql://u:p@h/d", "mysql+pymysql"),
        ("mariadb://u:p@h/d", "mysql+pymysql"),
        ("mysql+pymysql://u:p@h:3307/d", "mysql+pymysql"),
        ("mariadb+mariadbconnector://u:p@h/d", "mysql+pymysql"),
    ],
)
def test_each_database_has_the_driver_that_is_tested(text: str, driver: str) -> None:
    assert parse_url(text).drivername == driver


@pytest.mark.parametrize(
    "text",
    [
        "",
        "leases.db",
        "postgresql://u:hunter2@h/d",
        "oracle://u:hunter2@h/d",
        "mysql://u:hunter2@h",
        "mysql://u:hunter2@h:port/d",
        "sqlite://",
        "sqlite:///:memory:",
        "://hunter2",
    ],
)
def test_other_urls_are_refused_without_showing_them(text: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse_url(text)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value.__cause__)
    assert "\n" not in str(caught.value)


def test_a_secret_url_stays_secret() -> None:
    store = open_store(SecretStr("mysql://user:hunter2@localhost/database"))
    assert "hunter2" not in repr(vars(store))
    assert "hunter2" not in repr(vars(store._transactions))
    store.close()


def test_the_file_of_a_sqlite_store_is_known() -> None:
    assert sqlite_path(parse_url("sqlite:////a/b.db")) == Path("/a/b.db")
    assert sqlite_path(parse_url("sqlite:///file:/a/b.db?mode=ro&uri=true")) == Path("/a/b.db")
    assert sqlite_path(parse_url("mysql://u:p@h/d")) is None


def test_engines_hide_values_and_cannot_load_files(tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}/l.db", "mysql://u:p@localhost/d"):
        assert open_engine(parse_url(url)).hide_parameters


class Session:
    """A cursor of a session that a proxy has changed: each variable has its name's value."""

    def __init__(self, **changed: object) -> None:
        self.values: dict[str, object] = {
            "time_zone": "+00:00",
            "sql_mode": SQL_MODE,
            "innodb_lock_wait_timeout": LOCK_WAIT_S,
            "wait_timeout": 5,
            "transaction_isolation": "READ-COMMITTED",
            **changed,
        }
        self.row: tuple[object, ...] = ()

    def execute(self, statement: str, _values: object = None) -> None:
        names = re.findall(r"@@(\w+)", statement)
        self.row = tuple(self.values[name] for name in names)

    def fetchone(self) -> tuple[object, ...]:
        return self.row


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("time_zone", "SYSTEM"),
        ("sql_mode", "ANSI_QUOTES"),
        ("innodb_lock_wait_timeout", 50),
        ("wait_timeout", 28_800),
        ("transaction_isolation", "REPEATABLE-READ"),
    ],
)
def test_a_session_that_ignores_its_settings_is_refused(name: str, value: object) -> None:
    transactions._prepare_session(Session(), encrypted=False, in_use_s=5)
    with pytest.raises(StoreError, match=f"{name}|isolation"):
        transactions._prepare_session(Session(**{name: value}), encrypted=False, in_use_s=5)
