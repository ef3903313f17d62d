"""The role for the outbox: committed events to deliver, and the lock to deliver them.

Each commit leaves its events in the same transaction. A run tells Dagster of its own, a sensor of
those that died; the hook of a stream is called by the holder of the group's lock to deliver:

1. Deployment A takes the lock as one of its nodes, and calls the hook for batch 7.
2. Deployment B finds the lock with a live node, and leaves the hook to A.
3. A's process dies, or is frozen until its node's volume lease lapses and the node is evicted.
4. B takes the lock with a higher epoch, and calls the hook for batch 7 again.
5. Should A wake up and settle batch 7, its epoch is over: nothing changes.

So every batch is delivered at least once and, while no deliverer is taken for dead, in order.
"""

from __future__ import annotations

from collections.abc import Collection

from dagster_leasehold.lease_store.errors import one_line
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import (
    DeliveryClaim,
    EventKind,
    OutboxEvent,
    WaitingEvents,
)
from dagster_leasehold.lease_store.outcomes import LockOver, LockTaken, Settled
from dagster_leasehold.lease_store.roles.operations import Locks, Rows, held_lock, next_epoch
from dagster_leasehold.lease_store.stored_rows import DeliveryLock, Plus, given, portions


class Outbox(Locks):
    """The verbs on events."""

    def pending_events(
        self,
        key: GroupKey,
        *,
        kind: EventKind = EventKind.MATERIALIZATION,
        run: str | None = None,
        shard: ShardId | None = None,
        limit: int = 500,
    ) -> list[OutboxEvent]:
        """Return undelivered events of a kind in commit order, of one run or shard or of all."""

        own = given(delivered=False, kind=kind, run=run, shard=shard)
        return self._listing(
            "pending_events", key, lambda rows: rows.select(OutboxEvent, limit=limit, **own)
        )

    def mark_delivered(self, key: GroupKey, sequences: Collection[int]) -> None:
        """Flag events as delivered."""

        def work(rows: Rows) -> None:
            rows.group()
            for part in portions(sequences):
                rows.change(OutboxEvent, {"delivered": True}, sequence=set(part))

        self._writing("mark_delivered", key, work)

    def waiting_events(self, key: GroupKey, kind: EventKind) -> list[WaitingEvents]:
        """Return the undelivered events of a kind: one value per shard that has any, by shard."""
        return self._listing("waiting_events", key, lambda rows: rows.waiting_events(kind))

    def take_delivery_lock(
        self, key: GroupKey, node: NodeName, incarnation: str
    ) -> DeliveryClaim | LockTaken:
        """Take the lock to deliver a group's hook events, as a live node.

        Condition: the lock is free, or is this node's, or its node no longer lives under
        the incarnation that took it. The epoch rises each time, so that taking it again fences
        an earlier lock of the same node.
        """

        def work(rows: Rows) -> DeliveryClaim | LockTaken:
            rows.group(lock=True)
            lock = rows.first(DeliveryLock)
            epoch = next_epoch(rows, lock, node, incarnation)
            if isinstance(epoch, LockTaken):
                return rows.abandon(epoch)
            (rows.add if lock is None else rows.write)(DeliveryLock(node, incarnation, epoch))
            return DeliveryClaim(key, node, epoch)

        # After a lost reply the lock is taken again.
        return self._writing("take_delivery_lock", key, work)

    def settle_event(
        self, claim: DeliveryClaim, sequence: int, *, error: str = ""
    ) -> Settled | LockOver:
        """Flag an event as delivered or, with an error, count the attempt that failed.

        Condition: the lock is still the claim's. Of the error, one line is kept.
        """

        def work(rows: Rows) -> Settled | LockOver:
            if held_lock(rows, DeliveryLock, claim) is None:
                return rows.abandon(LockOver())
            if error:
                line = one_line(error) or "no message"
                rows.change(OutboxEvent, {"attempts": Plus(1), "error": line}, sequence=sequence)
            else:
                rows.change(OutboxEvent, {"delivered": True}, sequence=sequence)
            return Settled()

        # A lost reply can count an attempt twice.
        return self._writing("settle_event", claim.key, work)

    def release_delivery_lock(self, claim: DeliveryClaim) -> Settled | LockOver:
        """Release the lock."""
        return self._release("release_delivery_lock", DeliveryLock, claim)
