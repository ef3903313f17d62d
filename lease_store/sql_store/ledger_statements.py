"""The statements that write journal, ledger and gaps, claims and summaries; values are bound."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, Update, and_, bindparam, literal, select, update

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchState
from dagster_leasehold.lease_store.sql_store.group_statements import of_group
from dagster_leasehold.lease_store.tables import (
    batch,
    gap,
    lease_journal,
    rewrite_claim,
    shard_summary,
)


def journalled(transaction_id: str) -> Select[Any]:
    """A row if a transaction's entries are there."""
    return select(literal(1)).where(lease_journal.c.transaction_id == transaction_id).limit(1)


def update_intended(key: GroupKey, values: Iterable[str]) -> Update:
    """Write ledger rows that are still intents. Parameters: `seen_shard`, `seen_sequence`."""
    return (
        update(batch)
        .where(
            of_group(batch, key),
            batch.c.shard_id == bindparam("seen_shard"),
            batch.c.sequence == bindparam("seen_sequence"),
            batch.c.state == BatchState.INTENT.value,
        )
        .values({name: bindparam(name) for name in values})
    )


def abandon_intent(key: GroupKey, shard: ShardId, number: int) -> Update:
    """Give up what was intended for a shard; only its newest row can be an intent."""
    return (
        update(batch)
        .where(
            of_group(batch, key),
            batch.c.shard_id == shard,
            batch.c.sequence == number,
            batch.c.state == BatchState.INTENT.value,
        )
        .values(state=BatchState.ABANDONED.value)
    )


def withdraw_batches(key: GroupKey, shard: ShardId, numbers: range) -> Update:
    """Take back what was committed for a shard under some numbers; its row is locked."""
    return (
        update(batch)
        .where(
            of_group(batch, key),
            batch.c.shard_id == shard,
            batch.c.sequence >= numbers.start,
            batch.c.sequence < numbers.stop,
            batch.c.state == BatchState.COMMITTED.value,
        )
        .values(state=BatchState.WITHDRAWN.value, generation=batch.c.generation + 1)
    )


def select_gaps_at(key: GroupKey, shard: ShardId, start: str) -> Select[Any]:
    """The gaps of a shard that begin at one cursor, by their end."""
    at = and_(of_group(gap, key), gap.c.shard_id == shard, gap.c.start_cursor == start)
    return select(gap).where(at).order_by(gap.c.end_cursor)


def update_gap(
    key: GroupKey, shard: ShardId, start: str, end: str, values: dict[str, Any]
) -> Update:
    """Change one gap; its shard's row is locked."""
    return (
        update(gap)
        .where(
            of_group(gap, key),
            gap.c.shard_id == shard,
            gap.c.start_cursor == start,
            gap.c.end_cursor == end,
        )
        .values(values)
    )


def select_claims(key: GroupKey) -> Select[Any]:
    """Claims that were not given back, by shard."""
    return (
        select(rewrite_claim)
        .where(of_group(rewrite_claim, key), rewrite_claim.c.run != "")
        .order_by(rewrite_claim.c.shard_id)
    )


def select_compacted(key: GroupKey) -> Select[Any]:
    """The progress of compaction, of the shards that have any, by shard."""
    columns = (rewrite_claim.c[name] for name in ("shard_id", "compacted_until", "looked_until"))
    return (
        select(*columns)
        .where(of_group(rewrite_claim, key), rewrite_claim.c.looked_until > 0)
        .order_by(rewrite_claim.c.shard_id)
    )


def select_claim(key: GroupKey, shard: ShardId) -> Select[Any]:
    """The row of one shard, given back or not."""
    return select(rewrite_claim).where(
        of_group(rewrite_claim, key), rewrite_claim.c.shard_id == shard
    )


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


def select_summaries(key: GroupKey, shard: ShardId | None) -> Select[Any]:
    """The summaries of one shard, or of a group by shard; that of no shard first."""
    chosen = select(shard_summary).where(of_group(shard_summary, key))
    if shard is not None:
        chosen = chosen.where(shard_summary.c.shard_id == shard)
    return chosen.order_by(shard_summary.c.shard_id)


def _one_summary(key: GroupKey, shard: ShardId | None) -> ColumnElement[bool]:
    return and_(of_group(shard_summary, key), shard_summary.c.shard_id == (shard or ""))


def lock_summary(key: GroupKey, shard: ShardId | None) -> Select[Any]:
    """One summary, locked, so that two processes delete one after the other."""
    return select(shard_summary).where(_one_summary(key, shard)).with_for_update()


def update_summary(
    key: GroupKey, shard: ShardId | None, seen_version: int, values: dict[str, Any]
) -> Update:
    """Replace a summary that is still the one that was seen."""
    return (
        update(shard_summary)
        .where(_one_summary(key, shard), shard_summary.c.version == seen_version)
        .values(values)
    )


def select_expired(key: GroupKey, shards: Sequence[ShardId]) -> Select[*tuple[str, Any]]:
    """The expired output of some shards, where they have lost any."""
    return select(shard_summary.c.shard_id, shard_summary.c.expired).where(
        of_group(shard_summary, key),
        shard_summary.c.shard_id.in_(shards),
        shard_summary.c.expired.is_not(None),
    )


def look_again(key: GroupKey, shard: ShardId, sequence: int) -> Update:
    """Have rows from a number on looked at for folding again: they were written anew."""
    return (
        update(shard_summary)
        .where(_one_summary(key, shard), shard_summary.c.folded_until > sequence)
        .values(folded_until=sequence, version=shard_summary.c.version + 1)
    )
