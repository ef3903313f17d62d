"""Nodes in memory: who answers to a name, and what they leave behind."""

from __future__ import annotations

from dataclasses import replace

from lease_store.identifiers import GroupKey, NodeName
from lease_store.memory_store.rows import GroupRows, MemoryRows
from lease_store.records import Node
from lease_store.store import Beaten, BeatRefused, Changed, NameTaken, Registered, Stale
from lease_store.transitions import Note, departed


class MemoryNodes(MemoryRows):
    """The verbs on nodes."""

    def register(
        self, key: GroupKey, node: Node, *, observer: str, displaced_lease_id: int | None = None
    ) -> Registered | NameTaken:
        """See `LeaseStore.register`."""
        with self._rows("register", key) as rows:
            known = rows.nodes.get(node.name)
            lease_id = known.lease_id + 1 if known else 1
            after = replace(node, lease_id=lease_id)
            if known and known.member and known.incarnation != node.incarnation:
                if known.lease_id != displaced_lease_id:
                    return NameTaken(known.incarnation, known.lease_id)
                reason = f"displaced by {node.incarnation}: its beat had stopped"
                self._depart(rows, node.name, "evict", reason, observer)
            joins = known is None or known.incarnation != node.incarnation
            changes = known is None or replace(known, lease_id=lease_id) != after
            rows.nodes[node.name] = after
            if changes:
                rows.bump()
                kind, reason = ("join", "joined") if joins else ("resume", "settings changed")
                note = Note(kind, reason, to_owner=node.name, run=node.incarnation)
                self._note(rows, note, observer)
            return Registered(lease_id)

    def beat(self, key: GroupKey, node: NodeName, incarnation: str) -> Beaten | BeatRefused:
        """See `LeaseStore.beat`."""
        with self._verb("beat"):
            rows = self._groups.get(key)
            known = rows.nodes.get(node) if rows else None
            if rows is None or known is None or not incarnation or known.incarnation != incarnation:
                return BeatRefused()
            rows.nodes[node] = replace(known, lease_id=known.lease_id + 1)
            return Beaten(known.lease_id + 1)

    def leave(self, key: GroupKey, node: NodeName, incarnation: str) -> Changed | Stale:
        """See `LeaseStore.leave`."""
        with self._rows("leave", key) as rows:
            known = rows.nodes.get(node)
            if known is None or not known.member or known.incarnation != incarnation:
                return Stale()
            return self._depart(rows, node, "leave", "its node left", str(node))

    def evict(
        self, key: GroupKey, node: NodeName, seen_lease_id: int, *, observer: str, reason: str
    ) -> Changed | Stale:
        """See `LeaseStore.evict`."""
        with self._rows("evict", key) as rows:
            known = rows.nodes.get(node)
            if known is None or not known.member or known.lease_id != seen_lease_id:
                return Stale()
            return self._depart(rows, node, "evict", reason, observer)

    def _depart(
        self, rows: GroupRows, node: NodeName, kind: str, reason: str, observer: str
    ) -> Changed:
        known = rows.nodes[node]
        rows.bump()
        rows.nodes[node] = replace(known, incarnation="")
        note = Note(kind, reason, from_owner=node, run=known.incarnation)
        self._note(rows, note, observer)
        shards = [rows.shards[shard] for shard in sorted(rows.shards)]
        return Changed(self._write(rows, departed(shards, node, reason), observer))
