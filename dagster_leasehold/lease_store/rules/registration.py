"""The right to answer to a node's name: pure rules that all stores and all members share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.journal_rows import Note
from dagster_leasehold.lease_store.outcomes import NameTaken


@dataclass(frozen=True, slots=True)
class Registration:
    """A name that can be answered to.

    Attributes:
        before: the name's row, if it has one.
        after: its row from now on.
        displaces: True if another incarnation answered to it and is pushed out first.
        note: the journal's entry, or None if nothing but the counter changes.
    """

    before: Node | None
    after: Node
    displaces: bool
    note: Note | None


def rival_of(name: NodeName, incarnation: str, nodes: Iterable[Node]) -> Node | None:
    """Return the row of another incarnation that answers to a name; None if none does."""
    row = next((node for node in nodes if node.name == name), None)
    return row if row is not None and row.member and row.incarnation != incarnation else None


def same_but_counter(row: Node, other: Node) -> bool:
    """Return True if a row says of its node all that is wanted; its counter is not compared."""
    return replace(row, lease_id=other.lease_id) == other


def registration(
    before: Node | None, node: Node, displaced_lease_id: int | None
) -> Registration | NameTaken:
    """Return the outcome of `Nodes.register`, given the name's row.

    The counter rises even for an incarnation that comes back, so that an observer who had begun
    to count its silence starts again.
    """
    lease_id = before.lease_id + 1 if before else 1
    after = replace(node, lease_id=lease_id)
    if before is None:
        return Registration(None, after, displaces=False, note=_note("join", "joined", node))
    displaces = rival_of(node.name, node.incarnation, [before]) is not None
    if displaces and before.lease_id != displaced_lease_id:
        return NameTaken(before.incarnation, before.lease_id)
    note = None
    if before.incarnation != node.incarnation:
        note = _note("join", "joined", node)
    elif not same_but_counter(before, after):
        note = _note("resume", "registered again with other settings", node)
    return Registration(before, after, displaces, note)


def _note(kind: str, reason: str, node: Node) -> Note:
    return Note(kind=kind, reason=reason, to_owner=node.name, run=node.incarnation)


def departure_note(node: Node, kind: str, reason: str) -> Note:
    """Return the journal entry of a node that leaves or is evicted."""
    return Note(kind=kind, reason=reason, from_owner=node.name, run=node.incarnation)


def displacement_reason(node: Node) -> str:
    """Return the reason why the node pushed another incarnation out."""
    return f"displaced by {node.incarnation}: its beat had stopped"
