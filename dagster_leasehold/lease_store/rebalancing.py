"""Rebalancing of one group: watch its nodes, evict dead ones, plan, and move shards.

The step `rebalance`, the planner of a node and each client use a `Rebalancer`, without a leader.
The process of the node that gains a shard carries out the move. So each move has exactly one
executor, and a deployment whose planner is down gains no shards.
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
from dagster_leasehold.lease_store.journal_tail import JournalTail
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
from dagster_leasehold.lease_store.rules.planning import learned_weights, orphans, plan
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import Progress, ShardLease
from dagster_leasehold.lease_store.store import GroupsAndLedger, LeaseStore

CLAIMS_PER_STEP = 5_000
TRANSFERS_PER_STEP = 500
"""The most transfers of one statement; between two statements, `late` is checked."""
ROUNDS_MAX = 4
WEIGHING_S = 60.0
"""The time until a snapshot with weights is read again, in seconds."""

FEW_SHARDS = 1_000
"""Up to this many shards, each tick reads all progress, in about ten milliseconds."""
REREAD_S = 60.0
REREAD_ROWS_PER_S = 1_000
"""The rate limit of full reads: with many rows, they are less frequent than once a minute."""


@dataclass(slots=True)
class TickNotes:
    """The current tick's decisions, refusals and statements, collected for its report."""

    decisions: list[str] = field(default_factory=list[str])
    refusals: list[Refusal] = field(default_factory=list[Refusal])
    statements: Counter[str] = field(default_factory=Counter[str])

    def begin(self) -> None:
        """Clear the notes of the last tick."""
        self.decisions, self.refusals, self.statements = [], [], Counter()

    def count(self, verb: str) -> None:
        """Count a statement."""
        self.statements[verb] += 1

    def decide(self, line: str) -> None:
        """Record a decision."""
        self.decisions.append(line)


@dataclass(frozen=True, slots=True)
class TickReport:
    """The outcome of `Rebalancer.tick`.

    Attributes:
        remembered: the observations as text, for the first tick of a new process.
        decisions: one line for each decision, with its reason; empty if nothing changed.
        owned: the shards that each served node holds, including shards in transfer to others.
        readable: the owned shards that are subscribable and not in transfer.
        progress: checkpoint and tenure of each shard of the served nodes.
        snapshot: the group after the tick.
        live: the members that this process does not consider dead.
        plan: the plan of the last round, including moves for nodes of other deployments.
        rounds: the number of planning rounds of the tick.
        refusals: served nodes that could not join, and why.
        statements: the number of statements that the tick sent, by operation.
        troubles: one line for each step that failed or waits for its retry.
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
        """Return True if this incarnation has the node's name."""
        rows = self.snapshot.nodes
        return any((row.name, row.incarnation) == (node, incarnation) for row in rows)

    def ready(self, node: NodeName) -> tuple[ShardId, ...]:
        """Return the readable shards of a served node; none while the group is paused."""
        if self.snapshot.group.paused:
            return ()
        return tuple(shard for shard in self.owned.get(node, ()) if shard in self.readable)

    @property
    def explanation(self) -> str:
        """The decisions with their reasons, the refusals and the failed steps, as one line."""
        refused = [*(str(refusal) for refusal in self.plan.refusals), *self.troubles]
        if self.decisions:
            return "; ".join([*self.decisions, *refused])
        idle = f"nothing to change at generation {self.generation}: {self.plan.summary}"
        return "; ".join([idle, *refused])


@dataclass(frozen=True, slots=True)
class PlanSteps:
    """Sends the moves of a plan to the store.

    Its methods raise `StoreError` if the store does not answer two steps in a row, or if the
    outcome of a move is unknown.

    Attributes:
        steps: the failed steps, and when each is retried.
        notes: the notes of the current tick.
        stale_shards: collects the shards whose rows had changed before their move.
    """

    store: LeaseStore
    key: GroupKey
    observer: str
    steps: FailingSteps
    notes: TickNotes
    stale_shards: set[ShardId]

    def carry_out(
        self, actions: Sequence[plans.Action], summary: str, *, late: Callable[[], bool]
    ) -> bool:
        """Send the moves, claims first; return True if any was sent or remains.

        Once `late` returns True, the remaining moves wait for the next tick.
        """
        claims = [action for action in actions if isinstance(action, plans.Claim)]
        claims.sort(key=lambda claim: rank_key(claim.gains))
        any_sent, remaining = False, len(claims)
        for start in range(0, len(claims), CLAIMS_PER_STEP):
            part = claims[start : start + CLAIMS_PER_STEP]
            if any_sent and late():
                self.notes.decide(f"{remaining} claims are left to the next tick")
                break
            any_sent, remaining = self.claim(part, summary) or any_sent, remaining - len(part)
        transfers = [action for action in actions if isinstance(action, plans.BeginTransfer)]
        # Sorted by gaining node: the store writes rows with the same change in one statement.
        transfers.sort(key=lambda transfer: rank_key(transfer.gains))
        cancels = [action for action in actions if isinstance(action, plans.CancelTransfer)]
        moves, lines, count = len(transfers) + len(cancels), list[str](), 0
        while count < moves and not (count and late()):
            part = transfers[count : count + TRANSFERS_PER_STEP]
            lines += self._transfer(part) if part else self._cancel(cancels[count - len(transfers)])
            count += len(part) or 1
        for line in lines[:SHOWN_SHARDS_MAX]:
            self.notes.decide(line)
        if count > SHOWN_SHARDS_MAX:
            self.notes.decide(f"and {count - SHOWN_SHARDS_MAX} further moves")
        if count < moves:
            self.notes.decide(f"{moves - count} moves are left to the next tick")
        return any_sent or bool(lines) or count < moves

    def claim(self, claims: Sequence[plans.Claim], summary: str) -> bool:
        """Claim unassigned shards; return True if the store answered."""
        if not claims:
            return False

        def send(part: list[plans.Claim]) -> Mapping[ShardId, Changed | Stale]:
            self.notes.count("claim")
            return self.store.claim(
                self.key,
                {each.shard: (each.gains, each.seen_lease_id) for each in part},
                observer=self.observer,
                reason=f"it was free; {summary}",
            )

        by_step = {f"claiming shard {each.shard}": each for each in claims}
        answers = self.steps.attempt_all(by_step, send, raises=(OutcomeUnknown,))
        outcomes = self._outcomes(answers)
        failpoints.reach("after_claim")
        by_node: dict[NodeName, list[ShardId]] = {}
        for each in claims:
            if each.shard in outcomes:
                by_node.setdefault(each.gains, []).append(each.shard)
        for node in sorted(by_node, key=rank_key):
            shards = by_node[node]
            gains = tuple(shard for shard in shards if isinstance(outcomes[shard], Changed))
            if gains:
                self.notes.decide(f"{node} claimed {listed(gains)}: {summary}")
            if len(gains) < len(shards):
                self.notes.decide(f"{len(shards) - len(gains)} claims of {node} came too late")
        return bool(answers)

    def _transfer(self, transfers: Sequence[plans.BeginTransfer]) -> list[str]:
        """Begin transfers; return a line for each that has an outcome."""

        def send(part: list[plans.BeginTransfer]) -> Mapping[ShardId, Changed | Stale]:
            self.notes.count("begin_transfer")
            return self.store.begin_transfer(
                self.key,
                {each.shard: (each.gains, each.seen_lease_id, each.reason) for each in part},
                observer=self.observer,
            )

        by_step = {f"shard {each.shard}": each for each in transfers}
        answers = self.steps.attempt_all(by_step, send, raises=(OutcomeUnknown,))
        outcomes = self._outcomes(answers)
        return [_line(each, outcomes[each.shard]) for each in transfers if each.shard in outcomes]

    def _cancel(self, action: plans.CancelTransfer) -> list[str]:
        def send() -> Changed | Stale:
            self.notes.count("cancel_transfer")
            return self.store.cancel_transfer(
                self.key, action.shard, action.seen_lease_id,
                observer=self.observer, reason=action.reason,
            )  # fmt: skip

        outcome = self._alone(action.shard, send)
        return [] if outcome is None else [_line(action, outcome)]

    def complete(self, lease: ShardLease, *, waited_s: float, limit_s: float) -> bool:
        """Take over a shard whose holder missed the deadline; return True if the store answered."""
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
        """Free the orphans; return True if that succeeded."""
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
        """Evict a node if its counter is still `seen_lease_id`; return True if it was evicted."""
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
        """Merge answers by shard; collect the shards whose move came too late."""
        outcomes = {shard: outcome for answer in answers for shard, outcome in answer.items()}
        self.stale_shards.update(
            shard for shard, outcome in outcomes.items() if isinstance(outcome, Stale)
        )
        return outcomes


def _line(action: plans.Action, outcome: Changed | Stale) -> str:
    return str(action) if isinstance(outcome, Changed) else f"{action} (came too late)"


def planning_snapshot(store: GroupsAndLedger, key: GroupKey, since: int | None = None) -> Snapshot:
    """Return a snapshot for planning, with weights if the group balances by load.

    With `since`, it contains only the shards that changed after that generation.
    """
    snapshot = store.snapshot(key, since)
    if not snapshot.group.weighted:
        return snapshot
    return replace(snapshot, weights=learned_weights(store.throughput(key)))


@dataclass(slots=True)
class GroupMemory:
    """A rebalancer's copy of its group: the snapshot, and the progress of the served nodes' shards.

    After a change of the group, only changed rows are read. That alone can leave a wrong row in the
    snapshot:

    1. A failover loses the change that led to generation 7, which this process has read. Other
       changes lead to generations 7 and 8.
    2. The failover restored the rows that the lost change had written, with generations below 7.
       A read of the changes after generation 7 does not include them.

    So the whole group is read in five cases: the generation has decreased; a move came too late
    although its row has not changed since the plan; the store failed; the shards of the served
    nodes differ from the snapshot; and, in a large group, from time to time.

    In a large group, only changes of progress are read, too. Commits and new suspicions of open
    shards appear only at the next full read.

    Attributes:
        count: called with the operation of each statement.
        large_above: the number of shards above which a group is large; None if none is.
        stale_shards: shards whose last move came too late.
        progress: the progress of the served nodes' shards.
    """

    store: GroupsAndLedger
    key: GroupKey
    clock: Callable[[], float]
    count: Callable[[str], None]
    large_above: int | None
    stale_shards: set[ShardId] = field(default_factory=set[ShardId])
    progress: dict[ShardId, Progress] = field(default_factory=dict[ShardId, Progress])
    # The shards that have changed since the last read of progress; None is all.
    _changed: set[ShardId] | None = None
    _snapshot: Snapshot | None = None
    _read_at: float = 0.0
    _whole_at: float = 0.0
    _serves: frozenset[NodeName] = frozenset()
    _tail: JournalTail | None = None
    _progress_at: float = 0.0

    def reset(self) -> None:
        """Make the next reads full: a failover has possibly reused the journal's numbers."""
        self._snapshot = self._tail = None

    def at(self, generation: int | None) -> tuple[Snapshot, bool]:
        """Return the snapshot of a generation, and True if it was read now; None always reads."""
        before, now_s = self._snapshot, self.clock()
        if before is not None and self._due(before, now_s):
            before = None
        # Weights change without a new generation.
        recent = now_s - self._read_at < WEIGHING_S
        if (
            before is not None
            and before.group.generation == generation
            and (recent or not before.group.weighted)
        ):
            return before, False
        snapshot = None if before is None else self._read_changes(before)
        if snapshot is None:
            snapshot = self._read(None)
            self._changed, self._whole_at = None, self.clock()
        self.stale_shards.clear()
        self._snapshot, self._read_at = snapshot, self.clock()
        return snapshot, True

    def _due(self, before: Snapshot, now_s: float) -> bool:
        """Return True if the whole group must be read; in a small group, ticks compare all rows."""
        shards = before.shards
        return self._is_large(len(shards)) and self._whole_at + pause_s(shards) < now_s

    def _is_large(self, shards: int) -> bool:
        return self.large_above is not None and shards > self.large_above

    def _read(self, since: int | None) -> Snapshot:
        self.count("snapshot")
        snapshot = planning_snapshot(self.store, self.key, since)
        if snapshot.group.weighted:
            self.count("throughput")
        return snapshot

    def _read_changes(self, before: Snapshot) -> Snapshot | None:
        """Return `before` with the changed rows; None if it is not reliable."""
        now = self._read(before.group.generation)
        changed = {row.shard: row for row in now.shards}
        fallen = now.group.generation < before.group.generation
        if fallen or not self.stale_shards <= changed.keys():
            return None
        if self._changed is not None:
            self._changed |= changed.keys()
        shards = tuple(changed.pop(row.shard, row) for row in before.shards)
        return replace(now, shards=(*shards, *changed.values()))

    def read_progress(
        self, serves: Collection[NodeName], snapshot: Snapshot, *, after_changes: bool = False
    ) -> bool:
        """Update `progress`; return True after a full read.

        With `after_changes`, it is read only if the snapshot has changed since the last call, and
        then in full.
        """
        changed, self._changed = self._changed, set()
        if after_changes:
            if changed is not None and not changed:
                return False
            changed = None
        before, self._serves = self._serves, frozenset(serves)
        due = self._progress_at + pause_s(self.progress) < self.clock()
        if self._tail is None or changed is None or due:
            self._read_all_progress(len(snapshot.shards))
            return True
        self.count("touched")
        names = changed | self._tail.touched(self.store, self.key)
        if nodes := before ^ self._serves:
            names |= {row.shard for row in snapshot.shards if row.consumer_owner in nodes}
        if names:
            self.count("progress")
            others = {shard: row for shard, row in self.progress.items() if shard not in names}
            self.progress = others | self.store.progress(self.key, self._serves, names)
        return False

    def _new_tail(self) -> JournalTail:
        return JournalTail(self.clock)

    def _read_all_progress(self, shards: int) -> None:
        if not self._is_large(shards):
            self._tail = None
        elif self._tail is None:
            # An entry of a transaction in flight is missed if its number is below the newest one.
            # The next full read includes its change.
            self._tail = self._new_tail()
            self._tail.begin(self.store, self.key)
        self.count("progress")
        self.progress = self.store.progress(self.key, self._serves)
        self._progress_at = self.clock()


def pause_s(rows: Collection[object]) -> float:
    """Return the pause between two full reads, in seconds."""
    return max(REREAD_S, len(rows) / REREAD_ROWS_PER_S)


@dataclass(frozen=True, slots=True)
class Planned:
    """A snapshot and the plan for it, kept until the group or its live nodes change."""

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
    """Rebalances one group for the nodes that this process serves, one tick at a time.

    A process has one object, which keeps its observations between ticks. Each tick also returns
    them as text, from which the first tick of a new process continues.

    Args:
        serves: the nodes whose moves this process carries out.
        timing: the heartbeat interval of the served nodes; the timeout T is the group's own.
        incarnation_of: creates an incarnation for a node without a remembered one.
        members: the served nodes' `Member` objects, if the caller has created them already.
        beats: True if this process beats for the served nodes; False if agents do.
        settings: the rows to register: assignment settings, address and readiness of each node.
        place: where this process runs (`process_identity`). A new process keeps the incarnations
            only in the same place.
        serving: selects the served nodes from the group's nodes at every tick, if agents beat.
        neighbour_only: True for a process that plans for one node. It watches only the counter of
            the next node by name, and reads the progress of its own node's shards only after the
            group has changed. Otherwise a thousand nodes would read a million rows in each
            interval.
        follows_above: with more shards than this, a tick reads only the progress that changed, and
            all rows from time to time. None reads all rows of the served nodes at each tick.
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
        self._memory = GroupMemory(store, key, clock, self._notes.count, follows_above)
        self._planned: Planned | None = None
        self._owned: Owned | None = None
        self._next_beat_at = 0.0
        self._neighbour_only = neighbour_only
        self._members = {member.node: member for member in members}
        self._execution = PlanSteps(
            store, key, observer, self._steps, self._notes, self._memory.stale_shards
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
        """Beat, evict, plan and move shards as needed; report each step and its reason.

        An idle tick for one node sends three statements: the pulse, the node's heartbeat, and the
        progress of its shards. Earlier observations survive a StoreError.
        """
        self._notes.begin()
        self._steps.begin()
        self._next_beat_at = self._clock() + self._timing.beat_s
        observations = self._recall(remembered)
        self._notes.count("pulse")
        try:
            pulse = self._store.pulse(self._key, self._neighbour())
            observations.record_nodes(pulse.nodes, pulse.group.timeout_s)
            if self._serving is not None:
                self._serves = self._serving(pulse.nodes)
            moved = self._keep_alive(pulse, observations)
            failpoints.reach("after_beat")
            moved = self._evict_lapsed(pulse, observations) or moved
            snapshot, rounds, final = self._settle(pulse, observations, moved=moved)
            progress = self._progress_of(snapshot)
            owned = self._owned_in(snapshot)
        except BaseException:
            # The store has possibly changed between the last read and the failure.
            self._memory.reset()
            observations.record_failed_read()
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
        """Leave the group and free the served nodes' shards; return one line for each node.

        Raises:
            StoreError: at least one node could not leave; the others have left.
        """
        self._memory.reset()
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
        """Return the observations; the first call restores an earlier process's observations."""
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
            # Members earlier in the loop have possibly joined or left.
            now = replace(pulse, nodes=tuple(rows.values()))
            keep = partial(self._keep_one, member, now, rows, observations)
            # A failure of one node is retried at the next tick, because heartbeats cannot wait.
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
        """Return the members that this process beats for."""
        incarnations = self.incarnations
        return {
            node.name
            for node in nodes
            if node.member and incarnations.get(node.name) == node.incarnation
        }

    def _evict_lapsed(self, pulse: Pulse, observations: Observations) -> bool:
        """Evict nodes whose counter has not moved for over T; return True if any was evicted.

        This includes refused nodes of this process whose runs have not ended: live runs beat for
        such a node, and dead runs are not replaced.
        """
        timeout_s = pulse.group.timeout_s
        refused = {refusal.node for refusal in self._notes.refusals}
        own = self._own(pulse.nodes) - refused
        evicted = False
        for name, value in observations.lapsed(timeout_s).items():
            if name not in own:
                unchanged_s = observations.unchanged_s(name)
                reason = f"no heartbeat for {unchanged_s:.1f} s, timeout {timeout_s:g} s"
                evicted = self._execution.evict(name, value, reason) or evicted
        return evicted

    def _live(self, snapshot: Snapshot, observations: Observations) -> frozenset[NodeName]:
        lapsed = observations.lapsed(snapshot.group.timeout_s).keys()
        dead = lapsed - self._own(snapshot.nodes)
        return frozenset(node.name for node in snapshot.nodes if node.member) - dead

    def _settle(
        self, pulse: Pulse, observations: Observations, *, moved: bool
    ) -> tuple[Snapshot, int, Plan]:
        """Repeat planning and moving until the served nodes need no further move.

        It returns the group after the last round, the number of rounds, and the last plan.
        """
        rounds = 0
        generation = None if moved else pulse.group.generation
        while True:
            snapshot, fresh = self._memory.at(generation)
            if fresh:
                observations.record_nodes(snapshot.nodes, snapshot.group.timeout_s)
            planned = self._plan(snapshot, observations)
            observations.record_transfers(planned.transfers)
            # The first round runs even if a heartbeat is due, so each tick makes progress.
            if rounds == ROUNDS_MAX or (rounds and self._late):
                return snapshot, rounds, planned.plan
            if not self._carry_out(planned, observations):
                return snapshot, rounds, planned.plan
            rounds += 1
            generation = None

    def _neighbour(self) -> NodeName | None:
        """Return the node to watch, or None to watch all nodes.

        The last node by name watches the first. A single node watches itself.
        """
        if not self._neighbour_only or self._planned is None:
            return None
        own = self._serves[0]
        ring = {node.name for node in self._planned.snapshot.nodes if node.member} | {own}
        successors = [name for name in ring if rank_key(name) > rank_key(own)]
        return min(successors or ring, key=rank_key)

    def _progress_of(self, snapshot: Snapshot) -> dict[ShardId, Progress]:
        """Return the progress of the served nodes' shards, and compare it with the snapshot."""
        if self._memory.read_progress(self._serves, snapshot, after_changes=self._neighbour_only):
            self._compare(snapshot, self._memory.progress.keys())
        return self._memory.progress

    def _compare(self, snapshot: Snapshot, shards: Collection[ShardId]) -> None:
        """Discard the snapshot if it disagrees with the served nodes' shards, as just read.

        1. A failover loses the change that led to generation 7. Another change leads to 7 again.
        2. This process read nothing in between, and keeps the snapshot of the first generation 7.
        3. An unassigned shard is still held in that snapshot. Without this check, no node would
           claim it before generation 8.
        """
        serves = frozenset(self._serves)
        expected = {row.shard for row in snapshot.shards if row.consumer_owner in serves}
        if expected != set(shards):
            self._memory.reset()

    @property
    def _late(self) -> bool:
        """True if the served nodes' next heartbeat is due; other work waits for the next tick.

        1. A node joins a group of thousands of shards, and each move is a write.
        2. In one tick, all the writes would take longer than T.
        3. Without this check, the node would be evicted while it claims its share.
        """
        return self._clock() >= self._next_beat_at

    def _plan(self, snapshot: Snapshot, observations: Observations) -> Planned:
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
        try:
            if planned.orphans and self._execution.free_orphans(planned.orphans):
                return True
            plan = planned.plan
            serves = frozenset(self._serves)
            own = [action for action in plan.actions if action.gains in serves]
            if own:
                failpoints.reach("after_plan")
            any_sent = self._execution.carry_out(own, plan.summary, late=lambda: self._late)
            return self._complete_due(planned, observations) or any_sent
        except OutcomeUnknown as error:
            # The write has possibly taken effect, so the next plan starts from a new snapshot.
            self._notes.decide(f"the outcome of a write is unknown, and is read again: {error}")
            self._memory.reset()
            return True

    def _complete_due(self, planned: Planned, observations: Observations) -> bool:
        any_sent = False
        for lease in planned.transfers:
            if lease.lease_owner not in self._serves:
                continue
            waited_s = observations.transfer_s(lease.shard)
            limit_s = handoff_deadline_s(planned.snapshot.group, lease)
            if waited_s <= limit_s or (any_sent and self._late):
                continue
            is_sent = self._execution.complete(lease, waited_s=waited_s, limit_s=limit_s)
            any_sent = any_sent or is_sent
        return any_sent

    def _owned_in(self, snapshot: Snapshot) -> Owned:
        """Return the shards that each served node holds; none for a node with a conflict."""
        refusals = self._notes.refusals
        conflicts = {each.node for each in refusals if isinstance(each.error, AssignmentConflict)}
        owned, serving = self._owned, frozenset(self._serves) - conflicts
        if owned is None or owned.snapshot is not snapshot or owned.serving != serving:
            shards: dict[NodeName, list[ShardLease]] = {name: [] for name in self._serves}
            for row in plans.ranked(snapshot.shards):
                holder = row.consumer_owner
                if row.state.held and holder is not None and holder in serving:
                    shards[holder].append(row)
            leases = (row for rows in shards.values() for row in rows)
            owned = self._owned = Owned(
                snapshot,
                serving,
                {name: tuple(row.shard for row in rows) for name, rows in shards.items()},
                frozenset(
                    row.shard
                    for row in leases
                    if row.state is ShardState.ALREADY_ALLOC and row.subscribable
                ),
            )
        return owned
