"""The turn of one node among those of a group, in SQL: to deliver its events, or to publish.

A table of turns has a row per group, with a node, its incarnation and an epoch. The transaction
that takes a turn locks the group's row first.
"""

from __future__ import annotations

from sqlalchemy import Table

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.outcomes import Settled, TurnOver, TurnTaken
from dagster_leasehold.lease_store.sql_store.group_statements import (
    lock_rows,
    select_alive,
    select_turn,
)
from dagster_leasehold.lease_store.sql_store.mapping import key_values
from dagster_leasehold.lease_store.sql_store.verbs import SqlVerbs
from dagster_leasehold.lease_store.transactions import Transaction


class SqlTurns(SqlVerbs):
    """The base of the roles that have turns."""

    def _take_turn(
        self,
        tx: Transaction,
        table: Table,
        key: GroupKey,
        node: NodeName | None,
        incarnation: str,
        **more: object,
    ) -> int | TurnTaken:
        """Give the turn to a node, if it may have it, and return its epoch.

        `more` are the values of further columns of the row.
        """
        alive = node is None or tx.connection.execute(select_alive(key, node, incarnation)).first()
        if not alive:
            return tx.abandon(TurnTaken(None))
        turn = tx.rows(select_turn(table, key)).first()
        held = turn is not None and turn["lease_id"] is not None
        if turn is not None and held and turn["worker_instance"] != node:
            return tx.abandon(TurnTaken(NodeName(turn["worker_instance"])))
        epoch: int = (turn["epoch"] if turn is not None else 0) + 1
        named = {"worker_instance": node or "", "incarnation": incarnation if node else ""}
        values = {**named, "epoch": epoch, **more}
        if turn is None:
            self._add_row(tx, table, key_values(key) | values)
        else:
            self._change_row(tx, table, key, values)
        return epoch

    def _has_turn(
        self, tx: Transaction, table: Table, key: GroupKey, node: NodeName | None, epoch: int
    ) -> bool:
        """Return True if the turn is still the node's; its row is locked then."""
        self._group(tx, key)
        own = lock_rows(table, key, worker_instance=node or "", epoch=epoch)
        return tx.connection.execute(own).first() is not None

    def _end_turn(
        self, kind: str, table: Table, key: GroupKey, node: NodeName | None, epoch: int
    ) -> Settled | TurnOver:
        sent = False

        def work(tx: Transaction) -> Settled | TurnOver:
            nonlocal sent
            if not self._has_turn(tx, table, key, node, epoch):
                # An epoch is used once: whatever an earlier try of this call did, it stays.
                return tx.abandon(Settled() if sent else TurnOver())
            sent = True
            self._change_row(tx, table, key, {"worker_instance": "", "incarnation": ""})
            return Settled()

        return self._write(kind, work)
