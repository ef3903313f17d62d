"""Single steps of a plan, carried out in the store: one shard's failure stops no other's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import OutcomeUnknown
from dagster_leasehold.lease_store.failpoints import Failpoint
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import Changed, Stale
from dagster_leasehold.lease_store.rules import assignment_plan as plans
from dagster_leasehold.lease_store.rules.assignment_plan import SHOWN_SHARDS_MAX, listed, rank_key
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.tick_report import TickNotes

Answer = TypeVar("Answer")
TRANSFERS_PER_STEP = 500
"""The most transfers of one call, after which the served nodes' next beat may be due."""


@dataclass(frozen=True, slots=True)
class PlanSteps:
    """Carries out what a plan asks for, shard by shard.

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

        Once it is `late`, whatever is left waits for the next tick.
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
        failpoints.reach(Failpoint.AFTER_CLAIM)
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
        reason = f"{lease.consumer_owner} did not let go in {waited_s:.1f} s, limit {limit_s:g} s"
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
