"""Rebalancing: observe, bury the dead, plan, and carry out what concerns the served nodes.

Every process of a group does this on its own, without a leader. Who carries out a move follows
one rule: whoever serves the node that gains the shard. So each move has exactly one executor,
and a deployment that does not run cannot be given shards that nobody would consume.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import (
    AssignmentConflict,
    NodeNameTaken,
    OutcomeUnknown,
    StoreError,
    shown,
)
from dagster_leasehold.lease_store.failpoints import Failpoint
from dagster_leasehold.lease_store.group_rows import Group, Node, Pulse, Snapshot, Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import Beaten, Changed, Registered
from dagster_leasehold.lease_store.plan_steps import PlanSteps
from dagster_leasehold.lease_store.rules.assignment_modes import check_member
from dagster_leasehold.lease_store.rules.assignment_plan import (
    SHOWN_SHARDS_MAX,
    Claim,
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
    steady_clock,
)
from dagster_leasehold.lease_store.rules.planning import orphans, plan
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.rules.tick_memory import recall_incarnations
from dagster_leasehold.lease_store.shard_weights import planning_snapshot
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.tick_report import TickReport

ROUNDS_MAX = 4
WEIGHING_S = 60.0
"""How long a plan by load relies on the weights that it was made with."""


class Rebalancer:
    """Rebalances one group for the nodes that this process serves; one tick at a time.

    An object lives as long as its process and remembers between ticks. What a successor must
    know travels as text: each tick returns it, and the first tick of a new object takes it.

    Args:
        store: the lease store.
        key: the group.
        serves: the nodes whose moves this process carries out.
        timing: the beat interval of the served nodes; T itself is the group's.
        clock: monotonic seconds.
        observer: who is named in the journal.
        incarnation_of: makes a new incarnation for a node that has none to go on with.
        beats: whether this process keeps the served nodes alive; False where agents do.
        settings: assignment settings, address and readiness to register the nodes with.
        place: of this process (`process_identity`); only there a successor keeps its incarnations.
        serving: where agents beat: picks the served nodes from the group's at every tick, so that
            a node that joins or leaves is served or not from then on.
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
    ) -> None:
        self._store = store
        self._key = key
        self._serves = serves
        self._timing = timing
        self._clock = clock
        self._observer = observer
        self._incarnation_of = incarnation_of
        self._beats = beats
        self._place = place
        self._serving = serving
        self._settings = dict(settings or {})
        self._steps = FailingSteps(clock)
        self._observations: Observations | None = None
        self._incarnations: dict[NodeName, str] = {}
        self._beaten_at: dict[NodeName, float] = {}
        self._ticked_at: float | None = None
        self._snapshot: Snapshot | None = None
        self._read_at = 0.0
        self._planned: tuple[Snapshot, frozenset[NodeName], Plan, list[str]] | None = None
        # Of the present tick only:
        self._decisions: list[str] = []
        self._refusals: list[Refusal] = []
        self._statements: Counter[str] = Counter()
        self._next_beat_at = 0.0
        self._execution = PlanSteps(
            store,
            key,
            observer,
            self._steps,
            self._count,
            self._say,
        )

    @property
    def incarnations(self) -> Mapping[NodeName, str]:
        """Under which incarnation each served node is kept alive; known after the first tick."""
        return dict(self._incarnations)

    def offer(self, node: Node) -> None:
        """Change the settings that a served node registers with; the next tick sends them."""
        self._settings[node.name] = node

    def tick(self, remembered: str = "") -> TickReport:
        """Do whatever is due, and say what and why.

        An idle tick is three statements with one served node: the pulse, its beat and the
        progress of its shards.

        Raises:
            StoreError: the store does not answer; what was observed so far is kept.
            UnknownGroup: there is no such group.
        """
        self._decisions, self._refusals, self._statements = [], [], Counter()
        self._steps.begin()
        self._next_beat_at = self._clock() + self._timing.beat_s
        observations = self._recall(remembered)
        self._count("pulse")
        try:
            pulse = self._store.pulse(self._key)
            observations.see(pulse.nodes, pulse.group.timeout_s)
            if self._serving is not None:
                self._serves = self._serving(pulse.nodes)
            moved = self._keep_alive(pulse) if self._beats else False
            failpoints.reach(Failpoint.AFTER_BEAT)
            moved = self._bury(pulse) or moved
            rounds, decided = self._settle(pulse, moved=moved)
            self._count("progress")
            progress = self._store.progress(self._key, self._serves)
        except BaseException:
            # What was read before the store failed may not be what it holds now.
            self._snapshot = None
            observations.lose_sight()
            raise
        assert self._snapshot is not None
        self._ticked_at = self._clock()
        return TickReport(
            remembered=self._remember(),
            decisions=tuple(self._decisions),
            owned=self._owned(self._snapshot),
            progress=progress,
            snapshot=self._snapshot,
            live=self._live(self._snapshot),
            plan=decided,
            rounds=rounds,
            refusals=tuple(self._refusals) + decided.refusals,
            statements=self._statements,
            troubles=tuple(self._steps.notes),
        )

    def leave(self) -> list[str]:
        """Leave cleanly: all shards of the served nodes are free at once; says what was freed.

        Raises:
            StoreError: at least one node could not leave; the others have left all the same.
        """
        self._snapshot = None
        left: list[str] = []
        failure: StoreError | None = None
        for name, incarnation in self._incarnations.items():
            try:
                outcome = self._store.leave(self._key, name, incarnation)
            except StoreError as error:
                failure = error
                continue
            if isinstance(outcome, Changed):
                left.append(f"{name} left and freed {listed(outcome.shards)}")
        if failure is not None:
            raise failure
        return left

    # -- memory ---------------------------------------------------------------------------------

    def _recall(self, remembered: str) -> Observations:
        """This object's own memory, or what its predecessor left, the first time."""
        if self._observations is None:
            self._observations = Observations.recall(remembered, self._clock)
            former = recall_incarnations(remembered, self._place)
            for name in self._serves if self._beats else ():
                self._incarnations[name] = former.get(name) or self._incarnation_of(name)
        return self._observations

    def _remember(self) -> str:
        assert self._observations is not None
        return self._observations.remember(incarnations=dict(self._incarnations), place=self._place)

    def _count(self, verb: str) -> None:
        self._statements[verb] += 1

    def _say(self, decision: str) -> None:
        self._decisions.append(decision)

    # -- nodes ----------------------------------------------------------------------------------

    def _keep_alive(self, pulse: Pulse) -> bool:
        """Beat for the served nodes, or register them; whether the membership changed."""
        known = {node.name: node for node in pulse.nodes}
        changed = False
        for name in self._serves:
            # Those before it in the loop may just have joined or left.
            keep = partial(self._keep_one, name, replace(pulse, nodes=tuple(known.values())), known)
            # Only a node whose step failed is not kept alive, and a beat cannot wait.
            changed = self._steps.attempt(f"node {name}", keep, False, at_once=True) or changed
        return changed

    def _keep_one(self, name: NodeName, pulse: Pulse, known: dict[NodeName, Node]) -> bool:
        row, wanted = known.get(name), self._wanted(name)
        if row is not None and replace(row, lease_id=wanted.lease_id) == wanted:
            if not self._beat_due(name) or self._beat(name):
                return False
            self._decisions.append(f"{name} lost its place in the group: it joins again")
        if self._register(pulse, wanted, row):
            known[name] = wanted
            return True
        if row is not None and self._resign(row, wanted):
            known[name] = replace(row, incarnation="")
            return True
        return False

    def _resign(self, row: Node, wanted: Node) -> bool:
        """Leave a group whose members contradict what the node says of itself now.

        Of two nodes that changed their source_count, each would else be refused for ever, because
        the other is a member with the old one.
        """
        if row.incarnation != wanted.incarnation:
            return False
        self._count("progress")
        if any(each.consumer_run for each in self._store.progress(self._key, [row.name]).values()):
            self._decisions.append(f"{row.name} leaves once its runs have ended")
            return False
        self._count("leave")
        left = self._store.leave(self._key, row.name, row.incarnation)
        if not isinstance(left, Changed):
            return False
        self._decisions.append(f"{row.name} left, freed {listed(left.shards)}")
        return True

    def _wanted(self, name: NodeName) -> Node:
        """The row that the node shall have, but for its counter."""
        template = self._settings.get(name, Node(name, 0, ""))
        return replace(template, name=name, lease_id=0, incarnation=self._incarnations[name])

    def _beat_due(self, name: NodeName) -> bool:
        """Whether the beat would be late if it were left to the next tick."""
        now = self._clock()
        beaten_at = self._beaten_at.get(name)
        if beaten_at is None or self._ticked_at is None:
            return True
        return (now - beaten_at) + (now - self._ticked_at) >= self._timing.beat_s

    def _beat(self, name: NodeName) -> bool:
        sent_at = self._clock()
        self._count("beat")
        outcome = self._store.beat(self._key, name, self._incarnations[name])
        if isinstance(outcome, Beaten):
            self._beaten_at[name] = sent_at
            return True
        return False

    def _register(self, pulse: Pulse, wanted: Node, row: Node | None) -> bool:
        """Answer to the node's name, where nobody alive does; whether that succeeded."""
        name = wanted.name
        displaced = self._displaced(pulse.group, row, wanted)
        sent_at = self._clock()
        try:
            # The store refuses a contradiction, too; seen here, it costs no write every tick.
            check_member(pulse.group, pulse.nodes, wanted)
            self._count("register")
            outcome = self._store.register(
                self._key, wanted, observer=self._observer, displaced_lease_id=displaced
            )
        except AssignmentConflict as error:
            self._refuse(name, error)
            return False
        if isinstance(outcome, Registered):
            self._beaten_at[name] = sent_at
            how = (
                "joined" if displaced is None else "took its name back from a process that stopped"
            )
            if row is not None and row.incarnation == wanted.incarnation:
                how = "changed its settings"
            self._decisions.append(f"{name} {how}")
            return True
        assert self._observations is not None
        still_s = self._observations.unchanged_s(name)
        error = NodeNameTaken(
            f"Another live process answers to node {shown(name)}: stop it, or use another name. "
            f"Its beat has stood still for {still_s:.0f} s; after {pulse.group.timeout_s:g} s the "
            "name is taken over."
        )
        self._refuse(name, error)
        return False

    def _displaced(self, group: Group, row: Node | None, wanted: Node) -> int | None:
        """The counter of a dead process that still has the name; None where there is none."""
        if row is None or not row.member or row.incarnation == wanted.incarnation:
            return None
        assert self._observations is not None
        return self._observations.lapsed(group.timeout_s).get(row.name)

    def _refuse(self, name: NodeName, error: AssignmentConflict | NodeNameTaken) -> None:
        self._refusals.append(Refusal(name, error))
        self._decisions.append(f"{name} could not join: {error}")

    def _bury(self, pulse: Pulse) -> bool:
        """Evict the nodes whose counter stood still for longer than T; whether one was.

        An own one, too, if it is refused and waits for its runs to end: those that live beat for
        it, and no run is launched that would take a dead one's place.
        """
        assert self._observations is not None
        timeout_s = pulse.group.timeout_s
        evicted = False
        own = self._own(pulse.nodes) - {refusal.node for refusal in self._refusals}
        for name, value in self._observations.lapsed(timeout_s).items():
            if name in own:
                continue
            still_s = self._observations.unchanged_s(name)
            reason = f"no beat for {still_s:.1f} s, timeout {timeout_s:g} s"
            evict = partial(self._evict, name, value, reason)
            evicted = self._steps.attempt(f"evicting node {name}", evict, False) or evicted
        return evicted

    def _evict(self, name: NodeName, value: int, reason: str) -> bool:
        self._count("evict")
        outcome = self._store.evict(self._key, name, value, observer=self._observer, reason=reason)
        if isinstance(outcome, Changed):
            self._decisions.append(f"evicted {name} ({reason}), freed {listed(outcome.shards)}")
        return isinstance(outcome, Changed)

    # -- shards ---------------------------------------------------------------------------------

    def _settle(self, pulse: Pulse, *, moved: bool) -> tuple[int, Plan]:
        """Plan and carry out until nothing is left to do for the served nodes."""
        rounds = 0
        generation = None if moved else pulse.group.generation
        while True:
            snapshot = self._read(generation)
            decided, lost = self._decide(snapshot)
            # However slow the store is, each tick does something.
            if rounds == ROUNDS_MAX or (rounds and self._late):
                return rounds, decided
            if not self._carry_out(snapshot, decided, lost):
                return rounds, decided
            rounds += 1
            generation = None

    @property
    def _late(self) -> bool:
        """Whether the served nodes' next beat is due: then the rest can wait, and it cannot.

        1. A node joins a group of thousands of shards, each of which takes a write to move.
        2. The writes take longer than T, in one tick.
        3. Without this, the node would be evicted in the middle of taking its share.
        """
        return self._clock() >= self._next_beat_at

    def _read(self, generation: int | None) -> Snapshot:
        """The group as it is at `generation`, from memory where nothing has changed since."""
        assert self._observations is not None
        known = self._snapshot
        if known is not None and known.group.weighted:
            # Weights change without a new generation.
            known = known if self._clock() - self._read_at < WEIGHING_S else None
        if known is None or known.group.generation != generation:
            self._count("snapshot")
            known = self._snapshot = planning_snapshot(self._store, self._key)
            self._read_at = self._clock()
            if known.group.weighted:
                self._count("throughput")
            self._observations.see(known.nodes, known.group.timeout_s)
        self._observations.see_transfers(known.shards)
        return known

    def _live(self, snapshot: Snapshot) -> frozenset[NodeName]:
        assert self._observations is not None
        dead = self._observations.lapsed(snapshot.group.timeout_s).keys() - self._own(
            snapshot.nodes
        )
        return frozenset(node.name for node in snapshot.nodes if node.member) - dead

    def _own(self, nodes: tuple[Node, ...]) -> set[NodeName]:
        """The nodes that this process itself keeps alive: nobody else's beat is awaited."""
        return {
            node.name
            for node in nodes
            if node.member and self._incarnations.get(node.name) == node.incarnation
        }

    def _decide(self, snapshot: Snapshot) -> tuple[Plan, list[str]]:
        """The plan and the orphans, computed once for as long as nothing changes."""
        live = self._live(snapshot)
        known = self._planned
        if known is None or known[0] is not snapshot or known[1] != live:
            known = (snapshot, live, plan(snapshot, live=live), orphans(snapshot))
            self._planned = known
        return known[2], known[3]

    def _carry_out(self, snapshot: Snapshot, decided: Plan, lost: list[str]) -> bool:
        """Try what the plan asks of the served nodes; whether the store was asked for anything."""
        try:
            if lost and self._steps.attempt(
                "freeing orphans", self._free_orphans, None, raises=(OutcomeUnknown,)
            ):
                self._decisions.append(f"freed {len(lost)} orphans: {lost[0]}")
                return True
            own = [action for action in decided.actions if action.gains in self._serves]
            if own:
                failpoints.reach(Failpoint.AFTER_PLAN)
            claims = [action for action in own if isinstance(action, Claim)]
            asked = self._execution.claim(claims, decided.summary)
            moves = [action for action in own if not isinstance(action, Claim)]
            for place, action in enumerate(moves):
                if place and self._late:
                    self._decisions.append(f"{len(moves) - place} moves are left to the next tick")
                    return True
                said = self._execution.move(action)
                asked = asked or said is not None
                if said is not None and place < SHOWN_SHARDS_MAX:
                    self._decisions.append(said)
            if len(moves) > SHOWN_SHARDS_MAX:
                self._decisions.append(f"and {len(moves) - SHOWN_SHARDS_MAX} further moves alike")
            return self._complete_due(snapshot) or asked
        except OutcomeUnknown as error:
            # It may have happened: whatever comes next is planned from what the store holds then.
            self._decisions.append(f"the outcome of a write is unknown, and is read again: {error}")
            self._snapshot = None
            return True

    def _free_orphans(self) -> Changed:
        self._count("free_orphans")
        return self._store.free_orphans(self._key, observer=self._observer)

    def _complete_due(self, snapshot: Snapshot) -> bool:
        """Take over the shards whose holders let their hand-over's deadline pass."""
        assert self._observations is not None
        asked = False
        for lease in snapshot.shards:
            if lease.state is not ShardState.TRANSFER or lease.lease_owner not in self._serves:
                continue
            waited_s = self._observations.transfer_s(lease.shard)
            limit_s = handoff_deadline_s(snapshot.group, lease)
            if waited_s <= limit_s or (asked and self._late):
                continue
            done = self._execution.complete(lease, waited_s=waited_s, limit_s=limit_s)
            asked = asked or done
        return asked

    def _owned(self, snapshot: Snapshot) -> dict[NodeName, tuple[ShardId, ...]]:
        owned: dict[NodeName, list[ShardId]] = {name: [] for name in self._serves}
        conflicts = (each for each in self._refusals if isinstance(each.error, AssignmentConflict))
        serving = owned.keys() - {each.node for each in conflicts}
        for lease in snapshot.shards:
            holder = lease.consumer_owner
            if lease.state.held and holder is not None and holder in serving:
                owned[holder].append(lease.shard)
        return {name: tuple(sorted(shards, key=rank_key)) for name, shards in owned.items()}
