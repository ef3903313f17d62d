"""Rebalancing: observe, evict dead nodes, plan, and carry out what concerns the served nodes.

Every process of a group does this on its own, without a leader. A move is carried out by the
process that serves the node that gains the shard. So each move has exactly one executor, and a
deployment that does not run cannot be given shards that no run would consume.

A shard weighs its records per second, by the ledger. Weights are coarse, so that they seldom
change. Times come from the ledger's rows, compared only with one another: they shape how much
each node gets, never which one may publish.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import frexp, ldexp
from typing import TypeVar

from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import (
    AssignmentConflict,
    NodeNameTaken,
    OutcomeUnknown,
    StoreError,
)
from dagster_leasehold.lease_store.group_rows import Node, Pulse, Snapshot, Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Throughput
from dagster_leasehold.lease_store.member import Member
from dagster_leasehold.lease_store.outcomes import Changed, Stale
from dagster_leasehold.lease_store.rules import assignment_plan as plans
from dagster_leasehold.lease_store.rules.assignment_plan import (
    SHOWN_SHARDS_MAX,
    Plan,
    Refusal,
    listed,
    rank_key,
)
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.liveness import (
    Clock,
    Observations,
    handoff_deadline_s,
    recall_incarnations,
    steady_clock,
)
from dagster_leasehold.lease_store.rules.planning import orphans, plan
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import Progress, ShardLease
from dagster_leasehold.lease_store.store import GroupsAndLedger, LeaseStore

SPAN_MIN_S = 1.0
WEIGHT_MIN = 1.0
WEIGHT_RATIO_MAX = 64.0
MANTISSA_STEPS = 8
WEIGHING_S = 60.0
"""The time that a plan by load relies on the weights that it was made with, in seconds."""

TRANSFERS_PER_STEP = 500
"""The most transfers that one call begins: after these, the next beat of a node can be due."""
ROUNDS_MAX = 4

Answer = TypeVar("Answer")


def planning_snapshot(store: GroupsAndLedger, key: GroupKey) -> Snapshot:
    """Return a snapshot to plan from: with weights, if the group wants its load levelled.

    Raises:
        UnknownGroup: there is no such group.
        StoreUnavailable: the store does not answer.
    """
    snapshot = store.snapshot(key)
    if not snapshot.group.weighted:
        return snapshot
    return replace(snapshot, weights=learned_weights(store.throughput(key)))


@dataclass(slots=True)
class SnapshotMemory:
    """The last snapshot of a group, which is read again only once it has changed.

    Attributes:
        clock: monotonic seconds.
        count: called with the verb of each statement.
    """

    store: GroupsAndLedger
    key: GroupKey
    clock: Callable[[], float]
    count: Callable[[str], None]
    _snapshot: Snapshot | None = None
    _read_at: float = 0.0

    def forget(self) -> None:
        """Read the group again next time: it might have changed unseen."""
        self._snapshot = None

    def at(self, generation: int | None) -> tuple[Snapshot, bool]:
        """Return the group as of a generation, and True if it was read just now.

        Raises:
            UnknownGroup: there is no such group.
            StoreUnavailable: the store does not answer.
        """
        snapshot = self._snapshot
        # Weights change without a new generation.
        recent = self.clock() - self._read_at < WEIGHING_S
        if (
            snapshot is not None
            and snapshot.group.generation == generation
            and (recent or not snapshot.group.weighted)
        ):
            return snapshot, False
        self.count("snapshot")
        snapshot = self._snapshot = planning_snapshot(self.store, self.key)
        self._read_at = self.clock()
        if snapshot.group.weighted:
            self.count("throughput")
        return snapshot, True


def learned_weights(throughputs: Iterable[Throughput]) -> dict[ShardId, float]:
    """Return the records per second of each shard, rounded to three binary digits.

    A shard's rate is counted up to the newest commit of the whole group: one that has fallen
    silent gets lighter while others continue. A shard with one batch only has no rate yet. No shard
    weighs less than one record per second, or than a 64th of the heaviest: looking after an idle
    shard costs something, too.
    """
    rows = [row for row in throughputs if row.batches > 1]
    if not rows:
        return {}
    newest = max(row.last_at for row in rows)
    rates: dict[ShardId, float] = {}
    for row in rows:
        # The oldest batch only marks the start of the interval: its records came before it.
        records = row.records * (row.batches - 1) / row.batches
        rates[row.shard] = records / max((newest - row.first_at).total_seconds(), SPAN_MIN_S)
    floor = max(WEIGHT_MIN, max(map(quantised, rates.values())) / WEIGHT_RATIO_MAX)
    return {shard: max(floor, quantised(rate)) for shard, rate in rates.items()}


def quantised(rate: float) -> float:
    """Return the nearest number with three binary digits: sums of such are exact, in any order."""
    mantissa, exponent = frexp(rate)
    return ldexp(round(mantissa * MANTISSA_STEPS) / MANTISSA_STEPS, exponent)


@dataclass(slots=True)
class TickNotes:
    """The current tick's decisions, refusals and statements, collected for its report.

    Attributes:
        decisions: one line for each thing that was decided, with its reason.
        refusals: served nodes that could not join, and why.
        statements: the number of statements, by verb.
    """

    decisions: list[str] = field(default_factory=list[str])
    refusals: list[Refusal] = field(default_factory=list[Refusal])
    statements: Counter[str] = field(default_factory=Counter[str])

    def begin(self) -> None:
        """Begin a tick: nothing is noted yet."""
        self.decisions, self.refusals, self.statements = [], [], Counter()

    def count(self, verb: str) -> None:
        """Count a statement."""
        self.statements[verb] += 1

    def decide(self, line: str) -> None:
        """Note a decision."""
        self.decisions.append(line)


@dataclass(frozen=True, slots=True)
class TickReport:
    """The outcome of `Rebalancer.tick`.

    Attributes:
        remembered: text to give to the next tick; a new process continues from it.
        decisions: one line for each thing that was decided, with its reason; empty when idle.
        owned: for each served node, the shards that it may consume now.
        progress: checkpoint and tenure of each of those shards.
        snapshot: the group as the tick left it.
        live: the members that are not judged dead.
        plan: the plan of the last round; its actions for other deployments' nodes included.
        rounds: the number of planning rounds that this tick needed.
        refusals: served nodes that could not join, and why.
        statements: the number of statements that the tick sent, by verb.
        troubles: one line for each step that failed; the others were taken.
    """

    remembered: str
    decisions: tuple[str, ...]
    owned: dict[NodeName, tuple[ShardId, ...]]
    progress: dict[ShardId, Progress]
    snapshot: Snapshot
    live: frozenset[NodeName]
    plan: Plan
    rounds: int = 0
    refusals: tuple[Refusal, ...] = ()
    statements: Counter[str] = field(default_factory=Counter[str])
    troubles: tuple[str, ...] = ()

    @property
    def generation(self) -> int:
        """The group's generation after the tick."""
        return self.snapshot.group.generation

    def has_member(self, node: NodeName, incarnation: str) -> bool:
        """Return True if this incarnation answers to the node's name."""
        rows = self.snapshot.nodes
        return any((row.name, row.incarnation) == (node, incarnation) for row in rows)

    def ready(self, node: NodeName) -> tuple[ShardId, ...]:
        """Return the shards that a served node may work on; none while the group is paused.

        One that its source lets no consumer read stays assigned, and is given up until that
        changes.
        """
        if self.snapshot.group.paused:
            return ()
        readable = {
            row.shard
            for row in self.snapshot.shards
            if row.state is ShardState.ALREADY_ALLOC and row.subscribable
        }
        return tuple(shard for shard in self.owned.get(node, ()) if shard in readable)

    @property
    def explanation(self) -> str:
        """One line: the decisions with their reasons, or that there were none, and the refusals."""
        refused = [*(str(refusal) for refusal in self.plan.refusals), *self.troubles]
        if self.decisions:
            return "; ".join([*self.decisions, *refused])
        idle = f"nothing to change at generation {self.generation}: {self.plan.summary}"
        return "; ".join([idle, *refused])


@dataclass(frozen=True, slots=True)
class PlanSteps:
    """Carries out a plan, shard by shard.

    Each raises `StoreError` at the second step in a row that the store did not answer, and where
    the outcome of a move is unknown.

    Attributes:
        observer: named in the journal.
        steps: the steps that failed, and when each is due again.
        notes: of the present tick.
    """

    store: LeaseStore
    key: GroupKey
    observer: str
    steps: FailingSteps
    notes: TickNotes

    def carry_out(
        self, actions: Sequence[plans.Action], summary: str, *, late: Callable[[], bool]
    ) -> bool:
        """Try all moves of a plan, claims first; True if the store was asked for anything.

        Once it is `late`, the rest waits for the next tick.
        """
        asked = self.claim(
            [action for action in actions if isinstance(action, plans.Claim)], summary
        )
        transfers = [action for action in actions if isinstance(action, plans.BeginTransfer)]
        # Those to one node together: the store writes rows that change alike at once.
        transfers.sort(key=lambda transfer: rank_key(transfer.to))
        cancels = [action for action in actions if isinstance(action, plans.CancelTransfer)]
        moves, lines, done = len(transfers) + len(cancels), list[str](), 0
        while done < moves and not (done and late()):
            part = transfers[done : done + TRANSFERS_PER_STEP]
            lines += self._transfer(part) if part else self._cancel(cancels[done - len(transfers)])
            done += len(part) or 1
        for line in lines[:SHOWN_SHARDS_MAX]:
            self.notes.decide(line)
        if done > SHOWN_SHARDS_MAX:
            self.notes.decide(f"and {done - SHOWN_SHARDS_MAX} further moves alike")
        if done < moves:
            self.notes.decide(f"{moves - done} moves are left to the next tick")
        return asked or bool(lines) or done < moves

    def claim(self, claims: list[plans.Claim], summary: str) -> bool:
        """Claim free shards, all in one statement where that works; True if any was asked for."""
        if not claims:
            return False

        def claimed(some: list[plans.Claim]) -> Mapping[ShardId, Changed | Stale]:
            self.notes.count("claim")
            return self.store.claim(
                self.key,
                {each.shard: (each.node, each.seen_lease_id) for each in some},
                observer=self.observer,
                reason=f"it was free; {summary}",
            )

        by_step = {f"claiming shard {each.shard}": each for each in claims}
        answers = self.steps.attempt_all(by_step, claimed, raises=(OutcomeUnknown,))
        outcomes = {shard: outcome for answer in answers for shard, outcome in answer.items()}
        failpoints.reach("after_claim")
        by_node: dict[NodeName, list[ShardId]] = {}
        for each in claims:
            if each.shard in outcomes:
                by_node.setdefault(each.node, []).append(each.shard)
        for node in sorted(by_node, key=rank_key):
            asked = by_node[node]
            won = tuple(shard for shard in asked if isinstance(outcomes[shard], Changed))
            if won:
                self.notes.decide(f"{node} claimed {listed(won)}: {summary}")
            if len(won) < len(asked):
                self.notes.decide(f"{len(asked) - len(won)} claims of {node} came too late")
        return bool(answers)

    def _transfer(self, transfers: Sequence[plans.BeginTransfer]) -> list[str]:
        """Begin transfers, all at once where that works; return a line for each that was tried."""

        def begun(some: list[plans.BeginTransfer]) -> Mapping[ShardId, Changed | Stale]:
            self.notes.count("begin_transfer")
            return self.store.begin_transfer(
                self.key,
                {each.shard: (each.to, each.seen_lease_id, each.reason) for each in some},
                observer=self.observer,
            )

        by_step = {f"shard {each.shard}": each for each in transfers}
        answers = self.steps.attempt_all(by_step, begun, raises=(OutcomeUnknown,))
        outcomes = {shard: outcome for answer in answers for shard, outcome in answer.items()}
        return [_line(each, outcomes[each.shard]) for each in transfers if each.shard in outcomes]

    def _cancel(self, action: plans.CancelTransfer) -> list[str]:
        def cancelled() -> Changed | Stale:
            self.notes.count("cancel_transfer")
            return self.store.cancel_transfer(
                self.key, action.shard, action.seen_lease_id,
                observer=self.observer, reason=action.reason,
            )  # fmt: skip

        outcome = self._alone(action.shard, cancelled)
        return [] if outcome is None else [_line(action, outcome)]

    def complete(self, lease: ShardLease, *, waited_s: float, limit_s: float) -> bool:
        """Take over a shard whose holder let the deadline pass; True if that was tried."""
        reason = f"{lease.consumer_owner} did not release it in {waited_s:.1f} s of {limit_s:g} s"
        outcome = self._alone(lease.shard, partial(self._complete, lease, reason))
        if isinstance(outcome, Changed):
            self.notes.decide(f"{lease.lease_owner} took over {lease.shard}: {reason}")
        return outcome is not None

    def _complete(self, lease: ShardLease, reason: str) -> Changed | Stale:
        self.notes.count("complete_transfer")
        return self.store.complete_transfer(
            self.key, lease.shard, lease.lease_id, observer=self.observer, reason=reason
        )

    def free_orphans(self, orphans: list[str]) -> bool:
        """Free shards that only the store can reach, each with its reason; True if it did."""
        freed = self.steps.attempt(
            "freeing orphans", self._free_orphans, None, raises=(OutcomeUnknown,)
        )
        if freed is not None:
            self.notes.decide(f"freed {len(orphans)} orphans: {orphans[0]}")
        return freed is not None

    def _free_orphans(self) -> Changed:
        self.notes.count("free_orphans")
        return self.store.free_orphans(self.key, observer=self.observer)

    def evict(self, node: NodeName, seen_lease_id: int, reason: str) -> bool:
        """Evict a node whose counter still has the value seen; True if that succeeded."""
        evict = partial(self._evict, node, seen_lease_id, reason)
        return self.steps.attempt(f"evicting node {node}", evict, False)

    def _evict(self, node: NodeName, seen_lease_id: int, reason: str) -> bool:
        self.notes.count("evict")
        outcome = self.store.evict(
            self.key, node, seen_lease_id, observer=self.observer, reason=reason
        )
        if isinstance(outcome, Changed):
            self.notes.decide(f"evicted {node} ({reason}), freed {listed(outcome.shards)}")
        return isinstance(outcome, Changed)

    def _alone(self, shard: ShardId, step: Callable[[], Answer]) -> Answer | None:
        return self.steps.attempt(f"shard {shard}", step, None, raises=(OutcomeUnknown,))


def _line(action: plans.Action, outcome: Changed | Stale) -> str:
    return str(action) if isinstance(outcome, Changed) else f"{action} (came too late)"


class Rebalancer:
    """Rebalances one group for the nodes that this process serves; one tick at a time.

    An object lives as long as its process and remembers between ticks. What a successor must
    know travels as text: each tick returns it, and the first tick of a new object takes it.

    Args:
        serves: the nodes whose moves this process carries out.
        timing: the beat interval of the served nodes; T itself is the group's.
        clock: monotonic seconds.
        observer: named in the journal.
        incarnation_of: makes a new incarnation for a node that has none to continue with.
        members: served nodes that their caller has made members of already.
        beats: True if this process keeps the served nodes alive; False where agents do.
        settings: assignment settings, address and readiness to register the nodes with.
        place: of this process (`process_identity`); only there a successor keeps its incarnations.
        serving: where agents beat: picks the served nodes from the group's at every tick, so that
            a node that joins or leaves is served or not from then on.
        neighbour_only: True for a process that plans for one node beside others that plan: of the
            others' beats it watches the beats of the node after its own, in the order of their
            names, and it reads the progress of its shards where the group has changed. So the
            planning of a thousand nodes does not read a million rows in the time of a beat.
    """

    def __init__(
        self,
        store: LeaseStore,
        key: GroupKey,
        *,
        serves: tuple[NodeName, ...],
        timing: Timing,
        observer: str,
        incarnation_of: Callable[[NodeName], str],
        clock: Clock = steady_clock,
        beats: bool = True,
        settings: Mapping[NodeName, Node] | None = None,
        place: str = "",
        serving: Callable[[Iterable[Node]], tuple[NodeName, ...]] | None = None,
        members: Iterable[Member] = (),
        neighbour_only: bool = False,
    ) -> None:
        self._store = store
        self._key = key
        self._serves = serves
        self._timing = timing
        self._observer = observer
        self._settings = dict(settings or {})
        self._clock = clock
        self._incarnation_of = incarnation_of
        self._beats = beats
        self._place = place
        self._serving = serving
        self._steps = FailingSteps(clock)
        self._notes = TickNotes()
        self._observations: Observations | None = None
        self._snapshots = SnapshotMemory(store, key, clock, self._notes.count)
        self._planned: tuple[Snapshot, frozenset[NodeName], Plan, list[str]] | None = None
        self._next_beat_at = 0.0
        self._neighbour_only = neighbour_only
        self._progress: tuple[Snapshot, dict[ShardId, Progress]] | None = None
        self._members = {member.node: member for member in members}
        self._execution = PlanSteps(store, key, observer, self._steps, self._notes)

    @property
    def incarnations(self) -> Mapping[NodeName, str]:
        """The incarnation of each served node; set by the first tick."""
        return {name: member.incarnation for name, member in self._members.items()}

    def offer(self, node: Node) -> None:
        """Change the settings that a served node registers with; the next tick sends them."""
        self._settings[node.name] = node
        if (member := self._members.get(node.name)) is not None:
            member.offer(node)

    def tick(self, remembered: str = "") -> TickReport:
        """Do all that is due, and report each step and its reason.

        An idle tick is three statements with one served node: the pulse, its beat and the
        progress of its shards.

        Raises:
            StoreError: the store does not answer; earlier observations stay.
            UnknownGroup: there is no such group.
        """
        self._notes.begin()
        self._steps.begin()
        self._next_beat_at = self._clock() + self._timing.beat_s
        observations = self._recall(remembered)
        self._notes.count("pulse")
        try:
            pulse = self._store.pulse(self._key, self._neighbour())
            observations.see(pulse.nodes, pulse.group.timeout_s)
            if self._serving is not None:
                self._serves = self._serving(pulse.nodes)
            moved = self._keep_alive(pulse, observations)
            failpoints.reach("after_beat")
            moved = self._evict_lapsed(pulse, observations) or moved
            snapshot, rounds, final = self._settle(pulse, observations, moved=moved)
            progress = self._progress_of(snapshot)
        except BaseException:
            # The store may have changed since it was read, before it failed.
            self._snapshots.forget()
            observations.lose_sight()
            raise
        notes = self._notes
        return TickReport(
            remembered=observations.remember(incarnations=self.incarnations, place=self._place),
            decisions=tuple(notes.decisions),
            owned=_owned(snapshot, self._serves, notes.refusals),
            progress=progress,
            snapshot=snapshot,
            live=self._live(snapshot, observations),
            plan=final,
            rounds=rounds,
            refusals=tuple(notes.refusals) + final.refusals,
            statements=Counter(notes.statements),
            troubles=tuple(self._steps.notes),
        )

    def leave(self) -> list[str]:
        """Leave cleanly: all shards of the served nodes are free at once; one line for each node.

        Raises:
            StoreError: at least one node could not leave; the others have left all the same.
        """
        self._snapshots.forget()
        lines: list[str] = []
        failure: StoreError | None = None
        for name, member in self._members.items():
            try:
                outcome = member.leave()
            except StoreError as error:
                failure = error
                continue
            if isinstance(outcome, Changed):
                lines.append(f"{name} left and freed {listed(outcome.shards)}")
        if failure is not None:
            raise failure
        return lines

    def _recall(self, remembered: str) -> Observations:
        """Return this object's own memory, or that of its predecessor the first time."""
        if self._observations is None:
            self._observations = Observations.recall(remembered, self._clock)
            former = recall_incarnations(remembered, self._place)
            for name in self._serves if self._beats else ():
                if name not in self._members:
                    incarnation = former.get(name) or self._incarnation_of(name)
                    self._members[name] = self._new_member(name, incarnation)
        return self._observations

    def _new_member(self, name: NodeName, incarnation: str) -> Member:
        return Member(
            self._store,
            self._key,
            replace(self._settings.get(name, Node(name, 0, "")), incarnation=incarnation),
            self._timing,
            self._clock,
            observer=self._observer,
            count=self._notes.count,
        )

    def _keep_alive(self, pulse: Pulse, observations: Observations) -> bool:
        """Beat for the members, or register them; return True if the membership changed."""
        rows = {node.name: node for node in pulse.nodes}
        changed = False
        for name, member in self._members.items():
            # Those before it in the loop can just have joined or left.
            now = replace(pulse, nodes=tuple(rows.values()))
            keep = partial(self._keep_one, member, now, rows, observations)
            # Only a node whose step failed is not kept alive, and a beat cannot wait.
            changed = self._steps.attempt(f"node {name}", keep, False, at_once=True) or changed
        return changed

    def _keep_one(
        self, member: Member, pulse: Pulse, rows: dict[NodeName, Node], observations: Observations
    ) -> bool:
        name = member.node
        try:
            change = member.keep(pulse, observations)
        except (AssignmentConflict, NodeNameTaken) as error:
            self._notes.refusals.append(Refusal(name, error))
            self._notes.decide(f"{name} could not join: {error}")
            row = rows.get(name)
            if row is None or row.incarnation != member.incarnation:
                return False
            outcome = member.resign()
            if outcome is None:
                self._notes.decide(f"{name} leaves once its runs have ended")
            if not isinstance(outcome, Changed):
                return False
            self._notes.decide(f"{name} left, freed {listed(outcome.shards)}")
            rows[name] = replace(row, incarnation="")
            return True
        if change:
            self._notes.decide(f"{name} {change}")
            rows[name] = member.settings
        return bool(change)

    def _own(self, nodes: Iterable[Node]) -> set[NodeName]:
        """Return the members that this process itself keeps alive: it awaits no beat of theirs."""
        incarnations = self.incarnations
        return {
            node.name
            for node in nodes
            if node.member and incarnations.get(node.name) == node.incarnation
        }

    def _evict_lapsed(self, pulse: Pulse, observations: Observations) -> bool:
        """Evict the nodes whose counter did not move for longer than T; True if one was.

        That includes one of this process's own that is refused and waits for its runs to end: those
        that live beat for it, and no run is launched in the place of a dead one.
        """
        timeout_s = pulse.group.timeout_s
        refused = {refusal.node for refusal in self._notes.refusals}
        own = self._own(pulse.nodes) - refused
        evicted = False
        for name, value in observations.lapsed(timeout_s).items():
            if name not in own:
                still_s = observations.unchanged_s(name)
                reason = f"no beat for {still_s:.1f} s, timeout {timeout_s:g} s"
                evicted = self._execution.evict(name, value, reason) or evicted
        return evicted

    def _live(self, snapshot: Snapshot, observations: Observations) -> frozenset[NodeName]:
        lapsed = observations.lapsed(snapshot.group.timeout_s).keys()
        dead = lapsed - self._own(snapshot.nodes)
        return frozenset(node.name for node in snapshot.nodes if node.member) - dead

    def _settle(
        self, pulse: Pulse, observations: Observations, *, moved: bool
    ) -> tuple[Snapshot, int, Plan]:
        """Plan and carry out until nothing is left to do for the served nodes.

        Returns:
            The group after the last round, the number of rounds, and the last plan.
        """
        rounds = 0
        generation = None if moved else pulse.group.generation
        while True:
            snapshot, fresh = self._snapshots.at(generation)
            if fresh:
                observations.see(snapshot.nodes, snapshot.group.timeout_s)
            observations.see_transfers(snapshot.shards)
            final, orphaned = self._plan(snapshot, observations)
            # However slow the store is, each tick does something.
            if rounds == ROUNDS_MAX or (rounds and self._late):
                return snapshot, rounds, final
            if not self._carry_out(snapshot, final, orphaned, observations):
                return snapshot, rounds, final
            rounds += 1
            generation = None

    def _neighbour(self) -> NodeName | None:
        """Return the node whose beats to watch, or None to watch all nodes.

        The last node watches the first; one that is alone watches itself.
        """
        if not self._neighbour_only or self._planned is None:
            return None
        own = self._serves[0]
        ring = {node.name for node in self._planned[0].nodes if node.member} | {own}
        later = [name for name in ring if rank_key(name) > rank_key(own)]
        return min(later or ring, key=rank_key)

    def _progress_of(self, snapshot: Snapshot) -> dict[ShardId, Progress]:
        """Return the progress of the served nodes' shards, and compare it with the snapshot."""
        if self._neighbour_only and self._progress and self._progress[0] is snapshot:
            return self._progress[1]
        self._notes.count("progress")
        progress = self._store.progress(self._key, self._serves)
        self._progress = (snapshot, progress)
        self._compare(snapshot, progress.keys())
        return progress

    def _compare(self, snapshot: Snapshot, held: Collection[ShardId]) -> None:
        """Read the group again next time if the served nodes do not hold the shards that it says.

        1. A failover loses the change that led to generation 7; another one reaches it.
        2. This process has not looked in between, and continues with the snapshot of the first 7.
        3. An unassigned shard looks held: it would wait for generation 8.
        """
        served = {row.shard for row in snapshot.shards if row.consumer_owner in self._serves}
        if served != set(held):
            self._snapshots.forget()

    @property
    def _late(self) -> bool:
        """True if the served nodes' next beat is due: then the rest can wait, and it cannot.

        1. A node joins a group of thousands of shards, and each move is a write.
        2. The writes take longer than T, in one tick.
        3. Without this, the node would be evicted in the middle of taking its share.
        """
        return self._clock() >= self._next_beat_at

    def _plan(self, snapshot: Snapshot, observations: Observations) -> tuple[Plan, list[str]]:
        """Return the plan and the orphans, computed once for as long as nothing changes."""
        live = self._live(snapshot, observations)
        planned = self._planned
        if planned is None or planned[0] is not snapshot or planned[1] != live:
            planned = (snapshot, live, plan(snapshot, live=live), orphans(snapshot))
            self._planned = planned
        return planned[2], planned[3]

    def _carry_out(
        self, snapshot: Snapshot, plan: Plan, orphaned: list[str], observations: Observations
    ) -> bool:
        """Try the plan's moves for the served nodes; return True if any was sent to the store."""
        try:
            if orphaned and self._execution.free_orphans(orphaned):
                return True
            own = [action for action in plan.actions if action.gains in self._serves]
            if own:
                failpoints.reach("after_plan")
            asked = self._execution.carry_out(own, plan.summary, late=lambda: self._late)
            return self._complete_due(snapshot, observations) or asked
        except OutcomeUnknown as error:
            # It might have happened: the next steps are planned from the store's state then.
            self._notes.decide(f"the outcome of a write is unknown, and is read again: {error}")
            self._snapshots.forget()
            return True

    def _complete_due(self, snapshot: Snapshot, observations: Observations) -> bool:
        """Take over the shards whose holders let their hand-over's deadline pass."""
        asked = False
        for lease in snapshot.shards:
            if lease.state is not ShardState.TRANSFER or lease.lease_owner not in self._serves:
                continue
            waited_s = observations.transfer_s(lease.shard)
            limit_s = handoff_deadline_s(snapshot.group, lease)
            if waited_s <= limit_s or (asked and self._late):
                continue
            done = self._execution.complete(lease, waited_s=waited_s, limit_s=limit_s)
            asked = asked or done
        return asked


def _owned(
    snapshot: Snapshot, serves: Iterable[NodeName], refusals: Iterable[Refusal]
) -> dict[NodeName, tuple[ShardId, ...]]:
    """Return the shards that each served node may consume.

    A node whose settings contradict the others' may consume none until that is fixed.
    """
    owned: dict[NodeName, list[ShardId]] = {name: [] for name in serves}
    conflicts = (each for each in refusals if isinstance(each.error, AssignmentConflict))
    serving = owned.keys() - {each.node for each in conflicts}
    for lease in snapshot.shards:
        holder = lease.consumer_owner
        if lease.state.held and holder is not None and holder in serving:
            owned[holder].append(lease.shard)
    return {name: tuple(sorted(shards, key=rank_key)) for name, shards in owned.items()}
