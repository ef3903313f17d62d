"""One node in one group, under one incarnation: how it joins, beats, keeps its name and leaves.

All that keep a node alive use it: the process that rebalances, a node's agent, and plain clients.
Each of them decides for itself what to do about a name that another process has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dagster_leasehold.lease_store.group_rows import Node, Pulse
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.outcomes import Beaten, Changed, Registered, Stale
from dagster_leasehold.lease_store.rules.assignment_modes import check_member
from dagster_leasehold.lease_store.rules.liveness import Clock, Observations, steady_clock
from dagster_leasehold.lease_store.rules.registration import rival_of
from dagster_leasehold.lease_store.shard_rows import Progress
from dagster_leasehold.lease_store.store import GroupsAndNodes


@dataclass(slots=True)
class Membership:
    """A member of a group, as seen by the process that keeps it alive.

    Attributes:
        node: the member's name.
        incarnation: tells apart the processes that answer to the name; each has a new one.
        clock: monotonic seconds.
        count: called with the verb of each statement.
        beaten_at: the moment before the last confirmed beat was sent; None before the first.
    """

    store: GroupsAndNodes
    key: GroupKey
    node: NodeName
    incarnation: str
    clock: Clock = steady_clock
    count: Callable[[str], None] = lambda _: None
    beaten_at: float | None = None

    def row(self, settings: Node) -> Node:
        """Return the member's row with these settings; its counter is left to the store."""
        return replace(settings, name=self.node, lease_id=0, incarnation=self.incarnation)

    def rival(self, nodes: Iterable[Node]) -> Node | None:
        """Return the row of another incarnation that answers to the name; None if none does."""
        return rival_of(self.node, self.incarnation, nodes)

    def beat(self) -> bool:
        """Beat once; False if the incarnation answers to the name no more.

        Raises:
            StoreError: the store does not answer; the beat may have been counted.
        """
        sent_at = self.clock()
        self.count("beat")
        if not isinstance(self.store.beat(self.key, self.node, self.incarnation), Beaten):
            return False
        self.beaten_at = sent_at
        return True

    def register(
        self, settings: Node, pulse: Pulse, observations: Observations, *, observer: str
    ) -> bool:
        """Answer to the name, or change the member's settings; False if a living rival has it.

        A rival whose counter has stood still for longer than the group's timeout is displaced.

        Args:
            settings: assignment settings, address and readiness.
            pulse: the group, a moment ago.
            observations: of the group's nodes, up to that pulse.
            observer: for the journal.

        Raises:
            AssignmentConflict: the settings contradict those of another member.
            StoreError: the store does not answer; the node may have been registered.
        """
        row, rival = self.row(settings), self.rival(pulse.nodes)
        lapsed = observations.lapsed(pulse.group.timeout_s) if rival else {}
        # The store refuses a contradiction, too; one that is found here costs no write.
        check_member(pulse.group, pulse.nodes, row)
        sent_at = self.clock()
        self.count("register")
        outcome = self.store.register(
            self.key, row, observer=observer, displaced_lease_id=lapsed.get(self.node)
        )
        if not isinstance(outcome, Registered):
            return False
        self.beaten_at = sent_at
        return True

    def progress(self) -> list[Progress]:
        """Return checkpoint and tenure of the member's shards."""
        self.count("progress")
        return list(self.store.progress(self.key, [self.node]).values())

    def leave(self) -> Changed | Stale:
        """Release all that the member holds at once, and give up its name."""
        self.count("leave")
        return self.store.leave(self.key, self.node, self.incarnation)
