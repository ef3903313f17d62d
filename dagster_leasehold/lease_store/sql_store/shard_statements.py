"""The statements on the rows of shards; values are always bound, never composed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Select, Update, and_, bindparam, or_, select, update

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import ShardTotals
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import Tenure
from dagster_leasehold.lease_store.sql_store.group_statements import of_group, update_rows
from dagster_leasehold.lease_store.tables import consumer_group, shard_lease

TOTALS = (
    "committed_batches",
    "committed_records",
    "committed_bytes",
    "quarantined_records",
    "ledger_rows",
)
MOVED = ("check_point", "watermark", "committed_until", "tries", "suspicion")
HELD = (ShardState.ALREADY_ALLOC.value, ShardState.TRANSFER.value)


def review(key: GroupKey, shards: Collection[ShardId]) -> Select[Any]:
    """The rows of some shards with their group's `paused`; one row at least."""
    chosen = and_(
        shard_lease.c.consume_group == consumer_group.c.consume_group,
        shard_lease.c.logstream_sig == consumer_group.c.logstream_sig,
        shard_lease.c.shard_id.in_(sorted(shards)),
    )
    return (
        select(shard_lease, consumer_group.c.paused)
        .select_from(consumer_group.outerjoin(shard_lease, chosen))
        .where(of_group(consumer_group, key))
    )


def update_current(tenure: Tenure, values: dict[str, Any]) -> Update:
    """Write a shard's row if the tenure is still its current one: the fence."""
    own = of_group(
        shard_lease,
        tenure.key,
        shard_id=tenure.shard,
        consumer_owner=tenure.holder,
        consumer_epoch=tenure.epoch,
        consumer_run=tenure.run,
    )
    return update(shard_lease).where(own, shard_lease.c.state.in_(HELD)).values(values)


def move_checkpoints(key: GroupKey) -> Update:
    """Move shards on by a batch each, if its tenure is still the current one: the fence.

    Parameters: those of `MOVED`, `more_` and the name of each total, and `seen_shard`,
    `seen_owner`, `seen_epoch` and `seen_run` of the tenure.
    """
    own = of_group(
        shard_lease,
        key,
        shard_id=bindparam("seen_shard"),
        consumer_owner=bindparam("seen_owner"),
        consumer_epoch=bindparam("seen_epoch"),
        consumer_run=bindparam("seen_run"),
    )
    totals = {name: shard_lease.c[name] + bindparam(f"more_{name}") for name in TOTALS}
    moved = {name: bindparam(name) for name in MOVED}
    # A list of states would be sent anew for each shard.
    held = or_(*(shard_lease.c.state == state for state in HELD))
    return update(shard_lease).where(own, held).values(moved | totals)


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
