"""The turn of one node among those of a group: to deliver its events, or to publish."""

from __future__ import annotations

from typing import TypeVar

from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.journal_rows import DeliveryClaim
from dagster_leasehold.lease_store.outcomes import Settled, TurnOver, TurnTaken
from dagster_leasehold.lease_store.publication_rows import Publication, PublishTurn
from dagster_leasehold.lease_store.roles.operations import Operations, Rows
from dagster_leasehold.lease_store.stored_rows import DeliveryTurn

Turn = DeliveryTurn | Publication
TurnKind = TypeVar("TurnKind", bound=Turn)


class Turns(Operations):
    """The base of the roles that have turns."""

    def _give_turn_back(
        self, name: str, kind: type[Turn], turn: DeliveryClaim | PublishTurn
    ) -> Settled | TurnOver:
        sent = False

        def work(rows: Rows) -> Settled | TurnOver:
            nonlocal sent
            if held_turn(rows, kind, turn) is None:
                # An epoch is used once: an earlier try of this call ended it.
                return rows.abandon(Settled() if sent else TurnOver())
            sent = True
            rows.change(kind, {"node": None, "incarnation": ""}, epoch=turn.epoch)
            return Settled()

        return self._writing(name, turn.key, work)


def next_epoch(
    rows: Rows, turn: Turn | None, node: NodeName | None, incarnation: str
) -> int | TurnTaken:
    """Return the epoch under which a node, or none, takes the turn; the group's row is locked."""
    holder = turn.node if turn is not None else None
    names = {name for name in (node, holder) if name is not None}
    alive = {row.name: row.incarnation for row in rows.select(Node, name=names) if row.member}
    if node is not None and alive.get(node) != incarnation:
        return TurnTaken(None)
    if turn is not None and holder not in (None, node) and alive.get(holder) == turn.incarnation:
        return TurnTaken(holder)
    return (turn.epoch if turn is not None else 0) + 1


def held_turn(
    rows: Rows, kind: type[TurnKind], turn: DeliveryClaim | PublishTurn
) -> TurnKind | None:
    """Lock the row of a turn and return it; None if the turn is over."""
    rows.group()
    return rows.first(kind, lock=True, node=turn.node, epoch=turn.epoch)
