"""The statements on the rows of shards; values are always bound, never composed."""

from __future__ import annotations

from sqlalchemy import Update

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import ShardTotals
from dagster_leasehold.lease_store.sql_store.group_statements import update_rows
from dagster_leasehold.lease_store.tables import shard_lease


def raise_version(key: GroupKey, shard: ShardId, *, removed: int = 0) -> Update:
    """Note that what a shard's ledger says of the past has changed; the shard's row is locked.

    `removed` is the number of rows of committed batches that are gone.
    """
    values = {
        "ledger_version": shard_lease.c.ledger_version + 1,
        "ledger_rows": shard_lease.c.ledger_rows - removed,
    }
    return update_rows(shard_lease, key, values, shard_id=shard)


def add_published(
    key: GroupKey, shard: ShardId, until: int, added: ShardTotals, rows: int
) -> Update:
    """Note batches that joined a shard's ledger from its table, in so many rows."""
    values = {
        "ledger_version": shard_lease.c.ledger_version + 1,
        "committed_until": until,
        "published_until": until,
        "committed_batches": shard_lease.c.committed_batches + added.batches,
        "committed_records": shard_lease.c.committed_records + added.records,
        "committed_bytes": shard_lease.c.committed_bytes + added.bytes,
        "quarantined_records": shard_lease.c.quarantined_records + added.quarantined,
        "ledger_rows": shard_lease.c.ledger_rows + rows,
    }
    return update_rows(shard_lease, key, values, shard_id=shard)
