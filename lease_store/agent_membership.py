"""A node's place in one consumer group: joined, beaten for, and left, by the node's agent.

Who owns which shard is planned elsewhere; the agent only says that the node lives, and whether it
takes runs.
"""

from __future__ import annotations

from dataclasses import replace

from dagster_leasehold.lease_store.errors import NodeNameTaken, StoreError, UnknownGroup, shown
from dagster_leasehold.lease_store.group_rows import (
    BEAT_FRACTION_MAX,
    TIMEOUT_DEFAULT_S,
    Node,
    Pulse,
)
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.outcomes import Beaten, Changed, Registered
from dagster_leasehold.lease_store.rules.assignment_modes import check_member
from dagster_leasehold.lease_store.rules.liveness import Clock, Observations, PlannerWatch
from dagster_leasehold.lease_store.store import GroupsAndNodes

BEAT_EARLY = 0.7
"""A beat is sent after this part of its interval, because the caller's rounds take time, too."""
PLANNER_SILENT_TIMEOUTS = 2.0
"""After so many timeouts without a tick of its planner a node takes no more shards."""
PLANNER_LOOK_S = 2.0
"""How often the caller looks for the planner's mark; twice that counts at most between two looks.

Less than half of the time between two ticks, so that all nodes of a deployment whose planner ticks
again take runs before its next tick: a plan made in between would move shards to the first of them.
"""


class AgentMembership:
    """One group of a node. `keep` has to be called at least about every second.

    Args:
        store: the lease store.
        key: the group.
        node: the row to register: name, incarnation, address and assignment settings.
        clock: monotonic seconds.
    """

    def __init__(self, store: GroupsAndNodes, key: GroupKey, node: Node, clock: Clock) -> None:
        self._store = store
        self._key = key
        self._node = node
        self._clock = clock
        self._observations = Observations(clock)
        self._planner = PlannerWatch(clock, 2 * PLANNER_LOOK_S)
        self._timeout_s = TIMEOUT_DEFAULT_S
        self._first_seen: tuple[str, int] | None = None
        self._registered: Node | None = None
        self._beaten_at = 0.0
        self._beat_s = 0.0
        self._contested = True

    @property
    def contested(self) -> bool:
        """Whether another living incarnation had the name when last seen; True before that.

        A run that is started meanwhile is told that incarnation, and its beats keep it alive.
        """
        return self._contested

    @property
    def joined(self) -> bool:
        """Whether the node answers to its name, as far as is known here."""
        return self._registered is not None

    @property
    def key(self) -> GroupKey:
        """The group."""
        return self._key

    @property
    def planner_silent_s(self) -> float:
        """For how long the planner has been silent, if that is too long; 0 otherwise."""
        silent_s = self._planner.silent_s
        return silent_s if silent_s > PLANNER_SILENT_TIMEOUTS * self._timeout_s else 0.0

    def see_planner(self, mark: str | None) -> None:
        """Take note of what the last tick of the node's planner left, as `PlannerWatch.see`."""
        self._planner.see(mark)

    def keep(self, *, accepts_runs: bool, joins: bool = True) -> str:
        """Join, beat, or tell the group whether the node takes runs; what changed, or nothing.

        Where another incarnation has the name, the call does nothing but watch it, until it has
        beaten or has stood still for the group's timeout. It does nothing else either unless the
        node `joins`. A node whose planner is silent takes no runs: nobody would launch them.

        Raises:
            NodeNameTaken: another live process answers to the name.
            AssignmentConflict: the node's settings contradict another member's.
            StoreError: the store does not answer.
        """
        takes = accepts_runs and not self.planner_silent_s
        wanted = replace(self._node, accepts_runs=takes)
        sent_at = self._clock()
        known = self._registered == wanted
        if known and sent_at - self._beaten_at < self._beat_s * BEAT_EARLY:
            return ""
        try:
            pulse = self._store.pulse(self._key)
        except UnknownGroup:
            # The shard list sensor makes it at its first tick.
            self._registered, self._contested = None, False
            return ""
        except StoreError:
            self._observations.lose_sight()
            self._planner.lose_sight()
            raise
        self._timeout_s = pulse.group.timeout_s
        self._beat_s = pulse.group.timeout_s * BEAT_FRACTION_MAX
        if known and wanted in (replace(row, lease_id=wanted.lease_id) for row in pulse.nodes):
            outcome = self._store.beat(self._key, wanted.name, wanted.incarnation)
            if isinstance(outcome, Beaten):
                self._beaten_at = sent_at
                return ""
        if known:
            self._registered = None
        return self._join(pulse, wanted, joins=joins)

    def _join(self, pulse: Pulse, wanted: Node, *, joins: bool) -> str:
        """Register, where nobody alive answers to the name.

        1. The node takes no runs for a while; the store notes it, and its reply is lost.
        2. The node takes runs again, which is what it had said before step 1.
        3. What was said before step 1 is forgotten with it, so that step 2 is sent at all.
        """
        self._observations.see(pulse.nodes, pulse.group.timeout_s)
        displaced = self._displaced(pulse)
        check_member(pulse.group, pulse.nodes, wanted)
        if not joins:
            return ""
        sent_at = self._clock()
        before, self._registered = self._registered, None
        outcome = self._store.register(
            self._key, wanted, observer=str(wanted.name), displaced_lease_id=displaced
        )
        if not isinstance(outcome, Registered):
            return ""
        self._registered, self._contested = wanted, False
        self._beaten_at = sent_at
        if before is None:
            return f"joined group {self._key}"
        taking = "takes runs again" if wanted.accepts_runs else "takes no runs for now"
        return f"{taking} in group {self._key}"

    def _displaced(self, pulse: Pulse) -> int | None:
        """The counter of a dead process that still has the name; None where there is none.

        Raises:
            NodeNameTaken: its counter moved while it was watched.
        """
        name = self._node.name
        row = next((node for node in pulse.nodes if node.name == name), None)
        self._contested = False
        if row is None or not row.member or row.incarnation == self._node.incarnation:
            return None
        self._contested = True
        seen = (row.incarnation, row.lease_id)
        if self._first_seen is None:
            self._first_seen = seen
        elif self._first_seen != seen:
            raise NodeNameTaken(
                f"Another live process answers to node {shown(name)} of group {self._key}: stop "
                "it, or use another name."
            )
        lapsed = self._observations.lapsed(pulse.group.timeout_s).get(name)
        self._contested = lapsed is None
        return lapsed

    def waiting_s(self) -> float:
        """For how long the process that has the name was seen to stand still; 0 where none has."""
        return 0.0 if self.joined else self._observations.unchanged_s(self._node.name)

    def open_shards(self) -> list[ShardId]:
        """The node's shards that a run has open; none where there is no such group.

        Raises:
            StoreError: the store does not answer.
        """
        try:
            rows = self._store.progress(self._key, [self._node.name]).values()
        except UnknownGroup:
            return []
        return [row.shard for row in rows if row.consumer_run]

    def leave(self) -> str:
        """Free all that the node holds at once; what that was.

        Raises:
            StoreError: the store does not answer; the shards are free after the timeout.
        """
        try:
            outcome = self._store.leave(self._key, self._node.name, self._node.incarnation)
        except UnknownGroup:
            return f"found no group {self._key} to leave"
        self._registered = None
        freed = len(outcome.shards) if isinstance(outcome, Changed) else 0
        return f"left group {self._key} and freed {freed} shard{'' if freed == 1 else 's'}"
