"""Nodes in memory: who answers to a name, and what they leave behind."""

from __future__ import annotations

from dataclasses import replace

from typing_extensions import override

from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.memory_store.rows import GroupRows, MemoryRows
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
from dagster_leasehold.lease_store.rules.transitions import departed


class MemoryNodes(MemoryRows, Nodes):
    """The verbs on nodes."""

    @override
    def register(
        self, key: GroupKey, node: Node, *, observer: str, displaced_lease_id: int | None = None
    ) -> Registered | NameTaken:
        with self._rows("register", key) as rows:
            entry = rules.registration(rows.nodes.get(node.name), node, displaced_lease_id)
            if isinstance(entry, NameTaken):
                return entry
            if entry.note:
                check_member(rows.group, rows.nodes.values(), node)
            if entry.displaces:
                self._depart(rows, node.name, "evict", rules.displacement_reason(node), observer)
            rows.nodes[node.name] = entry.after
            rows.beat_times[node.name] = self._clock()
            if entry.note:
                rows.bump()
                self._note(rows, entry.note, observer)
            return Registered(entry.after.lease_id)

    @override
    def beat(self, key: GroupKey, node: NodeName, incarnation: str) -> Beaten | BeatRefused:
        with self._verb("beat"):
            rows = self._groups.get(key)
            row = rows.nodes.get(node) if rows else None
            if rows is None or row is None or not incarnation or row.incarnation != incarnation:
                return BeatRefused()
            rows.nodes[node] = replace(row, lease_id=row.lease_id + 1)
            rows.beat_times[node] = self._clock()
            return Beaten(row.lease_id + 1)

    @override
    def beat_ages(self, key: GroupKey) -> dict[NodeName, float]:
        with self._verb("beat_ages"):
            rows, now = self._groups.get(key), self._clock()
            members = sorted(rows.members) if rows else []
            return {node: (now - rows.beat_times[node]).total_seconds() for node in members if rows}

    @override
    def leave(self, key: GroupKey, node: NodeName, incarnation: str) -> Changed | Stale:
        with self._rows("leave", key) as rows:
            row = rows.nodes.get(node)
            if row is None or not row.member or row.incarnation != incarnation:
                return Stale()
            rows.bump()
            return self._depart(rows, node, "leave", "its node left", str(node))

    @override
    def evict(
        self, key: GroupKey, node: NodeName, seen_lease_id: int, *, observer: str, reason: str
    ) -> Changed | Stale:
        with self._rows("evict", key) as rows:
            row = rows.nodes.get(node)
            if row is None or not row.member or row.lease_id != seen_lease_id:
                return Stale()
            rows.bump()
            return self._depart(rows, node, "evict", reason, observer)

    def _depart(
        self, rows: GroupRows, node: NodeName, kind: str, reason: str, observer: str
    ) -> Changed:
        row = rows.nodes[node]
        rows.nodes[node] = replace(row, incarnation="")
        self._note(rows, rules.departure_note(row, kind, reason), observer)
        shards = [rows.shards[shard] for shard in sorted(rows.shards)]
        return Changed(self._write(rows, departed(shards, node, reason), observer))
