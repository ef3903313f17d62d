"""One node in one group, as the process that keeps it alive sees it: join, beat, trust, leave.

All that keep a node alive use a `Member`: the process that rebalances, a node's agent, a run while
it works, and a client. A run and a client beat on the member's thread, so that a process that
hangs stops beating, too.

What the trust window prevents:

1. 0 s: the member sends a beat, and the store counts it.
2. The reply takes 3 s. An observer saw the new counter at 0 s and evicts at T.
3. A member that counted from the reply would trust itself until 3 s + 0.75 T, perhaps beyond T.
4. Counted from before the beat was sent, its trust ends at 0.75 T, always before T.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Self

from dagster_leasehold.lease_store.errors import (
    LeaseholdError,
    NodeNameTaken,
    StoreError,
    UnknownGroup,
    UserMistake,
)
from dagster_leasehold.lease_store.group_rows import (
    BEAT_FRACTION_MAX,
    TRUST_FRACTION,
    AssignmentMode,
    Node,
    Pulse,
    Timing,
    rival_of,
)
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import Beaten, Changed, Registered, Stale
from dagster_leasehold.lease_store.roles.groups import Groups
from dagster_leasehold.lease_store.rules.assignment_plan import check_member
from dagster_leasehold.lease_store.rules.liveness import (
    Clock,
    Observations,
    PlannerWatch,
    steady_clock,
)
from dagster_leasehold.lease_store.rules.refusals import name_taken
from dagster_leasehold.lease_store.shard_rows import Progress

_LOG = logging.getLogger(__name__)
RETRIES_PER_BEAT = 4
PLANNER_SILENT_TIMEOUTS = 2.0
"""After so many timeouts without a tick of its planner a node takes no more shards."""
PLANNER_LATE_TIMEOUTS = 0.5
"""After so much of a timeout without a tick, a node that leaves no longer waits for a plan."""
PLANNER_LOOK_S = 2.0
"""The interval between an agent's reads of the planner's mark; twice that counts at most of one.

Less than half of the time between two ticks, so that all nodes of a deployment whose planner ticks
again take runs before its next tick: a plan made in between would move shards to the first of them.
"""


class Member:
    """A node's place in a group, under one incarnation.

    As a context manager it beats once on entering, repeats that on its thread, and stops on
    leaving: so a run does, which relies on the place that others keep.

    Args:
        settings: the row to register: name, incarnation, address, assignment settings, readiness.
        timing: T and the interval between two beats, until the group's own are known.
        clock: monotonic seconds.
        observer: named in the journal; by default the node itself.
        count: called with the verb of each statement.

    Attributes:
        settings: the row to register; the next round sends a change.
        timeout_s: T, as last seen.
        beat_s: the longest time between two beats, in seconds.
        beaten_at: the moment before the last confirmed beat was sent; None before the first.
        trusted_until: when trust ends unless a beat renews it, on the clock given.
        lost: set once trust has ended; only who knows that its leases continue trusts again.
        reason: the reason why trust ended; empty while it lasts.
        contested: True if another living incarnation had the name when last seen, and before that.
            A run that is started meanwhile is told that incarnation, and its beats keep it alive.
        problem: the mistake that the thread met last, until a beat succeeds.
        followed: True if runs have shards of the node open, and continue without the node's
            planner.
    """

    def __init__(
        self,
        store: Groups,
        key: GroupKey,
        settings: Node,
        timing: Timing | None = None,
        clock: Clock = steady_clock,
        *,
        observer: str = "",
        count: Callable[[str], None] = lambda _: None,
    ) -> None:
        timing = timing or Timing()
        self.store = store
        self.key = key
        self.settings = replace(settings, lease_id=0)
        self.clock = clock
        self.timeout_s = timing.timeout_s
        self.beat_s = timing.beat_s
        self.beaten_at: float | None = None
        self.trusted_until = float("-inf")
        self.lost = threading.Event()
        self.reason = ""
        self.contested = True
        self.problem: UserMistake | None = None
        self.followed = False
        self._observer = observer or str(settings.name)
        self._count = count
        self._asked_at: float | None = None
        self._observations = Observations(clock)
        self._planner = PlannerWatch(clock, 2 * PLANNER_LOOK_S)
        self._first_rival: tuple[str, int] | None = None
        self._registered: Node | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def node(self) -> NodeName:
        """The member's name."""
        return self.settings.name

    @property
    def incarnation(self) -> str:
        """Tells apart the processes that answer to the name; each has a new one."""
        return self.settings.incarnation

    def offer(self, settings: Node) -> None:
        """Change the row to register; the next round sends it."""
        self.settings = replace(settings, name=self.node, lease_id=0, incarnation=self.incarnation)

    def rival(self, nodes: Iterable[Node]) -> Node | None:
        """Return the row of another incarnation that answers to the name; None if none does."""
        return rival_of(self.node, self.incarnation, nodes)

    def _in_place(self, nodes: Iterable[Node]) -> bool:
        """Return True if a row says of the node all that is to be said of it."""
        return any(replace(row, lease_id=0) == self.settings for row in nodes)

    # -- beats and trust --------------------------------------------------------------------------

    def beat(self) -> bool:
        """Beat once; False if the incarnation does not answer to the name any longer.

        Raises:
            StoreError: the store does not answer; the beat might have been counted.
        """
        sent_at = self.clock()
        self._count("beat")
        if not isinstance(self.store.beat(self.key, self.node, self.incarnation), Beaten):
            return False
        self.beaten_at = sent_at
        return True

    def beat_due(self) -> bool:
        """Return True if the beat would be late if it were left to the next call."""
        now, before = self.clock(), self._asked_at
        self._asked_at = now
        if self.beaten_at is None or before is None:
            return True
        return (now - self.beaten_at) + (now - before) >= self.beat_s

    @property
    def trusted(self) -> bool:
        """True if the node can rely on its leases; once it was False, `lost` is set."""
        if self.lost.is_set():
            return False
        if self.clock() < self.trusted_until:
            return True
        self._lose("no beat was confirmed in time")
        return False

    def extend_trust(self, sent_at: float) -> None:
        """Rely on the leases from when a confirmed beat was sent."""
        self.trusted_until = sent_at + self.timeout_s * TRUST_FRACTION

    def resume_trust(self) -> None:
        """Rely on the last beat, after trust has run out too: the leases continue all the same."""
        if self.beaten_at is not None:
            self.extend_trust(self.beaten_at)
            self.lost.clear()
            self.reason = ""

    def end_trust(self, reason: str) -> None:
        """Rely on nothing until the node has joined again: it has no place in the group now."""
        self._lose(reason)
        self.trusted_until = float("-inf")

    def _lose(self, reason: str) -> None:
        if not self.lost.is_set():
            self.reason = reason
            self.lost.set()

    def renew(self) -> None:
        """Beat for a run: trust continues with a confirmed beat, and does not come back.

        The work that relied on trust that has run out was told to stop.

        Raises:
            StoreError: the store does not answer, which costs no trust by itself.
        """
        if self.lost.is_set():
            return
        try:
            confirmed = self.beat()
        except UserMistake as error:
            self.end_trust(str(error))
            return
        if not confirmed:
            self.end_trust(f"node {self.node} was evicted, or another process answers to its name")
        elif self.beaten_at is not None:
            self.extend_trust(self.beaten_at)

    # -- a thread that beats ----------------------------------------------------------------------

    def attempt(
        self, heartbeat: Callable[[], None] | None = None, *, per_beat: float = 1.0
    ) -> float:
        """Do a heartbeat, or `renew`; return the seconds until the next one is due.

        A store that does not answer is asked again soon. A mistake that only a person can put
        right (the name is taken, the settings contradict another member's) is kept in `problem`,
        and tried again at the usual interval.
        """
        try:
            (heartbeat or self.renew)()
        except UserMistake as error:
            self.problem = error
        except LeaseholdError as error:
            _LOG.warning("The beat of node %s got no answer: %s", self.node, error)
            return self.beat_s / RETRIES_PER_BEAT
        except Exception:
            # An unforeseen error of a driver or a feed must not end the beating.
            _LOG.exception("The beat of node %s failed", self.node)
            return self.beat_s / RETRIES_PER_BEAT
        else:
            self.problem = None
        return self.beat_s / per_beat

    def start(
        self,
        heartbeat: Callable[[], None] | None = None,
        *,
        per_beat: float = 1.0,
        first_s: float | None = None,
    ) -> None:
        """Repeat a heartbeat on a thread until `stop`, so often in each interval between beats."""

        def run() -> None:
            pause_s = self.beat_s / per_beat if first_s is None else first_s
            while not self._stopping.wait(pause_s):
                pause_s = self.attempt(heartbeat, per_beat=per_beat)

        self._stopping.clear()
        name = f"beats-{self.node}"
        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()

    def stop(self, wait_s: float | None = None) -> None:
        """End the thread after its present beat, and wait for that, at most some seconds."""
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None and threading.current_thread() is not thread:
            thread.join(wait_s)

    def __enter__(self) -> Self:
        pause_s = self.beat_s
        # Without a confirmed beat there is nothing to trust, but a single lost reply is no reason
        # to give up a run that has just been started.
        for _ in range(RETRIES_PER_BEAT):
            pause_s = self.attempt()
            if self.lost.is_set() or self.beaten_at is not None:
                break
            self._stopping.wait(pause_s)
        self.start(first_s=pause_s)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(self.beat_s)

    # -- joining and leaving ----------------------------------------------------------------------

    def keep(self, pulse: Pulse, observations: Observations) -> str:
        """Beat if that is due, join, or send changed settings; return the change as a phrase.

        Args:
            pulse: the group, a moment ago.
            observations: of the group's nodes, up to that pulse.

        Raises:
            NodeNameTaken: another live process answers to the name.
            AssignmentConflict: the settings contradict another member's.
            StoreError: the store does not answer; the node might have been registered.
        """
        self.timeout_s = pulse.group.timeout_s
        if not self._in_place(pulse.nodes):
            return self.join(pulse, observations)
        if not self.beat_due() or self.beat():
            return ""
        self.join(pulse, observations)
        return "lost its place in the group, and joined again"

    def join(self, pulse: Pulse, observations: Observations) -> str:
        """Answer to the name, or change the settings; return how, as a phrase.

        A rival whose counter has not moved for longer than the group's timeout is displaced.
        It raises as `keep` does.
        """
        rival, limit_s = self.rival(pulse.nodes), pulse.group.timeout_s
        lapsed = observations.lapsed(limit_s) if rival else {}
        # The store refuses a contradiction, too; one that is found here costs no write.
        check_member(pulse.group, pulse.nodes, self.settings)
        own = (self.node, self.incarnation)
        how = "joined"
        if self.node in lapsed:
            how = "took its name back from a process that stopped"
        elif any((row.name, row.incarnation) == own for row in pulse.nodes):
            how = "changed its settings"
        sent_at = self.clock()
        self._count("register")
        outcome = self.store.register(
            self.key,
            self.settings,
            observer=self._observer,
            displaced_lease_id=lapsed.get(self.node),
        )
        if not isinstance(outcome, Registered):
            note = (
                f"Its beat has not moved for {observations.unchanged_s(self.node):.0f} s; after "
                f"{limit_s:g} s the name is taken over."
            )
            raise name_taken(self.key, self.node, note)
        self.beaten_at = sent_at
        return how

    def progress(self) -> list[Progress]:
        """Return checkpoint and tenure of the member's shards."""
        self._count("progress")
        return list(self.store.progress(self.key, [self.node]).values())

    def leave(self) -> Changed | Stale:
        """Release all that the member holds at once, and give up its name."""
        self._count("leave")
        outcome = self.store.leave(self.key, self.node, self.incarnation)
        self._registered = None
        return outcome

    def resign(self) -> Changed | Stale | None:
        """Leave a group whose members contradict the node's own settings; None if it works.

        Of two nodes that changed their source_count, each would else be refused for ever, because
        the other is a member with the old one. It leaves once its runs have ended.
        """
        if any(each.consumer_run for each in self.progress()):
            return None
        return self.leave()

    # -- a member of its own, without a rebalancer ------------------------------------------------

    @property
    def joined(self) -> bool:
        """True if an agent's node answers to its name, as far as this process can tell."""
        return self._registered is not None

    def keep_alive(self, *, accepts_runs: bool, joins: bool = True) -> str:
        """Join, beat, or tell the group whether the node takes runs; for an agent, each second.

        Return the change as a phrase for people; an empty text if there is none. Where another
        incarnation has the name, the call only watches it, until its counter moves or has stood
        still for the group's timeout; unless the node `joins`, it never does more than that. A node
        whose planner is silent takes no runs unless it is followed: they would not be launched.

        Raises:
            NodeNameTaken: another live process answers to the name.
            AssignmentConflict: the node's settings contradict another member's.
            StoreError: the store does not answer.
        """
        takes = accepts_runs and (self.followed or not self.planner_silent_s)
        self.offer(replace(self.settings, accepts_runs=takes))
        unchanged = self._registered == self.settings
        if unchanged and not self.beat_due():
            return ""
        try:
            # The others' rows are of no use to a node that only beats, and they are as many again
            # for each of them: a thousand nodes would read a million rows in the time of a beat.
            pulse = self.store.pulse(self.key, self.node if unchanged else None)
        except UnknownGroup:
            # The step `shard_list` makes it at its first tick.
            self._registered, self.contested = None, False
            return ""
        except StoreError:
            self._observations.lose_sight()
            self._planner.lose_sight()
            raise
        self.timeout_s = pulse.group.timeout_s
        self.beat_s = self.timeout_s * BEAT_FRACTION_MAX
        if not unchanged:
            return self._join_alone(pulse, joins=joins)
        if self._in_place(pulse.nodes) and self.beat():
            self.resume_trust()
            return ""
        self._registered = None
        return self.keep_alive(accepts_runs=accepts_runs, joins=joins)

    def _join_alone(self, pulse: Pulse, *, joins: bool) -> str:
        """Register, if no living process answers to the name.

        1. The node takes no runs for a while; the store notes it, and its reply is lost.
        2. The node takes runs again, as it had told the store before step 1.
        3. What it had told before step 1 is forgotten with it, so that step 2 is sent at all.
        """
        self._observations.see(pulse.nodes, pulse.group.timeout_s)
        self._watch_rival(pulse)
        check_member(pulse.group, pulse.nodes, self.settings)
        if not joins:
            return ""
        before, self._registered = self._registered, None
        try:
            self.join(pulse, self._observations)
        except NodeNameTaken:
            return ""
        self._registered, self.contested = self.settings, False
        self.resume_trust()
        if before is None:
            return f"joined group {self.key}"
        taking = "takes runs again" if self.settings.accepts_runs else "takes no runs for now"
        return f"{taking} in group {self.key}"

    def _watch_rival(self, pulse: Pulse) -> None:
        """Check whether another process that has the name lives.

        Raises:
            NodeNameTaken: its counter moved while it was watched.
        """
        rival = self.rival(pulse.nodes)
        self.contested = rival is not None
        if rival is None:
            return
        seen = (rival.incarnation, rival.lease_id)
        if self._first_rival is None:
            self._first_rival = seen
        elif self._first_rival != seen:
            raise name_taken(self.key, rival.name)
        self.contested = rival.name not in self._observations.lapsed(pulse.group.timeout_s)

    def see_planner(self, mark: str | None) -> None:
        """Record the mark that the last tick of the node's planner left (`PlannerWatch.see`)."""
        self._planner.see(mark)

    @property
    def planner_silent_s(self) -> float:
        """The seconds that the planner has been silent, if that is too long; 0 otherwise."""
        silent_s = self._planner.silent_s
        return silent_s if silent_s > PLANNER_SILENT_TIMEOUTS * self.timeout_s else 0.0

    def open_shards(self) -> list[ShardId]:
        """Return the node's shards that a run has open; none if there is no such group.

        Raises:
            StoreError: the store does not answer.
        """
        try:
            return [row.shard for row in self.progress() if row.consumer_run]
        except UnknownGroup:
            return []

    def hands_over(self) -> bool:
        """Return True while other nodes are still to get shards of this one, which takes no runs.

        It is False if they would not be taken: no other node takes runs, no process plans, or the
        group is paused or says by name which node has what.

        Raises:
            StoreError: the store does not answer.
        """
        late = self._planner.silent_s > PLANNER_LATE_TIMEOUTS * self.timeout_s
        try:
            if not self.joined or late or not self.progress():
                return False
            pulse = self.store.pulse(self.key)
        except UnknownGroup:
            return False
        if pulse.group.paused or pulse.group.assignment is not AssignmentMode.BALANCED:
            return False
        others = (node for node in pulse.nodes if node.name != self.node)
        return any(node.member and node.accepts_runs for node in others)
