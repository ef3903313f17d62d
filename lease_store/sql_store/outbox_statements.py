"""The statements on the outbox and on the turn to deliver; values are always bound."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Select, Update, and_, func, select, update

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import EventKind
from dagster_leasehold.lease_store.roles.outbox import DeliveryClaim
from dagster_leasehold.lease_store.sql_store.group_statements import (
    lock_rows,
    of_group,
    rows_of,
    update_rows,
)
from dagster_leasehold.lease_store.tables import delivery_claim, outbox, worker_instance


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


def select_turn(key: GroupKey) -> Select[Any]:
    """The turn, with the counter of its node if that is alive; the group's row is locked."""
    same = and_(
        worker_instance.c.consume_group == delivery_claim.c.consume_group,
        worker_instance.c.logstream_sig == delivery_claim.c.logstream_sig,
        worker_instance.c.worker_instance == delivery_claim.c.worker_instance,
        worker_instance.c.incarnation == delivery_claim.c.incarnation,
        worker_instance.c.incarnation != "",
    )
    return (
        select(delivery_claim, worker_instance.c.lease_id)
        .select_from(delivery_claim.outerjoin(worker_instance, same))
        .where(of_group(delivery_claim, key))
    )


def select_alive(key: GroupKey, node: NodeName, incarnation: str) -> Select[Any]:
    """The row of a node, if this incarnation answers to its name."""
    named = rows_of(worker_instance, key, worker_instance=node, incarnation=incarnation)
    return named.where(worker_instance.c.incarnation != "")


def lock_turn(claim: DeliveryClaim) -> Select[Any]:
    """The turn, locked, if it is still the claim's."""
    own = {"worker_instance": claim.node, "epoch": claim.epoch}
    return lock_rows(delivery_claim, claim.key, **own)
