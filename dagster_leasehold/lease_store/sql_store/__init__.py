"""The lease store in SQL: SQLite, MariaDB and MySQL by the same statements.

`rows_in_sql` reads and writes the rows of a group, for the operations of `lease_store.roles`, and
`mapping` converts them. Only `lease_store.open` calls this package.
"""

from pathlib import Path

from dagster_leasehold.lease_store.sql_store.rows_in_sql import SqlTransactions
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.transactions import sqlite_path

__all__ = ["SqlStore"]


class SqlStore(SqlTransactions, LeaseStore):
    """All operations of `lease_store.store.LeaseStore`, in SQL; made by `open_store`."""

    def _file(self) -> Path | None:
        path = sqlite_path(self._transactions.engine.url)
        return path and path.resolve()
