"""The statements that delete history; each is bounded, and values are always bound."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.journal_rows import EventKind
from dagster_leasehold.lease_store.ledger_rows import BatchState
from dagster_leasehold.lease_store.rules.deletable_history import STATES_KEPT
from dagster_leasehold.lease_store.sql_store.group_statements import of_group, rows_of
from dagster_leasehold.lease_store.tables import (
    batch,
    gap,
    lease_journal,
    outbox,
    rewrite_claim,
    shard_lease,
)

RARE_STATES = [state.value for state in STATES_KEPT]


def _newest_numbers(table: sa.Table, key: GroupKey, **same: object) -> sa.Select[Any]:
    """The number of the newest row of a group that has these values, or of one before it."""
    numbers = sa.select(table.c.sequence).where(of_group(table, key, **same))
    return numbers.order_by(table.c.sequence.desc()).limit(1)


def newest_times(key: GroupKey, number: int) -> sa.Select[Any]:
    """The dates of a group's newest entries, newest first."""
    return (
        sa.select(lease_journal.c.recorded_at)
        .where(of_group(lease_journal, key))
        .order_by(lease_journal.c.sequence.desc())
        .limit(number)
    )


def first_kept_entry(key: GroupKey, shard: ShardId | None, keep: int) -> sa.Select[Any]:
    """The number of the oldest of the newest entries of a shard that stay; none if few."""
    return _newest_numbers(lease_journal, key, shard_id=shard).offset(keep - 1)


def select_entries(
    key: GroupKey, shard: ShardId | None, *, after: int, below: int, limit: int
) -> sa.Select[Any]:
    """The oldest entries of a shard between two numbers."""
    return (
        sa.select(lease_journal)
        .where(
            of_group(lease_journal, key, shard_id=shard),
            lease_journal.c.sequence > after,
            lease_journal.c.sequence < below,
        )
        .order_by(lease_journal.c.sequence)
        .limit(limit)
    )


def select_lineage(key: GroupKey, shards: Sequence[ShardId]) -> sa.Select[Any]:
    """The journal entries that show if shards waited for their parents; all of these shards."""
    ends = sa.or_(
        lease_journal.c.from_state.is_(None),
        lease_journal.c.from_state.in_(RARE_STATES),
        lease_journal.c.to_state.in_(RARE_STATES),
    )
    of_shards = sa.and_(
        lease_journal.c.shard_id.in_(shards),
        sa.or_(lease_journal.c.kind == "accept", sa.and_(lease_journal.c.kind == "edge", ends)),
    )
    settings = sa.and_(lease_journal.c.shard_id.is_(None), lease_journal.c.kind == "group")
    entries = rows_of(lease_journal, key).where(sa.or_(of_shards, settings))
    return entries.order_by(lease_journal.c.sequence)


def select_parents(key: GroupKey, shard: ShardId) -> sa.Select[Any]:
    """The parents of a shard."""
    return sa.select(shard_lease.c.parents).where(of_group(shard_lease, key, shard_id=shard))


def select_openings(key: GroupKey, shard: ShardId, epochs: Collection[int]) -> sa.Select[Any]:
    """The entries that opened tenures with these epochs."""
    entries = rows_of(lease_journal, key, shard_id=shard, kind="open")
    chosen = entries.where(lease_journal.c.epoch.in_(sorted(epochs)))
    return chosen.order_by(lease_journal.c.sequence).limit(len(epochs))


def select_forced(key: GroupKey, shard: ShardId) -> sa.Select[Any]:
    """The forced checkpoints of a shard; they stay in the journal."""
    entries = rows_of(lease_journal, key, shard_id=shard, kind="force")
    return entries.order_by(lease_journal.c.sequence)


def delete_entries(sequences: Sequence[int]) -> sa.Delete:
    """Journal entries by number."""
    return sa.delete(lease_journal).where(lease_journal.c.sequence.in_(sequences))


def first_kept_batch(key: GroupKey, shard: ShardId, keep: int) -> sa.Select[Any]:
    """The number of the oldest of the newest rows of a shard that stay; none if there are few."""
    return _newest_numbers(batch, key, shard_id=shard).offset(keep - 1)


def newest_committed(key: GroupKey, shard: ShardId) -> sa.Select[Any]:
    """The number of the newest committed row of a shard."""
    return _newest_numbers(batch, key, shard_id=shard, state=BatchState.COMMITTED.value)


def first_unproven_epoch(key: GroupKey, shard: ShardId, proven_until: int) -> sa.Select[Any]:
    """The epoch of the oldest committed row that was not proven."""
    return (
        sa.select(batch.c.epoch)
        .where(
            of_group(batch, key, shard_id=shard, state=BatchState.COMMITTED.value),
            batch.c.sequence >= proven_until,
        )
        .order_by(batch.c.sequence)
        .limit(1)
    )


def select_rows(
    key: GroupKey, shard: ShardId, *, since: int, below: int, state: BatchState | None, limit: int
) -> sa.Select[Any]:
    """The oldest ledger rows of a shard between two numbers."""
    chosen = rows_of(batch, key, shard_id=shard)
    chosen = chosen.where(batch.c.sequence >= since, batch.c.sequence < below)
    if state is not None:
        chosen = chosen.where(batch.c.state == state.value)
    return chosen.order_by(batch.c.sequence).limit(limit)


def grow_batches(key: GroupKey, shard: ShardId, values: Iterable[str]) -> sa.Update:
    """Write rows that others were folded into. Parameters: `seen_sequence`, and the values."""
    return (
        sa.update(batch)
        .where(
            of_group(batch, key, shard_id=shard), batch.c.sequence == sa.bindparam("seen_sequence")
        )
        .values({name: sa.bindparam(name) for name in values})
    )


def delete_batches(key: GroupKey, shard: ShardId, sequences: Sequence[int]) -> sa.Delete:
    """Ledger rows of a shard by number."""
    own = of_group(batch, key, shard_id=shard)
    return sa.delete(batch).where(own, batch.c.sequence.in_(sequences))


def select_open_claim(key: GroupKey, shard: ShardId) -> sa.Select[Any]:
    """The claim to rewrite a shard's output, if a run holds it; the shard's row is locked."""
    return rows_of(rewrite_claim, key, shard_id=shard).where(rewrite_claim.c.run != "")


def select_undelivered(key: GroupKey, batch_ids: Sequence[str]) -> sa.Select[Any]:
    """Those of some batches that have an event to deliver."""
    return sa.select(outbox.c.batch_id).where(
        of_group(outbox, key), outbox.c.delivered.is_(False), outbox.c.batch_id.in_(batch_ids)
    )


def first_kept_event(key: GroupKey, kind: EventKind, keep: int) -> sa.Select[Any]:
    """The number of the oldest of the newest delivered events that stay; none if there are few."""
    numbers = _newest_numbers(outbox, key, kind=kind.value).offset(keep - 1)
    return numbers.where(outbox.c.delivered.is_(True))


def select_delivered(
    key: GroupKey, kind: EventKind, *, below: int, limit: int
) -> sa.Select[*tuple[int, Any]]:
    """Numbers and dates of the oldest delivered events of a kind."""
    return (
        sa.select(outbox.c.sequence, outbox.c.recorded_at)
        .where(
            of_group(outbox, key, kind=kind.value),
            outbox.c.delivered.is_(True),
            outbox.c.sequence < below,
        )
        .order_by(outbox.c.sequence)
        .limit(limit)
    )


def delete_events(sequences: Sequence[int]) -> sa.Delete:
    """Events by number, if they are delivered still."""
    return sa.delete(outbox).where(outbox.c.sequence.in_(sequences), outbox.c.delivered.is_(True))


def select_old_gaps(key: GroupKey, *, before: object, limit: int) -> sa.Select[Any]:
    """Gaps that are accepted, skipped and old, by key."""
    done = (gap.c.acknowledged.is_(True), gap.c.skipped.is_(True), gap.c.recorded_at < before)
    ordered = rows_of(gap, key).order_by(gap.c.shard_id, gap.c.start_cursor, gap.c.end_cursor)
    return ordered.where(*done).limit(limit)


def delete_gaps(key: GroupKey, shard: ShardId, ranges: Sequence[tuple[str, str]]) -> sa.Delete:
    """Gaps of a shard by their range."""
    return sa.delete(gap).where(
        of_group(gap, key, shard_id=shard),
        sa.tuple_(gap.c.start_cursor, gap.c.end_cursor).in_(ranges),
    )
