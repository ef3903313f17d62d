"""A look at the lease store's database from this host: version, schema, rights and clock.

Isolation, time-outs and TLS are read back by every connection: one that is open has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import SecretStr
from sqlalchemy import Executable, Table, false, select
from sqlalchemy.exc import DBAPIError

from dagster_leasehold.lease_store import schema, tables
from dagster_leasehold.lease_store.columns import server_time
from dagster_leasehold.lease_store.open import open_transactions
from dagster_leasehold.lease_store.release import HEAD, StoredSchema
from dagster_leasehold.lease_store.transactions import Transaction

PRUNED = ("lease_journal", "batch", "outbox", "gap", "table_change")
"""The tables whose old rows are deleted, so that history stays bounded."""


@dataclass(frozen=True, slots=True)
class DatabaseReport:
    """The database as this host reaches it.

    Attributes:
        server: its kind and version.
        schema: of its lease tables.
        refused: what this account may not do, such as `DELETE on batch`.
        now: the database's own clock, which decides nothing.
    """

    server: str
    schema: StoredSchema
    refused: tuple[str, ...]
    now: datetime


def database_report(url: SecretStr) -> DatabaseReport:
    """Return a report of the database at a URL; nothing is changed there.

    Raises:
        InvalidSetting: the URL is not of a supported database, or says nothing about TLS.
        StoreError: it does not answer, or its sessions are not safe for leases.
    """
    return open_transactions(url).read("report", _look)


def _look(transaction: Transaction) -> DatabaseReport:
    connection = transaction.connection
    dialect = connection.dialect
    maria = getattr(dialect, "is_mariadb", False)
    kind = "MariaDB" if maria else {"mysql": "MySQL", "sqlite": "SQLite"}[dialect.name]
    version = ".".join(str(part) for part in dialect.server_version_info or ())
    stored = schema.stored(connection)
    # Rights are checked before a statement looks for rows, of which none is meant here. A file has
    # one owner, and whoever cannot write it is told so at the first write.
    refused: list[str] = []
    if stored.revision == HEAD and dialect.name != "sqlite":
        for table in tables.metadata.sorted_tables:
            refused += _refused(transaction, table)
    now: datetime = transaction.value(select(server_time()))
    return DatabaseReport(f"{kind} {version}", stored, tuple(refused), now.replace(tzinfo=UTC))


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
            if error.connection_invalidated:
                raise
            refused.append(f"{right} on {table.name}")
    return refused
