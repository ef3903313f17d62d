"""Rebalancing: observe, evict dead nodes, plan, and carry out what concerns the served nodes.

Every process of a group does this on its own, without a leader. A move is carried out by the
process that serves the node that gains the shard. So each move has exactly one executor, and a
deployment that does not run cannot be given shards that no run would consume.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import (
    AssignmentConflict,
    NodeNameTaken,
    OutcomeUnknown,
    StoreError,
)
from dagster_leasehold.lease_store.group_rows import Node, Pulse, Snapshot, Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
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
from dagster_leasehold.lease_store.snapshot_memory import ProgressMemory, SnapshotMemory
from dagster_leasehold.lease_store.store import LeaseStore

CLAIMS_PER_STEP = 5_000
TRANSFERS_PER_STEP = 500
"""The most transfers that one call begins: after these, the next beat of a node can be due."""
ROUNDS_MAX = 4


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
        readable: those that may be read: held by no other node, and subscribable.
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
    readable: frozenset[ShardId]
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
        return tuple(shard for shard in self.owned.get(node, ()) if shard in self.readable)

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
        doubtful: gets the shards for which a move came too late.
    """

    store: LeaseStore
    key: GroupKey
    observer: str
    steps: FailingSteps
    notes: TickNotes
    doubtful: set[ShardId]

    def carry_out(
        self, actions: Sequence[plans.Action], summary: str, *, late: Callable[[], bool]
    ) -> bool:
        """Try all moves of a plan, claims first; True if the store was asked for anything.

        Once it is `late`, the rest waits for the next tick.
        """
        claims = [action for action in actions if isinstance(action, plans.Claim)]
        claims.sort(key=lambda claim: rank_key(claim.node))
        asked, left = False, len(claims)
        for start in range(0, len(claims), CLAIMS_PER_STEP):
            part = claims[start : start + CLAIMS_PER_STEP]
            if asked and late():
                self.notes.decide(f"{left} claims are left to the next tick")
                break
            asked, left = self.claim(part, summary) or asked, left - len(part)
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

    def claim(self, claims: Sequence[plans.Claim], summary: str) -> bool:
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
        outcomes = self._outcomes(answers)
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
        outcomes = self._outcomes(answers)
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

    def _alone(self, shard: ShardId, step: Callable[[], Changed | Stale]) -> Changed | Stale | None:
        outcome = self.steps.attempt(f"shard {shard}", step, None, raises=(OutcomeUnknown,))
        self._outcomes([{}] if outcome is None else [{shard: outcome}])
        return outcome

    def _outcomes(
        self, answers: Iterable[Mapping[ShardId, Changed | Stale]]
    ) -> dict[ShardId, Changed | Stale]:
        """Return the outcomes of some answers, and note the shards whose move came too late."""
        outcomes = {shard: outcome for answer in answers for shard, outcome in answer.items()}
        self.doubtful.update(
            shard for shard, outcome in outcomes.items() if isinstance(outcome, Stale)
        )
        return outcomes


def _line(action: plans.Action, outcome: Changed | Stale) -> str:
    return str(action) if isinstance(outcome, Changed) else f"{action} (came too late)"


@dataclass(frozen=True, slots=True)
class Planned:
    """A snapshot, and what was made of it: computed once for as long as nothing changes."""

    snapshot: Snapshot
    live: frozenset[NodeName]
    plan: Plan
    orphans: list[str]
    transfers: list[ShardLease]


@dataclass(frozen=True, slots=True)
class Owned:
    """The shards of the served nodes in a snapshot."""

    snapshot: Snapshot
    serving: frozenset[NodeName]
    shards: dict[NodeName, tuple[ShardId, ...]]
    readable: frozenset[ShardId]


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
        follows_above: for the process that plans for a deployment: of more shards than this it
            reads only the progress that has changed, and now and then it compares all that it
            keeps. None for a client, which compares its shards' rows at each tick.
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
        follows_above: int | None = None,
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
        count = self._notes.count
        self._snapshots = SnapshotMemory(store, key, clock, count, follows_above)
        self._progress = ProgressMemory(store, key, clock, count, follows_above)
        self._planned: Planned | None = None
        self._owned: Owned | None = None
        self._next_beat_at = 0.0
        self._neighbour_only = neighbour_only
        self._members = {member.node: member for member in members}
        self._execution = PlanSteps(
            store, key, observer, self._steps, self._notes, self._snapshots.doubtful
        )

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
            owned = self._owned_in(snapshot)
        except BaseException:
            # The store may have changed since it was read, before it failed.
            self._forget()
            observations.lose_sight()
            raise
        notes = self._notes
        return TickReport(
            remembered=observations.remember(incarnations=self.incarnations, place=self._place),
            decisions=tuple(notes.decisions),
            owned=owned.shards,
            readable=owned.readable,
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
        self._forget()
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
            planned = self._plan(snapshot, observations)
            observations.see_transfers(planned.transfers)
            # However slow the store is, each tick does something.
            if rounds == ROUNDS_MAX or (rounds and self._late):
                return snapshot, rounds, planned.plan
            if not self._carry_out(planned, observations):
                return snapshot, rounds, planned.plan
            rounds += 1
            generation = None

    def _neighbour(self) -> NodeName | None:
        """Return the node whose beats to watch, or None to watch all nodes.

        The last node watches the first; one that is alone watches itself.
        """
        if not self._neighbour_only or self._planned is None:
            return None
        own = self._serves[0]
        ring = {node.name for node in self._planned.snapshot.nodes if node.member} | {own}
        later = [name for name in ring if rank_key(name) > rank_key(own)]
        return min(later or ring, key=rank_key)

    def _progress_of(self, snapshot: Snapshot) -> dict[ShardId, Progress]:
        """Return the progress of the served nodes' shards, and compare it with the snapshot."""
        changed, self._snapshots.changed = self._snapshots.changed, set()
        if self._neighbour_only:
            if changed is not None and not changed:
                return self._progress.rows
            changed = None
        if self._progress.read(self._serves, snapshot, changed):
            self._compare(snapshot, self._progress.rows.keys())
        return self._progress.rows

    def _forget(self) -> None:
        self._snapshots.forget()
        self._progress.forget()

    def _compare(self, snapshot: Snapshot, held: Collection[ShardId]) -> None:
        """Read the group again next time if the served nodes do not hold the shards that it says.

        1. A failover loses the change that led to generation 7; another one reaches it.
        2. This process has not looked in between, and continues with the snapshot of the first 7.
        3. An unassigned shard looks held: it would wait for generation 8.
        """
        serves = frozenset(self._serves)
        served = {row.shard for row in snapshot.shards if row.consumer_owner in serves}
        if served != set(held):
            self._forget()

    @property
    def _late(self) -> bool:
        """True if the served nodes' next beat is due: then the rest can wait, and it cannot.

        1. A node joins a group of thousands of shards, and each move is a write.
        2. The writes take longer than T, in one tick.
        3. Without this, the node would be evicted in the middle of taking its share.
        """
        return self._clock() >= self._next_beat_at

    def _plan(self, snapshot: Snapshot, observations: Observations) -> Planned:
        """Return the plan, computed once for as long as nothing changes."""
        live = self._live(snapshot, observations)
        planned = self._planned
        if planned is None or planned.snapshot is not snapshot or planned.live != live:
            planned = self._planned = Planned(
                snapshot,
                live,
                plan(snapshot, live=live),
                orphans(snapshot),
                [row for row in snapshot.shards if row.state is ShardState.TRANSFER],
            )
        return planned

    def _carry_out(self, planned: Planned, observations: Observations) -> bool:
        """Try the plan's moves for the served nodes; return True if any was sent to the store."""
        try:
            if planned.orphans and self._execution.free_orphans(planned.orphans):
                return True
            plan = planned.plan
            serves = frozenset(self._serves)
            own = [action for action in plan.actions if action.gains in serves]
            if own:
                failpoints.reach("after_plan")
            asked = self._execution.carry_out(own, plan.summary, late=lambda: self._late)
            return self._complete_due(planned, observations) or asked
        except OutcomeUnknown as error:
            # It might have happened: the next steps are planned from the store's state then.
            self._notes.decide(f"the outcome of a write is unknown, and is read again: {error}")
            self._forget()
            return True

    def _complete_due(self, planned: Planned, observations: Observations) -> bool:
        """Take over the shards whose holders let their hand-over's deadline pass."""
        asked = False
        for lease in planned.transfers:
            if lease.lease_owner not in self._serves:
                continue
            waited_s = observations.transfer_s(lease.shard)
            limit_s = handoff_deadline_s(planned.snapshot.group, lease)
            if waited_s <= limit_s or (asked and self._late):
                continue
            done = self._execution.complete(lease, waited_s=waited_s, limit_s=limit_s)
            asked = asked or done
        return asked

    def _owned_in(self, snapshot: Snapshot) -> Owned:
        """Return the shards that each served node may consume.

        A node whose settings contradict the others' may consume none until that is fixed.
        """
        refusals = self._notes.refusals
        conflicts = {each.node for each in refusals if isinstance(each.error, AssignmentConflict)}
        owned, serving = self._owned, frozenset(self._serves) - conflicts
        if owned is None or owned.snapshot is not snapshot or owned.serving != serving:
            shards: dict[NodeName, list[ShardLease]] = {name: [] for name in self._serves}
            for row in snapshot.shards:
                holder = row.consumer_owner
                if row.state.held and holder is not None and holder in serving:
                    shards[holder].append(row)
            readable = (row for rows in shards.values() for row in rows)
            owned = self._owned = Owned(
                snapshot,
                serving,
                {
                    name: tuple(sorted((row.shard for row in rows), key=rank_key))
                    for name, rows in shards.items()
                },
                frozenset(
                    row.shard
                    for row in readable
                    if row.state is ShardState.ALREADY_ALLOC and row.subscribable
                ),
            )
        return owned
