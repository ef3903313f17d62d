"""The version of the database's schema: read, check and upgrade it.

Alembic is imported only to upgrade.
"""

from __future__ import annotations

import sqlite3
from contextlib import nullcontext
from pathlib import Path
from threading import Lock

from filelock import FileLock
from sqlalchemy import (
    Connection,
    Engine,
    String,
    column,
    event,
    inspect,
    literal_column,
    select,
    table,
    update,
)
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from dagster_leasehold.lease_store.errors import StoreReadOnly
from dagster_leasehold.lease_store.release import HEAD, OLDEST, StoredSchema
from dagster_leasehold.lease_store.transactions import WRITE_OPTION, Transactions, sqlite_path

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
    # The second column is missing until the first upgrade has added it.
    every = select(literal_column("*")).select_from(_version)
    row = connection.execute(every).mappings().first() or {}
    return StoredSchema(row.get("version_num"), row.get(OLDEST_COLUMN))


def upgrade(engine: Engine) -> None:
    """Upgrade the schema to this release's version, if it is older."""
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
                # From now on older releases are refused, because tables change.
                _raise_oldest(writing)
            _run_revisions(writing)
            _raise_oldest(writing)


class SchemaCheck:
    """Checks the schema of a store before its first statement; `passed` if no check is due."""

    def __init__(self, transactions: Transactions) -> None:
        self.passed = False
        self._transactions = transactions
        self._lock = Lock()
        self._embedded = transactions.engine.dialect.name == "sqlite"
        if not self._embedded:
            event.listen(transactions.engine, "connect", self._repeat)

    def _repeat(self, *_: object) -> None:
        """Require a check after each new connection: a newer release can upgrade the schema.

        The pool renews its connections, so a process that runs for months notices.
        """
        self.passed = False

    def stored(self) -> StoredSchema:
        """Return the schema of the database."""
        return self._transactions.read("schema", lambda tx: stored(tx.connection))

    def upgrade(self) -> None:
        """Upgrade the schema to this release's version, unless it is newer and usable.

        Raises:
            SchemaTooNew: a newer release has upgraded it, and this one cannot use it.
            SchemaTooOld: a version before 0.2.0 created it.
            StoreError: the database refuses, or does not answer.
        """
        place = self._transactions.place
        try:
            before = self.stored() if self._exists() else StoredSchema(None)
            if before.newer or before.unsupported:
                before.check(place)
                return
            with self._transactions.long_running_engine() as engine:
                upgrade(engine)
        except SQLAlchemyError as error:
            raise self._transactions.translated(error) from error
        except OSError as error:
            raise StoreReadOnly(
                f"The lease store at {place} cannot be created ({error.strerror}): make its "
                "folder writable, or choose another."
            ) from None

    def require(self) -> None:
        """Check the schema; an embedded store upgrades itself."""
        with self._lock:
            if self.passed:
                return
            if self._embedded and not self._exists():
                self.upgrade()
            schema = self.stored()
            if self._embedded and schema.revision != HEAD and not schema.newer:
                self.upgrade()
            else:
                schema.check(self._transactions.place)
            self.passed = True

    def _exists(self) -> bool:
        path = sqlite_path(self._transactions.engine.url)
        return path is None or path.exists()


def _one_at_a_time(path: Path | None) -> FileLock | nullcontext[None]:
    if path is None:
        return nullcontext()
    return FileLock(f"{path}.upgrade.lock", timeout=UPGRADE_LOCK_TIMEOUT_S)


def _write_ahead(engine: Engine) -> None:
    """Let readers continue while another connection writes."""
    connection = engine.raw_connection()
    try:
        connection.cursor().execute(WRITE_AHEAD)
    except sqlite3.Error as error:
        # SQLAlchemy translates the driver's errors only in its own statements.
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
