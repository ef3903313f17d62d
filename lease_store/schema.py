"""The version of the database's schema: read it, check it, upgrade it.

Alembic is imported only to upgrade; the check is one statement.
"""

from __future__ import annotations

import sqlite3
from contextlib import nullcontext
from pathlib import Path

from filelock import FileLock
from sqlalchemy import Connection, Engine, String, column, inspect, select, table
from sqlalchemy.exc import OperationalError

from dagster_leasehold.lease_store.engine import WRITE_OPTION, sqlite_path
from dagster_leasehold.lease_store.errors import SchemaTooNew, SchemaTooOld

VERSION_TABLE = "leasehold_schema"
REVISIONS = tuple(f"{number:04}" for number in range(1, 16))
HEAD = REVISIONS[-1]
UPGRADE_LOCK_TIMEOUT_S = 60.0
WRITE_AHEAD = "PRAGMA journal_mode = WAL"

_version = table(VERSION_TABLE, column("version_num", String(32)))


def revision(connection: Connection) -> str | None:
    """Return the database's revision; None where it has no lease tables yet."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(select(_version.c.version_num)).scalar()


def check(stored: str | None, place: str) -> None:
    """Refuse a schema that this release was not written for.

    Raises:
        SchemaTooNew: a newer release has upgraded it.
        SchemaTooOld: it was not upgraded yet.
    """
    if stored == HEAD:
        return
    if stored is not None and stored not in REVISIONS:
        raise SchemaTooNew(
            f"The lease store at {place} has schema {stored}, which is newer than this release's "
            f"{HEAD}: install the newer release of Leasehold."
        )
    has = "has no lease tables yet" if stored is None else f"has schema {stored}"
    raise SchemaTooOld(
        f"The lease store at {place} {has}, this release needs schema {HEAD}: run "
        "`leasehold db upgrade` with an account that may create tables."
    )


def upgrade(engine: Engine) -> None:
    """Bring the schema to this release's version; nothing happens where it is there already.

    Raises:
        SQLAlchemyError: the database refuses.
        OSError: the folder of a SQLite file cannot be written.
    """
    path = sqlite_path(engine.url)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(path):
        with engine.connect() as connection:
            if revision(connection) == HEAD:
                return
        if path is not None:
            _write_ahead(engine)
        with engine.connect() as connection:
            _run_revisions(connection.execution_options(**{WRITE_OPTION: True}))


def _one_at_a_time(path: Path | None) -> FileLock | nullcontext[None]:
    """Let one process at a time create tables: several of the embedded default start at once."""
    if path is None:
        return nullcontext()
    return FileLock(f"{path}.upgrade.lock", timeout=UPGRADE_LOCK_TIMEOUT_S)


def _write_ahead(engine: Engine) -> None:
    """Let readers go on while somebody writes: a property of the file, set outside transactions."""
    connection = engine.raw_connection()
    try:
        connection.cursor().execute(WRITE_AHEAD)
    except sqlite3.Error as error:
        # Outside a transaction nobody else translates the driver's error.
        raise OperationalError(WRITE_AHEAD, None, error, hide_parameters=True) from error
    finally:
        connection.close()


def _run_revisions(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "dagster_leasehold.lease_store:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.commit()
