"""The role for nodes: answering to a name, and staying alive."""

from __future__ import annotations

from dataclasses import replace

from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.outcomes import (
    Beaten,
    BeatRefused,
    Changed,
    NameTaken,
    Registered,
    Stale,
)
from dagster_leasehold.lease_store.roles.operations import Operations, Rows
from dagster_leasehold.lease_store.rules import registration as rules
from dagster_leasehold.lease_store.rules.assignment_modes import check_member
from dagster_leasehold.lease_store.rules.transitions import departed


class Nodes(Operations):
    """The verbs on nodes."""

    def register(
        self, key: GroupKey, node: Node, *, observer: str, displaced_lease_id: int | None = None
    ) -> Registered | NameTaken:
        """Answer to a node's name under `node.incarnation`.

        Takes effect when no live process has the name, when this incarnation already does, or when
        the other's counter is still `displaced_lease_id` (the caller watched it not move for
        longer than T); displacing releases the other one's shards.

        Raises:
            AssignmentConflict: the group assigns by modulo, and the node's settings contradict
                those of its members; checked under the same lock, so that of two nodes that join
                at once one is refused.
        """

        def returned(rows: Rows) -> Registered | None:
            """Take back a member with the same settings: its counter rises, nothing else."""
            rows.group()
            row = _locked(rows, node.name)
            entry = rules.registration(row, node, None)
            if row is None or isinstance(entry, NameTaken) or entry.note:
                return rows.abandon(None)
            rows.write(entry.after, lease_id=row.lease_id)
            return Registered(entry.after.lease_id)

        def work(rows: Rows) -> Registered | NameTaken:
            row = _locked(rows, node.name)
            entry = rules.registration(row, node, displaced_lease_id)
            if isinstance(entry, NameTaken):
                return rows.abandon(entry)
            if entry.note:
                check_member(rows.group(), rows.select(Node), node)
            if row and entry.displaces:
                _depart(
                    rows,
                    row,
                    kind="evict",
                    reason=rules.displacement_reason(node),
                    observer=observer,
                )
            if row is None:
                rows.add(entry.after)
            else:
                rows.write(entry.after, lease_id=row.lease_id)
            rows.journal([entry.note] if entry.note else [], observer)
            return Registered(entry.after.lease_id)

        return self._writing("register", key, returned) or self._changing("register", key, work)

    def beat(self, key: GroupKey, node: NodeName, incarnation: str) -> Beaten | BeatRefused:
        """Add 1 to the node's counter, if this incarnation still answers to the name."""
        # A beat whose reply was lost is sent again: counting twice says the same as counting once.
        return self._writing("beat", key, lambda rows: rows.beat(node, incarnation))

    def beat_ages(self, key: GroupKey) -> dict[NodeName, float]:
        """Return the seconds since each member's last beat, by the database's own clock.

        For people only: no decision follows from it. After the clock was set back, an age can be
        negative. A group without members, or an unknown one, has none.
        """
        return self._reading("beat_ages", key, lambda rows: rows.beat_ages())

    def leave(self, key: GroupKey, node: NodeName, incarnation: str) -> Changed | Stale:
        """Release all that the node holds and stop answering to its name, in one transaction."""

        def work(rows: Rows) -> Changed | Stale:
            row = _locked(rows, node)
            if row is None or not row.member or row.incarnation != incarnation:
                return rows.abandon(Stale())
            return _depart(rows, row, kind="leave", reason="its node left", observer=str(node))

        return self._changing("leave", key, work)

    def evict(
        self, key: GroupKey, node: NodeName, seen_lease_id: int, *, observer: str, reason: str
    ) -> Changed | Stale:
        """Release all that a dead node holds (edges 4, 6 and 9), if its counter has not moved."""

        def work(rows: Rows) -> Changed | Stale:
            row = _locked(rows, node)
            if row is None or not row.member or row.lease_id != seen_lease_id:
                return rows.abandon(Stale())
            return _depart(rows, row, kind="evict", reason=reason, observer=observer)

        return self._changing("evict", key, work)


def _locked(rows: Rows, node: NodeName) -> Node | None:
    # The lock keeps a beat from landing between this look and the write:
    # 1. The observer sees counter 7, unchanged for T.  2. The node wakes and beats: 8.
    # 3. The observer evicts. It must find 8 and stop, or wait for the lock and then find it.
    return rows.first(Node, lock=True, name=node)


def _depart(rows: Rows, row: Node, *, kind: str, reason: str, observer: str) -> Changed:
    rows.write(replace(row, incarnation=""), lease_id=row.lease_id)
    rows.journal([rules.departure_note(row, kind, reason)], observer)
    # Who owns what cannot change while the group's row is locked; the tenures can, hence the
    # locks on the shards themselves.
    shards = rows.shards(rows.shards_of(row.name), lock=True)
    return rows.carry_out(departed(shards.values(), row.name, reason), observer)
