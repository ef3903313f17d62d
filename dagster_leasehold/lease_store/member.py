"""A node's membership in one group: join, beat, trust the leases, leave.

Every process that sends a node's heartbeats uses a `Member`: a rebalancer, an agent, a run and a
client. A run and a client send them on a thread, so the heartbeats of a frozen process stop.

Trust counts from before a heartbeat was sent, not from its reply:

1. At 0 s the member sends a heartbeat, and the store records it.
2. The reply takes 3 s. An observer read the new counter at 0 s, and evicts the node at T.
3. If trust counted from the reply, it would last until 3 s + 0.75 T, which can be after T.
4. Counted from before the heartbeat was sent, it ends at 0.75 T, always before T.
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
"""A node stops taking shards after this many timeouts without a tick of its planner."""
PLANNER_LATE_TIMEOUTS = 0.5
"""A leaving node stops waiting for a plan after this part of a timeout without a tick."""
PLANNER_READ_S = 2.0
"""The interval between an agent's reads of the planner's mark, in seconds.

It is less than half of the time between two ticks. So after the planner restarts, all its nodes
take runs before its next tick. Otherwise the tick's plan would move all shards to the first node
that takes runs. Between two reads, at most twice this interval counts as silence.
"""


class Member:
    """A node's membership in a group, under one incarnation.

    As a context manager it beats once on entry, and then on its thread until exit. A run uses it
    this way to renew a membership that another process registered.

    Args:
        settings: the row to register: name, incarnation, address, assignment settings, readiness.
        timing: T and the heartbeat interval, until the group's own are read.
        observer: the name of this process in the journal; by default the node.
        count: called with the operation of each statement.

    Attributes:
        settings: the row to register; the next `keep` or `keep_alive` sends changes.
        timeout_s: T, as last read.
        beat_s: the longest time between two heartbeats, in seconds.
        beaten_at: the time just before the last confirmed heartbeat was sent, or None.
        trusted_until: when trust ends without a further heartbeat, on `clock`.
        lost: set once trust has ended; `resume_trust` clears it.
        reason: why trust ended; empty while it lasts.
        contested: True until a check finds that no other live incarnation has the name. A run
            launched in the meantime would send heartbeats for that incarnation.
        problem: the thread's last user mistake; None after a successful heartbeat.
        followed: True if runs that continue without the planner have shards of the node open.
        cold: True while the node's Spark is starting again.
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
        self.cold = False
        self._waits = False
        self._observer = observer or str(settings.name)
        self._count = count
        self._checked_at: float | None = None
        self._observations = Observations(clock)
        self._planner = PlannerWatch(clock, 2 * PLANNER_READ_S)
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
        """The id of this process among processes of the same node name."""
        return self.settings.incarnation

    def offer(self, settings: Node) -> None:
        """Change the row to register; the next `keep` or `keep_alive` sends it."""
        self.settings = replace(settings, name=self.node, lease_id=0, incarnation=self.incarnation)

    def rival(self, nodes: Iterable[Node]) -> Node | None:
        """Return the row of another incarnation that has the node's name, or None."""
        return rival_of(self.node, self.incarnation, nodes)

    def _in_place(self, nodes: Iterable[Node]) -> bool:
        """Return True if the node's row equals `settings`, apart from its counter."""
        return any(replace(row, lease_id=0) == self.settings for row in nodes)

    # -- beats and trust --------------------------------------------------------------------------

    def beat(self) -> bool:
        """Beat once; return False if this incarnation no longer has the node's name.

        Raises:
            StoreError: the store does not answer; it has possibly recorded the heartbeat.
        """
        sent_at = self.clock()
        self._count("beat")
        if not isinstance(self.store.beat(self.key, self.node, self.incarnation), Beaten):
            return False
        self.beaten_at = sent_at
        return True

    def beat_due(self) -> bool:
        """Return True if the heartbeat would be late by the next call, one equal interval later."""
        now, before = self.clock(), self._checked_at
        self._checked_at = now
        if self.beaten_at is None or before is None:
            return True
        return (now - self.beaten_at) + (now - before) >= self.beat_s

    @property
    def trusted(self) -> bool:
        """True if the node can rely on its leases; otherwise `lost` is set."""
        if self.lost.is_set():
            return False
        if self.clock() < self.trusted_until:
            return True
        self._lose("no beat was confirmed in time")
        return False

    def extend_trust(self, sent_at: float) -> None:
        """Trust the leases for the trust window, from when a confirmed heartbeat was sent."""
        self.trusted_until = sent_at + self.timeout_s * TRUST_FRACTION

    def resume_trust(self) -> None:
        """Trust the leases from the last heartbeat, even if trust had ended.

        The caller has checked that the leases continue.
        """
        if self.beaten_at is not None:
            self.extend_trust(self.beaten_at)
            self.lost.clear()
            self.reason = ""

    def end_trust(self, reason: str) -> None:
        """End trust until the node joins again: it is no longer a member."""
        self._lose(reason)
        self.trusted_until = float("-inf")

    def _lose(self, reason: str) -> None:
        if not self.lost.is_set():
            self.reason = reason
            self.lost.set()

    def renew(self) -> None:
        """Beat for a run. Trust that has ended is not restored, because the run is stopping."""
        if self.lost.is_set():
            return
        try:
            confirmed = self.beat()
        except UserMistake as error:
            self.end_trust(str(error))
            return
        if not confirmed:
            self.end_trust(f"node {self.node} was evicted, or another process has its name")
        elif self.beaten_at is not None:
            self.extend_trust(self.beaten_at)

    # -- a thread that beats ----------------------------------------------------------------------

    def attempt(
        self, heartbeat: Callable[[], None] | None = None, *, per_beat: float = 1.0
    ) -> float:
        """Call `heartbeat`, or `renew`; return the pause before the next call, in seconds.

        The pause is short if the store did not answer. A user mistake (the name is taken, the
        settings contradict another member's) is stored in `problem`, and retried after the usual
        pause.
        """
        try:
            (heartbeat or self.renew)()
        except UserMistake as error:
            self.problem = error
        except LeaseholdError as error:
            _LOG.warning("The heartbeat of node %s had no reply: %s", self.node, error)
            return self.beat_s / RETRIES_PER_BEAT
        except Exception:
            # An unexpected error of a driver or a feed must not end the thread.
            _LOG.exception("The heartbeat of node %s failed", self.node)
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
        """Repeat a heartbeat on a thread until `stop`, `per_beat` times in each interval."""

        def run() -> None:
            pause_s = self.beat_s / per_beat if first_s is None else first_s
            while not self._stopping.wait(pause_s):
                pause_s = self.attempt(heartbeat, per_beat=per_beat)

        self._stopping.clear()
        name = f"beats-{self.node}"
        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()

    def stop(self, wait_s: float | None = None) -> None:
        """End the thread after its current heartbeat; wait for it, at most `wait_s` seconds."""
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None and threading.current_thread() is not thread:
            thread.join(wait_s)

    def __enter__(self) -> Self:
        pause_s = self.beat_s
        # A run needs one confirmed heartbeat. A single lost reply must not fail it, so retry.
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
        """Beat if due, join, or send changed settings; return the change as a phrase.

        `pulse` is the group as just read; `observations` include it.

        Raises:
            NodeNameTaken: another live process has the name.
            AssignmentConflict: the settings contradict another member's.
            StoreError: the store does not answer; it has possibly registered the node.
        """
        self.timeout_s = pulse.group.timeout_s
        if not self._in_place(pulse.nodes):
            return self.join(pulse, observations)
        if not self.beat_due() or self.beat():
            return ""
        self.join(pulse, observations)
        return "lost its place in the group, and joined again"

    def join(self, pulse: Pulse, observations: Observations) -> str:
        """Register the node or its changed settings; return the change as a phrase.

        An incarnation whose counter has not moved for the group's timeout is displaced. Raises as
        `keep`.
        """
        rival, limit_s = self.rival(pulse.nodes), pulse.group.timeout_s
        lapsed = observations.lapsed(limit_s) if rival else {}
        # The store checks this too; checking first saves a write.
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
                f"Its counter has not moved for {observations.unchanged_s(self.node):.0f} s; after "
                f"{limit_s:g} s the name is taken over."
            )
            raise name_taken(self.key, self.node, note)
        self.beaten_at = sent_at
        return how

    def progress(self) -> list[Progress]:
        """Return the checkpoints and tenures of the member's shards."""
        self._count("progress")
        return list(self.store.progress(self.key, [self.node]).values())

    def leave(self) -> Changed | Stale:
        """Release the member's shards and its name."""
        self._count("leave")
        outcome = self.store.leave(self.key, self.node, self.incarnation)
        self._registered = None
        return outcome

    def resign(self) -> Changed | Stale | None:
        """Leave a group that contradicts this node's settings; return None while runs are open.

        Otherwise two nodes that change their source_count, and stay members with the old one,
        would refuse each other forever.
        """
        if any(each.consumer_run for each in self.progress()):
            return None
        return self.leave()

    # -- an agent's member, without a rebalancer --------------------------------------------------

    @property
    def joined(self) -> bool:
        """True if `keep_alive` has registered the node, and it has not lost its name since."""
        return self._registered is not None

    def keep_alive(self, *, accepts_runs: bool, joins: bool = True) -> str:
        """Join, beat, or register whether the node takes runs; an agent calls this every second.

        It returns the change as a phrase, or an empty text. While another incarnation has the
        name, the call only watches its counter, until the counter moves or has not moved for the
        group's timeout. Unless the node `joins`, nothing is registered. A node whose planner is
        silent takes no runs unless it is `followed`, because no process would launch them. A
        `cold` node takes none while all other nodes take runs: they commit its shards sooner.
        Raises as `keep`.
        """
        due = self.beat_due()
        try:
            if not self.cold:
                self._waits = False
            elif due or not self.joined:
                others = self._possible_successors()
                self._waits = bool(others) and all(node.accepts_runs for node in others)
            followed = self.followed or not self.planner_silent_s
            takes = accepts_runs and followed and not self._waits
            self.offer(replace(self.settings, accepts_runs=takes))
            unchanged = self._registered == self.settings
            if unchanged and not due:
                return ""
            # A heartbeat reads only the node's own row. Otherwise a thousand nodes would read a
            # million rows in each interval.
            pulse = self.store.pulse(self.key, self.node if unchanged else None)
        except UnknownGroup:
            # The step `shard_list` creates the group at its first tick.
            self._registered, self.contested = None, False
            return ""
        except StoreError:
            self._observations.record_failed_read()
            self._planner.record_failed_read()
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
        """Register the node, unless another live process has its name.

        `_registered` is cleared before the write. Otherwise:

        1. The node stops taking runs. The store records it, but the reply is lost.
        2. The node takes runs again. Its settings equal the last registered ones, so it sends
           nothing, and the store still records that it takes no runs.
        """
        self._observations.record_nodes(pulse.nodes, pulse.group.timeout_s)
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
        """Raise NodeNameTaken if the counter of another process of this name has moved."""
        rival = self.rival(pulse.nodes)
        self.contested = rival is not None
        if rival is None:
            return
        state = (rival.incarnation, rival.lease_id)
        if self._first_rival is None:
            self._first_rival = state
        elif self._first_rival != state:
            raise name_taken(self.key, rival.name)
        self.contested = rival.name not in self._observations.lapsed(pulse.group.timeout_s)

    def record_planner_mark(self, mark: str | None) -> None:
        """Record the mark of the planner's last tick; see `PlannerWatch.record_mark`."""
        self._planner.record_mark(mark)

    @property
    def planner_silent_s(self) -> float:
        """The planner's silence in seconds, if it is too long; otherwise 0."""
        silent_s = self._planner.silent_s
        return silent_s if silent_s > PLANNER_SILENT_TIMEOUTS * self.timeout_s else 0.0

    def open_shards(self) -> list[ShardId]:
        """Return the node's shards that a run has open; empty if the group does not exist."""
        try:
            return [row.shard for row in self.progress() if row.consumer_run]
        except UnknownGroup:
            return []

    def has_shards_to_transfer(self) -> bool:
        """Return True while this node, which takes no runs, has shards to transfer.

        It is False if no other node takes runs, if no process plans, if the group is paused, or if
        its nodes' settings determine the assignment.
        """
        late = self._planner.silent_s > PLANNER_LATE_TIMEOUTS * self.timeout_s
        try:
            if not self.joined or late or not self.progress():
                return False
            return any(node.accepts_runs for node in self._possible_successors())
        except UnknownGroup:
            return False

    def _possible_successors(self) -> list[Node]:
        """Return the other members if the group transfers shards between them."""
        pulse = self.store.pulse(self.key)
        if pulse.group.paused or pulse.group.assignment is not AssignmentMode.BALANCED:
            return []
        return [node for node in pulse.nodes if node.member and node.name != self.node]
