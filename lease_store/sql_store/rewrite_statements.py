"""The statements that replace committed output; values are always bound, never composed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Insert, Select, Update, bindparam, insert, select, update

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchState
from dagster_leasehold.lease_store.sql_store.statements import of_group
from dagster_leasehold.lease_store.tables import batch, rewrite_claim


def select_claims(key: GroupKey) -> Select[Any]:
    """Claims that were not given back, by shard."""
    return (
        select(rewrite_claim)
        .where(of_group(rewrite_claim, key), rewrite_claim.c.run != "")
        .order_by(rewrite_claim.c.shard_id)
    )


def select_claim(key: GroupKey, shard: ShardId) -> Select[Any]:
    """The row of one shard, given back or not."""
    return select(rewrite_claim).where(
        of_group(rewrite_claim, key), rewrite_claim.c.shard_id == shard
    )


def insert_claim(values: dict[str, Any]) -> Insert:
    """The first claim of a shard; the shard's row is locked."""
    return insert(rewrite_claim).values(values)


def update_claim(key: GroupKey, shard: ShardId, values: dict[str, Any]) -> Update:
    """Take a claim, or give it back; the shard's row is locked."""
    return (
        update(rewrite_claim)
        .where(of_group(rewrite_claim, key), rewrite_claim.c.shard_id == shard)
        .values(values)
    )


def update_output(key: GroupKey, shard: ShardId, values: Iterable[str]) -> Update:
    """Other output for batches of a shard. Parameters: `seen_sequence`, `seen_generation`."""
    return (
        update(batch)
        .where(
            of_group(batch, key),
            batch.c.shard_id == shard,
            batch.c.sequence == bindparam("seen_sequence"),
            batch.c.generation == bindparam("seen_generation"),
            batch.c.state == BatchState.COMMITTED.value,
        )
        .values({name: bindparam(name) for name in values})
    )
