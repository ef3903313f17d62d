"""The version of the database's schema: read it, upgrade it.

Alembic is imported only to upgrade.
"""

from __future__ import annotations

import sqlite3
from contextlib import nullcontext
from pathlib import Path

from filelock import FileLock
from sqlalchemy import (
    Connection,
    Engine,
    String,
    column,
    inspect,
    literal_column,
    select,
    table,
    update,
)
from sqlalchemy.exc import OperationalError

from dagster_leasehold.lease_store.release import HEAD, OLDEST, StoredSchema
from dagster_leasehold.lease_store.transactions import WRITE_OPTION, sqlite_path

VERSION_TABLE = "leasehold_schema"
OLDEST_COLUMN = "oldest_revision"
UPGRADE_LOCK_TIMEOUT_S = 60.0
WRITE_AHEAD = "PRAGMA journal_mode = WAL"

_version = table(
    VERSION_TABLE, column("version_num", String(32)), column(OLDEST_COLUMN, String(32))
)


def stored(connection: Connection) -> StoredSchema:
    """Return the schema of a database."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return StoredSchema(None)
    # The second column is missing while the first upgrade has just begun.
    every = select(literal_column("*")).select_from(_version)
    row = connection.execute(every).mappings().first() or {}
    return StoredSchema(row.get("version_num"), row.get(OLDEST_COLUMN))


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
            before = stored(connection)
            if before.newer or before == StoredSchema(HEAD, OLDEST):
                return
        if path is not None:
            _write_ahead(engine)
        with engine.connect() as connection:
            writing = connection.execution_options(**{WRITE_OPTION: True})
            if before.oldest is not None:
                # Processes that connect from now on, while tables change, are refused.
                _raise_oldest(writing)
            _run_revisions(writing)
            _raise_oldest(writing)


def _one_at_a_time(path: Path | None) -> FileLock | nullcontext[None]:
    """Let one process at a time create tables: several of the embedded default start at once."""
    if path is None:
        return nullcontext()
    return FileLock(f"{path}.upgrade.lock", timeout=UPGRADE_LOCK_TIMEOUT_S)


def _write_ahead(engine: Engine) -> None:
    """Let readers continue while another connection writes; set outside transactions."""
    connection = engine.raw_connection()
    try:
        connection.cursor().execute(WRITE_AHEAD)
    except sqlite3.Error as error:
        # Outside a transaction nothing else translates the driver's error.
        raise OperationalError(WRITE_AHEAD, None, error, hide_parameters=True) from error
    finally:
        connection.close()


def _raise_oldest(connection: Connection) -> None:
    connection.execute(update(_version).values({OLDEST_COLUMN: OLDEST}))
    connection.commit()


def _run_revisions(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "dagster_leasehold.lease_store:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.commit()
