"""An upgrade that is killed after any statement, or refused, is completed by repeating it.

Method: an upgrade is killed after its first statement that changes something, repeated and killed
after the next one, and so on to the end. Since the database commits each statement, every state
between two statements of every revision is the start of an upgrade. If a killed upgrade leaves no
change, the next one is killed one statement later.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import DBAPIError

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.database_errors import error_number
from dagster_leasehold.lease_store.errors import StoreError
from dagster_leasehold.lease_store.release import HEAD
from dagster_leasehold.lease_store.schema import VERSION_TABLE, upgrade
from dagster_leasehold.lease_store.tables import metadata
from dagster_leasehold.lease_store.transactions import open_engine, parse_url
from tests.conformance.world import A, World, X
from tests.database_server import DatabaseServer
from tests.integration.lease_store.conftest import KEY

pytestmark = pytest.mark.long

LOOKING = ("SELECT", "SHOW", "PRAGMA", "BEGIN", "DESCRIBE", "SET")
ATTEMPTS_MAX = 200
WITHOUT_TRIGGER = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "INDEX", "DROP")


class Killed(BaseException):
    """Raised in place of the death of the upgrading process."""


class Executioner:
    """Kills each upgrade after the first statement after which no earlier upgrade was killed.

    Indexes of one table are created in any order, so counting statements would miss some.

    Attributes:
        seen: all statements that changed something.
        last_ones: the statements after which an upgrade was killed.
    """

    def __init__(self, engine: Engine) -> None:
        self.seen: list[str] = []
        self.last_ones: list[str] = []
        event.listen(engine, "after_cursor_execute", self)

    def survives(self, engine: Engine) -> bool:
        """Upgrade; return True if it was completed."""
        try:
            upgrade(engine)
        except Killed:
            return False
        return True

    def __call__(self, connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if statement.lstrip().upper().startswith(LOOKING):
            return
        self.seen.append(statement)
        if statement not in self.last_ones:
            self.last_ones.append(statement)
            cursor.close()
            connection.invalidate()
            raise Killed


SERVERS = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("mariadb", "mysql")]


@pytest.fixture(params=["sqlite", *SERVERS])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An engine on an empty database."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/leases.db"
    else:
        url = str(request.getfixturevalue(f"{request.param}_url"))
    opened = open_engine(parse_url(url))
    yield opened
    opened.dispose()


def test_a_killed_upgrade_is_completed_by_the_next_one(engine: Engine) -> None:
    executioner = Executioner(engine)
    assert any(executioner.survives(engine) for _ in range(ATTEMPTS_MAX))
    assert set(executioner.last_ones) == set(executioner.seen)
    made = [each for each in set(executioner.seen) if "CREATE TABLE" in each]
    assert len(made) == len(metadata.tables) + 1
    assert any("CREATE TRIGGER" in each for each in executioner.last_ones)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "include_object": ours}
        )
        assert compare_metadata(context, metadata) == []
        version = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}"))
        assert version.scalars().all() == [HEAD]
    assert guarded(engine)


def ours(_object: Any, name: str | None, kind: str, *_: Any) -> bool:
    return not (kind == "table" and name in (VERSION_TABLE, "sqlite_sequence"))


def guarded(engine: Engine) -> bool:
    """Return True if a fencing number cannot be lowered by hand."""
    store = open_store(engine.url.render_as_string(hide_password=False))
    world = World(store, KEY)
    world.group()
    world.join(A)
    world.add(X)
    world.claim(A, X)
    store.close()
    lowered = "UPDATE loghub_client_shard_lease SET lease_id = lease_id - 1"
    with engine.connect() as connection, pytest.raises(DBAPIError, match="never go down"):
        connection.execute(text(lowered))
    return True


@pytest.mark.servers("mariadb", "mysql")
def test_an_upgrade_without_the_right_to_create_triggers_warns_and_continues(
    server: DatabaseServer, server_url: str
) -> None:
    database = server_url.rsplit("/", 1)[1]
    server.grant(database, *WITHOUT_TRIGGER, user="maker")
    store = open_store(server.url(database, user="maker"))
    with pytest.raises(StoreError) as refused:
        store.upgrade()
    assert str(refused.value) == (
        f"The lease store's account cannot create triggers in {database}: grant it TRIGGER "
        "there, and run `leasehold db upgrade` again, which continues where it stopped."
    )
    assert isinstance(refused.value.__cause__, DBAPIError)
    assert error_number(refused.value.__cause__) == 1142
    store.close()  # a session continues with the privileges that it began with
    server.grant(database, "TRIGGER", user="maker")
    store.upgrade()
    assert store.schema_revision() == HEAD
    store.close()
    engine = open_engine(parse_url(server_url))
    assert guarded(engine)
    engine.dispose()
    server.execute("DROP USER 'maker'@'127.0.0.1'")


@pytest.mark.servers("mysql")
def test_an_upgrade_continues_on_a_server_that_allows_no_triggers(
    server: DatabaseServer, server_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With a binary log, which MySQL has by default, they need a setting or a mighty account."""
    server.execute("SET GLOBAL log_bin_trust_function_creators = 0")
    try:
        store = open_store(server_url, upgrade=True)
    finally:
        server.execute("SET GLOBAL log_bin_trust_function_creators = 1")
    assert "fencing numbers can be edited by hand" in caplog.text
    assert store.schema_revision() == HEAD
    store.close()
