"""A report of the lease store's database, as seen from this host."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import SecretStr
from sqlalchemy import Connection, Executable, Table, false, select, text
from sqlalchemy.exc import DBAPIError

from dagster_leasehold.lease_store import schema, tables
from dagster_leasehold.lease_store.columns import server_time
from dagster_leasehold.lease_store.database_errors import error_number
from dagster_leasehold.lease_store.database_transport import transport
from dagster_leasehold.lease_store.open import open_transactions
from dagster_leasehold.lease_store.release import HEAD, StoredSchema
from dagster_leasehold.lease_store.transactions import Transaction, isolation, parse_url

PRUNED = ("lease_journal", "batch", "outbox", "gap", "table_change")
"""The tables whose old rows are deleted."""
_DENIED = (1142, 1143)
"""The error numbers of a missing privilege on a table or a column."""


@dataclass(frozen=True, slots=True)
class DatabaseSession:
    """A session with a server, as the server itself describes it.

    Attributes:
        isolation: the isolation level of its transactions.
        lock_wait_s: its `innodb_lock_wait_timeout`.
        idle_s: its `wait_timeout`, after which the server ends an idle session.
        cipher: the TLS cipher suite; empty without TLS.
        verified: True if the server's certificate is verified.
    """

    isolation: str
    lock_wait_s: int
    idle_s: int
    cipher: str
    verified: bool


@dataclass(frozen=True, slots=True)
class DatabaseReport:
    """The database as seen from this host.

    Attributes:
        server: its kind and version.
        session: the session with the server; None for a file.
        schema: the schema of its lease tables.
        refused: the privileges that this account lacks, such as `DELETE on batch`; None for a
            file, or for the schema of another release.
        now: the time on the database's own clock.
    """

    server: str
    session: DatabaseSession | None
    schema: StoredSchema
    refused: tuple[str, ...] | None
    now: datetime


def database_report(url: SecretStr) -> DatabaseReport:
    """Return a report of the database at a URL; raise InvalidSetting or StoreError without one."""
    transactions = open_transactions(url)
    try:
        return transactions.read("report", lambda transaction: _report(transaction, url))
    finally:
        transactions.engine.dispose()


def _report(transaction: Transaction, url: SecretStr) -> DatabaseReport:
    connection = transaction.connection
    dialect = connection.dialect
    maria = getattr(dialect, "is_mariadb", False)
    kind = "MariaDB" if maria else {"mysql": "MySQL", "sqlite": "SQLite"}[dialect.name]
    version = ".".join(str(part) for part in dialect.server_version_info or ())
    stored = schema.stored(connection)
    server = dialect.name != "sqlite"
    # The server checks privileges before it reads rows, so statements without rows are enough.
    refused: tuple[str, ...] | None = None
    if server and stored.revision == HEAD:
        each = tables.metadata.sorted_tables
        refused = tuple(right for table in each for right in _refused(transaction, table))
    now: datetime = transaction.value(select(server_time()))
    session = _session(connection, url) if server else None
    return DatabaseReport(f"{kind} {version}", session, stored, refused, now.replace(tzinfo=UTC))


def _session(connection: Connection, url: SecretStr) -> DatabaseSession:
    limits = text("SELECT @@innodb_lock_wait_timeout, @@wait_timeout")
    lock_wait_s, idle_s = connection.execute(limits).one()
    _, cipher = connection.execute(text("SHOW SESSION STATUS LIKE 'Ssl_cipher'")).one()
    with closing(connection.connection.cursor()) as cursor:
        level = isolation(cursor).replace("-", " ")
    _, arguments = transport(parse_url(url.get_secret_value()))
    return DatabaseSession(level, lock_wait_s, idle_s, cipher, "ssl" in arguments)


def _refused(transaction: Transaction, table: Table) -> list[str]:
    column = next(iter(table.columns))
    nothing = select(table).where(false())
    statements: dict[str, Executable] = {
        "SELECT": nothing,
        "INSERT": table.insert().from_select([each.name for each in table.columns], nothing),
        "UPDATE": table.update().where(false()).values({column: column}),
    }
    if table.name in PRUNED:
        statements["DELETE"] = table.delete().where(false())
    refused: list[str] = []
    for right, statement in statements.items():
        try:
            transaction.connection.execute(statement)
        except DBAPIError as error:
            if error_number(error) not in _DENIED:
                raise
            refused.append(f"{right} on {table.name}")
    return refused
