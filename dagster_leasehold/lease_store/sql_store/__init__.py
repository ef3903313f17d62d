"""The lease store in SQL: SQLite, MariaDB and MySQL by the same statements.

`rows_in_sql` reads and writes the rows of a group, for the operations that `lease_store.roles` has
written once; `mapping` stands between columns and values. `lease_store.open` alone calls it.
"""

from pathlib import Path

from dagster_leasehold.lease_store.sql_store.readiness import SqlReadiness
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.transactions import sqlite_path

__all__ = ["SqlStore"]


class SqlStore(SqlReadiness, LeaseStore):
    """All verbs of `lease_store.store.LeaseStore`, in SQL; made by `lease_store.open_store`."""

    def _file(self) -> Path | None:
        path = sqlite_path(self._transactions.engine.url)
        return path and path.resolve()
