"""A lease store moves between SQLite and MariaDB, there and back, and is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from dagster_leasehold.lease_store import open_store, tables
from dagster_leasehold.lease_store.errors import CopyRefused, StoreError
from dagster_leasehold.lease_store.store_copy import PORTION_ROWS, copy_store
from dagster_leasehold.lease_store.transactions import open_engine, parse_url
from tests.conformance.world import A, World
from tests.mariadb import MariaDB
from tests.unit.lease_store.full_store import KEY, fill

pytestmark = pytest.mark.mariadb


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A drained store in SQLite with rows in all tables, some in several portions."""
    url = f"sqlite:///{tmp_path}/old.db"
    fill(World(open_store(url, upgrade=True), KEY))
    entry = dict(read(url)["lease_journal"][0])
    more = [entry | {"sequence": 100 + number} for number in range(PORTION_ROWS + 1)]
    engine = open_engine(parse_url(url))
    with engine.begin() as connection:
        connection.execute(tables.lease_journal.insert(), more)
    engine.dispose()
    return url


def read(url: str) -> dict[str, list[Any]]:
    engine = open_engine(parse_url(url))
    try:
        with engine.connect() as connection:
            return {
                table.name: list(
                    connection.execute(select(table).order_by(*table.primary_key)).mappings()
                )
                for table in tables.COPIED_TABLES
            }
    finally:
        engine.dispose()


def test_a_store_is_copied_to_mariadb_and_back(
    source: str, mariadb_url: str, tmp_path: Path
) -> None:
    before = read(source)
    open_store(mariadb_url, upgrade=True).close()
    copied = copy_store(source, mariadb_url)
    assert copied.violations == ()
    assert read(mariadb_url) == before
    back = f"sqlite:///{tmp_path}/back.db"
    open_store(back, upgrade=True).close()
    assert copy_store(mariadb_url, back).rows == copied.rows
    assert read(back) == before
    with pytest.raises(CopyRefused, match="is not empty"):
        copy_store(source, mariadb_url)
    with pytest.raises(CopyRefused, match="into itself"):
        copy_store(mariadb_url, mariadb_url)


def test_new_numbers_continue_after_the_copied_ones(source: str, mariadb_url: str) -> None:
    open_store(mariadb_url, upgrade=True).close()
    copy_store(source, mariadb_url)
    world = World(open_store(mariadb_url), KEY)
    last = world.journal()[-1].sequence
    world.store.leave(KEY, A, "a-1")
    assert world.journal()[-1].sequence > last


def test_an_account_without_the_right_to_write_copies_nothing(
    source: str, mariadb: MariaDB, mariadb_url: str
) -> None:
    open_store(mariadb_url, upgrade=True).close()
    database = mariadb_url.rsplit("/", 1)[1]
    mariadb.execute(
        f"CREATE USER 'reader'@'127.0.0.1' IDENTIFIED BY '{mariadb.password}'",
        f"GRANT SELECT ON `{database}`.* TO 'reader'@'127.0.0.1'",
    )
    try:
        with pytest.raises(StoreError, match="grant the account") as refused:
            copy_store(source, mariadb.url(database, user="reader"))
    finally:
        mariadb.execute("DROP USER 'reader'@'127.0.0.1'")
    assert mariadb.password not in str(refused.value)
    assert not any(read(mariadb_url).values())


def test_the_copy_shows_one_moment(source: str, mariadb_url: str, tmp_path: Path) -> None:
    """A node leaves after the first table was read: nothing of that is in the other tables."""
    open_store(mariadb_url, upgrade=True).close()
    copy_store(source, mariadb_url)
    for number, url in enumerate((source, mariadb_url)):
        before = read(url)
        target = f"sqlite:///{tmp_path}/target-{number}.db"
        open_store(target, upgrade=True).close()
        reports: list[int] = []

        def leave(rows: int, _: int, *, url: str = url, reports: list[int] = reports) -> None:
            if not reports:
                open_store(url).leave(KEY, A, "a-1")
            reports.append(rows)

        copy_store(url, target, report=leave)
        assert read(target) == before
        changed = {name for name, rows in read(url).items() if rows != before[name]}
        assert changed >= {"lease_journal", "loghub_client_shard_lease"}
