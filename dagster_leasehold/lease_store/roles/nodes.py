"""The role for nodes: answering to a name, and staying alive."""

from __future__ import annotations

from typing import Protocol

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


class Nodes(Protocol):
    """The verbs on nodes."""

    def register(
        self, key: GroupKey, node: Node, *, observer: str, displaced_lease_id: int | None = None
    ) -> Registered | NameTaken:
        """Answer to a node's name under `node.incarnation`.

        Takes effect when nobody answers to the name, when this incarnation already does, or when
        the other's counter is still `displaced_lease_id` (the caller watched it stand still for
        longer than T); displacing releases what the other held.

        Raises:
            AssignmentConflict: the group assigns by modulo, and the node's settings contradict
                those of its members; checked under the same lock, so that of two nodes that join
                at once one is refused.
        """
        ...

    def beat(self, key: GroupKey, node: NodeName, incarnation: str) -> Beaten | BeatRefused:
        """Add 1 to the node's counter, if this incarnation still answers to the name."""
        ...

    def beat_ages(self, key: GroupKey) -> dict[NodeName, float]:
        """Return the seconds since each member's last beat, by the database's own clock.

        For people only: no decision follows from it. After the clock was set back, an age can be
        negative. A group without members, or an unknown one, has none.
        """
        ...

    def leave(self, key: GroupKey, node: NodeName, incarnation: str) -> Changed | Stale:
        """Release all that the node holds and stop answering to its name, in one transaction."""
        ...

    def evict(
        self, key: GroupKey, node: NodeName, seen_lease_id: int, *, observer: str, reason: str
    ) -> Changed | Stale:
        """Release all that a dead node holds (edges 4, 6 and 9), if its counter has not moved."""
        ...
