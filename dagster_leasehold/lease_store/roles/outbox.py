"""The role for the outbox: committed events to deliver, and the lock to deliver them.

Each commit adds its events in the same transaction. A run reports its own events to Dagster, and a
sensor reports the events of dead runs. The holder of the group's delivery lock calls the stream's
hook:

1. Deployment A takes the lock as one of its nodes, and calls the hook for batch 7.
2. Deployment B finds that a live node has the lock, and does not call the hook.
3. A's process dies, or is frozen until its node is evicted.
4. B takes the lock with a higher epoch, and calls the hook for batch 7 again.
5. If A wakes up and settles batch 7, its epoch is over, and nothing changes.

So every batch is delivered at least once, and in order unless a deliverer is evicted.
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
from dagster_leasehold.lease_store.stored_rows import DeliveryLock, Plus, given


class Outbox(Locks):
    """The operations on events."""

    def pending_events(
        self,
        key: GroupKey,
        *,
        kind: EventKind = EventKind.MATERIALIZATION,
        run: str | None = None,
        shard: ShardId | None = None,
        limit: int = 500,
    ) -> list[OutboxEvent]:
        """Return undelivered events of a kind, in commit order."""
        own = given(delivered=False, kind=kind, run=run, shard=shard)
        return self._listing(
            "pending_events", key, lambda rows: rows.select(OutboxEvent, limit=limit, **own)
        )

    def mark_delivered(self, key: GroupKey, sequences: Collection[int]) -> None:
        """Flag events as delivered."""

        def work(rows: Rows) -> None:
            rows.group()
            rows.change(OutboxEvent, {"delivered": True}, sequence=set(sequences))

        self._writing("mark_delivered", key, work)

    def waiting_events(self, key: GroupKey, kind: EventKind) -> list[WaitingEvents]:
        """Return the undelivered events of a kind, by shard."""
        return self._listing("waiting_events", key, lambda rows: rows.waiting_events(kind))

    def take_delivery_lock(
        self, key: GroupKey, node: NodeName, incarnation: str
    ) -> DeliveryClaim | LockTaken:
        """Take the lock to deliver a group's hook events, as a live node.

        The lock must be free or held by this node, or its holder's incarnation must be gone. Each
        call increments the epoch, which fences an earlier lock of the same node.
        """

        def work(rows: Rows) -> DeliveryClaim | LockTaken:
            rows.group(lock=True)
            lock = rows.first(DeliveryLock)
            epoch = next_epoch(rows, lock, node, incarnation)
            if isinstance(epoch, LockTaken):
                return rows.abandon(epoch)
            (rows.add if lock is None else rows.write)(DeliveryLock(node, incarnation, epoch))
            return DeliveryClaim(key, node, epoch)

        # Repeated after a lost reply, it takes the lock again.
        return self._writing("take_delivery_lock", key, work)

    def settle_event(
        self, claim: DeliveryClaim, sequence: int, *, error: str = ""
    ) -> Settled | LockOver:
        """Flag an event as delivered or, with an error, count a failed attempt.

        The caller must still hold the lock. One line of the error is kept.
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
