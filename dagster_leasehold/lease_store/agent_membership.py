"""A node's membership in one consumer group, as the node's agent keeps it.

The owners of shards are planned elsewhere; the agent only says that the node lives, and whether it
takes runs.
"""

from __future__ import annotations

from dataclasses import replace

from dagster_leasehold.lease_store import group_rows
from dagster_leasehold.lease_store.errors import StoreError, UnknownGroup
from dagster_leasehold.lease_store.group_rows import AssignmentMode
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.membership import Membership
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.rules.assignment_modes import check_member
from dagster_leasehold.lease_store.rules.liveness import Clock, Observations, PlannerWatch
from dagster_leasehold.lease_store.rules.refusals import name_taken
from dagster_leasehold.lease_store.rules.registration import same_but_counter
from dagster_leasehold.lease_store.store import GroupsAndNodes

BEAT_EARLY = 0.7
"""A beat is sent after this part of its interval, because the caller's rounds take time, too."""
PLANNER_SILENT_TIMEOUTS = 2.0
"""After so many timeouts without a tick of its planner a node takes no more shards."""
PLANNER_LATE_TIMEOUTS = 0.5
"""After so much of a timeout without a tick, a node that leaves waits for no plan any more."""
PLANNER_LOOK_S = 2.0
"""The interval of the caller's looks for the planner's mark; twice that counts at most of one.

Less than half of the time between two ticks, so that all nodes of a deployment whose planner ticks
again take runs before its next tick: a plan made in between would move shards to the first of them.
"""


class AgentMembership:
    """One group of a node that an agent keeps alive; `keep` is to be called about every second.

    Args:
        node: the row to register: name, incarnation, address and assignment settings.
        clock: monotonic seconds.
    """

    def __init__(
        self, store: GroupsAndNodes, key: GroupKey, node: group_rows.Node, clock: Clock
    ) -> None:
        self._store = store
        self._key = key
        self._settings = node
        self._member = Membership(store, key, node.name, node.incarnation, clock)
        self._clock = clock
        self._observations = Observations(clock)
        self._planner = PlannerWatch(clock, 2 * PLANNER_LOOK_S)
        self._timeout_s = group_rows.TIMEOUT_DEFAULT_S
        self._first_seen: tuple[str, int] | None = None
        self._registered: group_rows.Node | None = None
        self._contested = True

    @property
    def contested(self) -> bool:
        """True if another living incarnation had the name when last seen; True before that.

        A run that is started meanwhile is told that incarnation, and its beats keep it alive.
        """
        return self._contested

    @property
    def joined(self) -> bool:
        """True if the node answers to its name, as far as this process can tell."""
        return self._registered is not None

    @property
    def key(self) -> GroupKey:
        """The group."""
        return self._key

    @property
    def planner_silent_s(self) -> float:
        """The seconds for which the planner has been silent, if that is too long; 0 otherwise."""
        silent_s = self._planner.silent_s
        return silent_s if silent_s > PLANNER_SILENT_TIMEOUTS * self._timeout_s else 0.0

    @property
    def trusted(self) -> bool:
        """True if the node is a member whose last beat is recent enough to rely on."""
        beaten_at = self._member.beaten_at
        trust_s = self._timeout_s * group_rows.TRUST_FRACTION
        return self.joined and beaten_at is not None and self._clock() - beaten_at < trust_s

    def see_planner(self, mark: str | None) -> None:
        """Take note of the mark that the last tick of the node's planner left.

        `PlannerWatch.see` says what the absence of a mark means.
        """
        self._planner.see(mark)

    def keep(self, *, accepts_runs: bool, joins: bool = True) -> str:
        """Join, beat, or tell the group whether the node takes runs.

        Return the change as a phrase for people; an empty text if there is none. Where another
        incarnation has the name, the call only watches it, until its counter moves or has stood
        still for the group's timeout; unless the node `joins`, it never does more than that. A node
        whose planner is silent takes no runs: nobody would launch them.

        Raises:
            NodeNameTaken: another live process answers to the name.
            AssignmentConflict: the node's settings contradict another member's.
            StoreError: the store does not answer.
        """
        takes = accepts_runs and not self.planner_silent_s
        wanted = self._member.row(replace(self._settings, accepts_runs=takes))
        unchanged = self._registered == wanted
        if unchanged and not self._beat_due():
            return ""
        try:
            # The others' rows are of no use to a node that only beats, and they are as many again
            # for each of them: a thousand nodes would read a million rows in the time of a beat.
            pulse = self._store.pulse(self._key, self._settings.name if unchanged else None)
        except UnknownGroup:
            # The shard list sensor makes it at its first tick.
            self._registered, self._contested = None, False
            return ""
        except StoreError:
            self._observations.lose_sight()
            self._planner.lose_sight()
            raise
        self._timeout_s = pulse.group.timeout_s
        if unchanged:
            if any(same_but_counter(row, wanted) for row in pulse.nodes) and self._member.beat():
                return ""
            self._registered = None
            return self.keep(accepts_runs=accepts_runs, joins=joins)
        return self._join(pulse, wanted, joins=joins)

    def _beat_due(self) -> bool:
        beaten_at = self._member.beaten_at
        beat_s = self._timeout_s * group_rows.BEAT_FRACTION_MAX
        return beaten_at is None or self._clock() - beaten_at >= beat_s * BEAT_EARLY

    def _join(self, pulse: group_rows.Pulse, wanted: group_rows.Node, *, joins: bool) -> str:
        """Register, if no living process answers to the name.

        1. The node takes no runs for a while; the store notes it, and its reply is lost.
        2. The node takes runs again, as it had told the store before step 1.
        3. What it had told before step 1 is forgotten with it, so that step 2 is sent at all.
        """
        self._observations.see(pulse.nodes, pulse.group.timeout_s)
        self._watch_rival(pulse)
        check_member(pulse.group, pulse.nodes, wanted)
        if not joins:
            return ""
        before, self._registered = self._registered, None
        observer = str(wanted.name)
        if not self._member.register(wanted, pulse, self._observations, observer=observer):
            return ""
        self._registered, self._contested = wanted, False
        if before is None:
            return f"joined group {self._key}"
        taking = "takes runs again" if wanted.accepts_runs else "takes no runs for now"
        return f"{taking} in group {self._key}"

    def _watch_rival(self, pulse: group_rows.Pulse) -> None:
        """Check whether another process that has the name lives.

        Raises:
            NodeNameTaken: its counter moved while it was watched.
        """
        rival = self._member.rival(pulse.nodes)
        self._contested = rival is not None
        if rival is None:
            return
        seen = (rival.incarnation, rival.lease_id)
        if self._first_seen is None:
            self._first_seen = seen
        elif self._first_seen != seen:
            raise name_taken(self._key, rival.name)
        self._contested = rival.name not in self._observations.lapsed(pulse.group.timeout_s)

    def open_shards(self) -> list[ShardId]:
        """Return the node's shards that a run has open; none if there is no such group.

        Raises:
            StoreError: the store does not answer.
        """
        try:
            return [row.shard for row in self._member.progress() if row.consumer_run]
        except UnknownGroup:
            return []

    def hands_over(self) -> bool:
        """Return True while other nodes are still to get shards of this one, which takes no runs.

        It is False where nobody would take them: no other node takes runs, nobody plans, or the
        group is paused or says by name which node has what.

        Raises:
            StoreError: the store does not answer.
        """
        late = self._planner.silent_s > PLANNER_LATE_TIMEOUTS * self._timeout_s
        try:
            if not self.joined or late or not self._member.progress():
                return False
            pulse = self._store.pulse(self._key)
        except UnknownGroup:
            return False
        if pulse.group.paused or pulse.group.assignment is not AssignmentMode.BALANCED:
            return False
        others = (node for node in pulse.nodes if node.name != self._settings.name)
        return any(node.member and node.accepts_runs for node in others)

    def leave(self) -> str:
        """Free all that the node holds at once; return a sentence about that.

        Raises:
            StoreError: the store does not answer; the shards are free after the timeout.
        """
        try:
            outcome = self._member.leave()
        except UnknownGroup:
            return f"found no group {self._key} to leave"
        self._registered = None
        freed = len(outcome.shards) if isinstance(outcome, Changed) else 0
        return f"left group {self._key} and freed {freed} shard{'' if freed == 1 else 's'}"
