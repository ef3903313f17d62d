"""The outbox in memory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import EventKind, OutboxEvent
from dagster_leasehold.lease_store.memory_store.rows import MemoryRows
from dagster_leasehold.lease_store.outcomes import Settled, TurnOver, TurnTaken
from dagster_leasehold.lease_store.roles.outbox import DeliveryClaim, Outbox, WaitingEvents
from dagster_leasehold.lease_store.rules.ledger import failed_attempt


class MemoryOutbox(MemoryRows, Outbox):
    """The verbs on events, and the turn to deliver."""

    @override
    def pending_events(
        self,
        key: GroupKey,
        *,
        kind: EventKind = EventKind.MATERIALIZATION,
        run: str | None = None,
        shard: ShardId | None = None,
        limit: int = 500,
    ) -> list[OutboxEvent]:
        with self._rows("pending_events", key) as rows:
            pending = [
                event
                for event in rows.outbox.values()
                if event.kind == kind
                and (run is None or event.run == run)
                and (shard is None or event.shard == shard)
            ]
            return pending[:limit]

    @override
    def mark_delivered(self, key: GroupKey, sequences: Collection[int]) -> None:
        with self._rows("mark_delivered", key) as rows:
            for sequence in sequences:
                rows.outbox.pop(sequence, None)

    @override
    def waiting_events(self, key: GroupKey, kind: EventKind) -> list[WaitingEvents]:
        with self._rows("waiting_events", key) as rows:
            waiting: dict[ShardId, WaitingEvents] = {}
            for event in rows.outbox.values():
                if event.kind == kind:
                    own = waiting.get(event.shard, WaitingEvents(event.shard, 0, event))
                    waiting[event.shard] = WaitingEvents(event.shard, own.count + 1, own.oldest)
            return [waiting[shard] for shard in sorted(waiting)]

    @override
    def take_turn(
        self, key: GroupKey, node: NodeName, incarnation: str
    ) -> DeliveryClaim | TurnTaken:
        with self._rows("take_turn", key) as rows:
            turn = rows.next_turn(rows.delivering, node, incarnation)
            if isinstance(turn, TurnTaken):
                return turn
            rows.delivering = turn
            return DeliveryClaim(key, node, turn.epoch)

    @override
    def settle_event(
        self, claim: DeliveryClaim, sequence: int, *, error: str = ""
    ) -> Settled | TurnOver:
        with self._rows("settle_event", claim.key) as rows:
            if not rows.delivering.is_of(claim.node, claim.epoch):
                return TurnOver()
            event = rows.outbox.get(sequence)
            if event is not None and error:
                rows.outbox[sequence] = failed_attempt(event, error)
            elif event is not None:
                del rows.outbox[sequence]
            return Settled()

    @override
    def end_turn(self, claim: DeliveryClaim) -> Settled | TurnOver:
        with self._rows("end_turn", claim.key) as rows:
            if not rows.delivering.is_of(claim.node, claim.epoch):
                return TurnOver()
            rows.delivering = replace(rows.delivering, of=None)
            return Settled()
