"""The statements on ledger, gaps, claims and summaries, but for those that read pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Select, Update, bindparam, func, update

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchState
from dagster_leasehold.lease_store.sql_store.group_statements import of_group, rows_of, update_rows
from dagster_leasehold.lease_store.tables import batch, rewrite_claim, shard_summary


def abandon_intent(key: GroupKey, shard: ShardId, number: int) -> Update:
    """Give up what was intended for a shard; only its newest row can be an intent."""
    abandoned = {"state": BatchState.ABANDONED.value}
    intent = BatchState.INTENT.value
    return update_rows(batch, key, abandoned, shard_id=shard, sequence=number, state=intent)


def withdraw_batches(key: GroupKey, shard: ShardId, numbers: range) -> Update:
    """Take back what was committed for a shard under some numbers; its row is locked."""
    return (
        update(batch)
        .where(
            of_group(batch, key, shard_id=shard, state=BatchState.COMMITTED.value),
            batch.c.sequence >= numbers.start,
            batch.c.sequence < numbers.stop,
        )
        .values(state=BatchState.WITHDRAWN.value, generation=batch.c.generation + 1)
    )


def select_claims(key: GroupKey) -> Select[Any]:
    """Claims that were not given back, by shard."""
    claims = rows_of(rewrite_claim, key).where(rewrite_claim.c.run != "")
    return claims.order_by(rewrite_claim.c.shard_id)


def select_compacted(key: GroupKey) -> Select[Any]:
    """The rows of claims that know of a compaction, by shard."""
    claims = rows_of(rewrite_claim, key).where(rewrite_claim.c.looked_until > 0)
    return claims.order_by(rewrite_claim.c.shard_id)


def update_output(key: GroupKey, shard: ShardId, values: Iterable[str]) -> Update:
    """Other output for batches of a shard.

    Parameters: `seen_sequence`, `seen_generation`, and `seen_attempt`, which may be null.
    """
    return (
        update(batch)
        .where(
            of_group(batch, key, shard_id=shard, state=BatchState.COMMITTED.value),
            batch.c.sequence == bindparam("seen_sequence"),
            batch.c.generation == bindparam("seen_generation"),
            batch.c.attempt == func.coalesce(bindparam("seen_attempt"), batch.c.attempt),
        )
        .values({name: bindparam(name) for name in values})
    )


def look_again(key: GroupKey, shard: ShardId, sequence: int) -> Update:
    """Have rows from a number on looked at for folding again: they were written anew."""
    values = {"folded_until": sequence, "version": shard_summary.c.version + 1}
    summary = update_rows(shard_summary, key, values, shard_id=shard)
    return summary.where(shard_summary.c.folded_until > sequence)
