"""The statements on the outbox; values are always bound."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Select, Update, func, select, update

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.journal_rows import EventKind
from dagster_leasehold.lease_store.sql_store.group_statements import of_group, update_rows
from dagster_leasehold.lease_store.tables import outbox


def select_pending(
    key: GroupKey, kind: EventKind, *, run: str | None, shard: ShardId | None, limit: int
) -> Select[Any]:
    """Undelivered events of a kind in order."""
    chosen = select(outbox).where(
        of_group(outbox, key), outbox.c.delivered.is_(False), outbox.c.kind == kind.value
    )
    if run is not None:
        chosen = chosen.where(outbox.c.run == run)
    if shard is not None:
        chosen = chosen.where(outbox.c.shard_id == shard)
    return chosen.order_by(outbox.c.sequence).limit(limit)


def select_waiting(key: GroupKey, kind: EventKind) -> Select[Any]:
    """Per shard, its oldest undelivered event of a kind, with how many there are."""
    waiting = (
        select(func.min(outbox.c.sequence).label("oldest"), func.count().label("waiting"))
        .where(of_group(outbox, key), outbox.c.delivered.is_(False), outbox.c.kind == kind.value)
        .group_by(outbox.c.shard_id)
        .subquery()
    )
    return (
        select(outbox, waiting.c.waiting)
        .join(waiting, outbox.c.sequence == waiting.c.oldest)
        .order_by(outbox.c.shard_id)
    )


def mark_delivered(key: GroupKey, sequences: Collection[int]) -> Update:
    """Flag events as delivered."""
    return (
        update(outbox)
        .where(of_group(outbox, key), outbox.c.sequence.in_(sorted(sequences)))
        .values(delivered=True)
    )


def count_attempt(key: GroupKey, sequence: int, error: str) -> Update:
    """One more failed attempt at an event; harmless where it is delivered already."""
    values = {"attempts": outbox.c.attempts + 1, "error": error}
    return update_rows(outbox, key, values, sequence=sequence)
