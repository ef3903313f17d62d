"""The outbox in SQL."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import RowMapping
from typing_extensions import override

from dagster_leasehold.lease_store.errors import one_line
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import EventKind, OutboxEvent
from dagster_leasehold.lease_store.outcomes import Settled, TurnOver, TurnTaken
from dagster_leasehold.lease_store.roles.outbox import DeliveryClaim, Outbox, WaitingEvents
from dagster_leasehold.lease_store.sql_store import outbox_statements as statements
from dagster_leasehold.lease_store.sql_store.mapping import EVENT
from dagster_leasehold.lease_store.sql_store.turns import SqlTurns
from dagster_leasehold.lease_store.tables import delivery_claim
from dagster_leasehold.lease_store.transactions import Transaction

DELIVERIES_PER_STATEMENT = 500


class SqlOutbox(SqlTurns, Outbox):
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
        statement = statements.select_pending(key, kind, run=run, shard=shard, limit=limit)
        return self._all("pending_events", key, statement, EVENT.read)

    @override
    def mark_delivered(self, key: GroupKey, sequences: Collection[int]) -> None:
        """Flag events; marking the same again is harmless."""
        ordered = sorted(sequences)

        def work(tx: Transaction) -> None:
            self._group(tx, key)
            for start in range(0, len(ordered), DELIVERIES_PER_STATEMENT):
                chunk = ordered[start : start + DELIVERIES_PER_STATEMENT]
                tx.connection.execute(statements.mark_delivered(key, chunk))

        self._write("mark_delivered", work)

    @override
    def waiting_events(self, key: GroupKey, kind: EventKind) -> list[WaitingEvents]:
        def waiting(row: RowMapping) -> WaitingEvents:
            return WaitingEvents(ShardId(row["shard_id"]), row["waiting"], EVENT.read(row))

        return self._all("waiting_events", key, statements.select_waiting(key, kind), waiting)

    @override
    def take_turn(
        self, key: GroupKey, node: NodeName, incarnation: str
    ) -> DeliveryClaim | TurnTaken:
        """Take the turn; after a lost reply it is simply taken again."""

        def work(tx: Transaction) -> DeliveryClaim | TurnTaken:
            self._group(tx, key, lock=True)
            epoch = self._take_turn(tx, delivery_claim, key, node, incarnation)
            return epoch if isinstance(epoch, TurnTaken) else DeliveryClaim(key, node, epoch)

        return self._write("take_turn", work)

    @override
    def settle_event(
        self, claim: DeliveryClaim, sequence: int, *, error: str = ""
    ) -> Settled | TurnOver:
        """Settle an event; a lost reply may count an attempt twice."""

        def work(tx: Transaction) -> Settled | TurnOver:
            if not self._is_turn_of(tx, claim):
                return tx.abandon(TurnOver())
            if error:
                line = one_line(error) or "no message"
                tx.connection.execute(statements.count_attempt(claim.key, sequence, line))
            else:
                tx.connection.execute(statements.mark_delivered(claim.key, [sequence]))
            return Settled()

        return self._write("settle_event", work)

    @override
    def end_turn(self, claim: DeliveryClaim) -> Settled | TurnOver:
        return self._end_turn("end_turn", delivery_claim, claim.key, claim.node, claim.epoch)

    def _is_turn_of(self, tx: Transaction, claim: DeliveryClaim) -> bool:
        return self._has_turn(tx, delivery_claim, claim.key, claim.node, claim.epoch)
