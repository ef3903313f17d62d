"""The lease store in SQL: SQLite, MariaDB and MySQL by the same statements.

Each verb is one transaction: it locks what it decides upon, asks the pure rules, and writes under
conditions that repeat what it saw. Changes of ownership lock the group's row first and shards by
id, so that all transactions agree on one order; beats lock nothing but their own node's row.

A module per role has its verbs; `*_statements` build every statement, `mapping` stands between
columns and values, `verbs` has the pieces that all of them use. `lease_store.open` alone calls it.
"""

from pathlib import Path

from dagster_leasehold.lease_store.engine import sqlite_path
from dagster_leasehold.lease_store.sql_store.batches import SqlBatches
from dagster_leasehold.lease_store.sql_store.forced_checkpoints import SqlForcedCheckpoints
from dagster_leasehold.lease_store.sql_store.ledger import SqlLedger
from dagster_leasehold.lease_store.sql_store.retention import SqlRetention
from dagster_leasehold.lease_store.sql_store.rewrites import SqlRewrites
from dagster_leasehold.lease_store.sql_store.rolling_forward import SqlRollingForward
from dagster_leasehold.lease_store.sql_store.shards import SqlShards
from dagster_leasehold.lease_store.sql_store.tenures import SqlTenures
from dagster_leasehold.lease_store.store import LeaseStore

__all__ = ["SqlStore"]


class SqlStore(
    SqlShards,
    SqlForcedCheckpoints,
    SqlTenures,
    SqlBatches,
    SqlLedger,
    SqlRewrites,
    SqlRollingForward,
    SqlRetention,
    LeaseStore,
):
    """All verbs of `lease_store.store.LeaseStore`, in SQL; made by `lease_store.open_store`."""

    def _file(self) -> Path | None:
        path = sqlite_path(self._transactions.engine.url)
        return path and path.resolve()
