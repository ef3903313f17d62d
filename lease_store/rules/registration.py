"""Who may answer to a node's name: the pure rule that all stores share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.outcomes import NameTaken
from dagster_leasehold.lease_store.rules.transitions import Note


@dataclass(frozen=True, slots=True)
class Registration:
    """A name that may be answered to.

    Attributes:
        before: the name's row, if it has one.
        after: its row from now on.
        displaces: another incarnation answered to it and is pushed out first.
        note: what the journal says, or None where nothing but the counter changes.
    """

    before: Node | None
    after: Node
    displaces: bool
    note: Note | None


def registration(
    known: Node | None, node: Node, displaced_lease_id: int | None
) -> Registration | NameTaken:
    """What `LeaseStore.register` does, given the name's row.

    The counter rises even for an incarnation that comes back, so that an observer who had begun
    to count its silence starts again.
    """
    lease_id = known.lease_id + 1 if known else 1
    after = replace(node, lease_id=lease_id)
    if known is None:
        return Registration(None, after, displaces=False, note=_note("join", "joined", node))
    displaces = known.member and known.incarnation != node.incarnation
    if displaces and known.lease_id != displaced_lease_id:
        return NameTaken(known.incarnation, known.lease_id)
    note = None
    if known.incarnation != node.incarnation:
        note = _note("join", "joined", node)
    elif replace(known, lease_id=lease_id) != after:
        note = _note("resume", "registered again with other settings", node)
    return Registration(known, after, displaces, note)


def _note(kind: str, reason: str, node: Node) -> Note:
    return Note(kind=kind, reason=reason, to_owner=node.name, run=node.incarnation)


def departure_note(node: Node, kind: str, reason: str) -> Note:
    """The journal entry of a node that leaves or is evicted."""
    return Note(kind=kind, reason=reason, from_owner=node.name, run=node.incarnation)


def displacement_reason(node: Node) -> str:
    """Why another incarnation was pushed out."""
    return f"displaced by {node.incarnation}: its beat had stopped"
