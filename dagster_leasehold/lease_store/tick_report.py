"""The outcome of one tick of rebalancing, and the notes from which it is made."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dagster_leasehold.lease_store.group_rows import Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.assignment_plan import Plan, Refusal
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import Progress


@dataclass(slots=True)
class TickNotes:
    """Decisions, refusals and statements of the present tick, noted by whoever makes them.

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
        remembered: text to give to the next tick; a new process goes on from it.
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

        One that its source lets nobody read stays assigned, and is given up until that changes.
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
