"""Nodes in SQL: who answers to a name, and what they leave behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from typing_extensions import override

from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import (
    Beaten,
    BeatRefused,
    Changed,
    NameTaken,
    Registered,
    Stale,
)
from dagster_leasehold.lease_store.roles.nodes import Nodes
from dagster_leasehold.lease_store.rules import registration as rules
from dagster_leasehold.lease_store.rules.assignment_modes import check_member
from dagster_leasehold.lease_store.rules.registration import Registration
from dagster_leasehold.lease_store.rules.transitions import departed
from dagster_leasehold.lease_store.sql_store import group_statements, shard_statements
from dagster_leasehold.lease_store.sql_store.group_statements import lock_rows
from dagster_leasehold.lease_store.sql_store.mapping import NODE
from dagster_leasehold.lease_store.sql_store.verbs import SqlVerbs
from dagster_leasehold.lease_store.tables import worker_instance
from dagster_leasehold.lease_store.transactions import Transaction


class SqlNodes(SqlVerbs, Nodes):
    """The verbs on nodes."""

    @override
    def register(
        self, key: GroupKey, node: Node, *, observer: str, displaced_lease_id: int | None = None
    ) -> Registered | NameTaken:
        returned = self._return(key, node)
        if returned is not None:
            return returned

        def work(tx: Transaction) -> Registered | NameTaken:
            row = self._node(tx, key, node.name)
            entry = rules.registration(row, node, displaced_lease_id)
            if isinstance(entry, NameTaken):
                return tx.abandon(entry)
            if entry.note:
                check_member(self._group(tx, key), self._nodes(tx, key), node)
            if row and entry.displaces:
                reason = rules.displacement_reason(node)
                self._depart(tx, key, row, kind="evict", reason=reason, observer=observer)
                entry = replace(entry, before=replace(row, incarnation=""))
            self._write_node(tx, key, entry)
            self._journal(tx, key, [entry.note] if entry.note else [], observer)
            return Registered(entry.after.lease_id)

        return self._change("register", key, work)

    def _return(self, key: GroupKey, node: Node) -> Registered | None:
        """Take back a member with the same settings: its counter rises, nothing else."""

        def work(tx: Transaction) -> Registered | None:
            self._group(tx, key)
            row = self._node(tx, key, node.name)
            entry = rules.registration(row, node, None)
            if row is None or isinstance(entry, NameTaken) or entry.note:
                return tx.abandon(None)
            self._write_node(tx, key, entry)
            return Registered(entry.after.lease_id)

        return self._write("register", work)

    @override
    def beat(self, key: GroupKey, node: NodeName, incarnation: str) -> Beaten | BeatRefused:
        # A beat whose reply was lost is sent again: counting twice says the same as counting once.
        def work(tx: Transaction) -> Beaten | BeatRefused:
            statement = group_statements.beat(key, node, incarnation, dialect=self._dialect)
            result = tx.connection.execute(statement)
            if self._dialect == "mysql":
                return Beaten(result.lastrowid) if result.rowcount == 1 else BeatRefused()
            lease_id = result.scalar()
            return BeatRefused() if lease_id is None else Beaten(lease_id)

        return self._write("beat", work)

    @override
    def beat_ages(self, key: GroupKey) -> dict[NodeName, float]:
        rows = self._read(
            "beat_ages", lambda tx: tx.rows(group_statements.select_beat_times(key)).all()
        )
        return {
            NodeName(row["worker_instance"]): (row["now"] - row["update_time"]).total_seconds()
            for row in rows
        }

    @override
    def leave(self, key: GroupKey, node: NodeName, incarnation: str) -> Changed | Stale:
        def work(tx: Transaction) -> Changed | Stale:
            row = self._node(tx, key, node)
            if row is None or not row.member or row.incarnation != incarnation:
                return tx.abandon(Stale())
            return self._depart(
                tx, key, row, kind="leave", reason="its node left", observer=str(node)
            )

        return self._change("leave", key, work)

    @override
    def evict(
        self, key: GroupKey, node: NodeName, seen_lease_id: int, *, observer: str, reason: str
    ) -> Changed | Stale:
        def work(tx: Transaction) -> Changed | Stale:
            row = self._node(tx, key, node)
            if row is None or not row.member or row.lease_id != seen_lease_id:
                return tx.abandon(Stale())
            return self._depart(tx, key, row, kind="evict", reason=reason, observer=observer)

        return self._change("evict", key, work)

    def _node(self, tx: Transaction, key: GroupKey, node: NodeName) -> Node | None:
        # The lock keeps a beat from landing between this look and the write:
        # 1. The observer sees counter 7, unchanged for T.  2. The node wakes and beats: 8.
        # 3. The observer evicts. It must find 8 and stop, or wait for the lock and then find it.
        row = tx.rows(lock_rows(worker_instance, key, worker_instance=node)).first()
        return NODE.read(row) if row else None

    def _nodes(self, tx: Transaction, key: GroupKey) -> list[Node]:
        return tx.all(group_statements.select_nodes(key), NODE.read)

    def _write_node(self, tx: Transaction, key: GroupKey, entry: Registration) -> None:
        if entry.before is None:
            self._add_row(tx, worker_instance, NODE.row(key, entry.after))
        else:
            self._change_node(tx, key, entry.before, NODE.values(entry.after))

    def _change_node(
        self, tx: Transaction, key: GroupKey, seen: Node, values: dict[str, Any]
    ) -> None:
        self._change_row(
            tx, worker_instance, key, values, worker_instance=seen.name, lease_id=seen.lease_id
        )

    def _depart(
        self, tx: Transaction, key: GroupKey, row: Node, *, kind: str, reason: str, observer: str
    ) -> Changed:
        self._change_node(tx, key, row, {"incarnation": ""})
        self._journal(tx, key, [rules.departure_note(row, kind, reason)], observer)
        # Who owns what cannot change while the group's row is locked; the tenures can, hence the
        # locks on the shards themselves.
        owned = tx.connection.execute(shard_statements.select_shards_of(key, row.name)).scalars()
        shards = self._lock_shards(tx, key, [ShardId(shard) for shard in owned])
        return self._carry_out(tx, key, departed(shards.values(), row.name, reason), observer)
