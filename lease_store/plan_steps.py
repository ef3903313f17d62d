"""Single steps of a plan, carried out in the store: one shard's failure stops no other's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import OutcomeUnknown
from dagster_leasehold.lease_store.failpoints import Failpoint
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.outcomes import Changed, Stale
from dagster_leasehold.lease_store.roles.shards import Shards
from dagster_leasehold.lease_store.rules.assignment_plan import (
    BeginTransfer,
    CancelTransfer,
    Claim,
    listed,
    rank_key,
)
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.shard_rows import ShardLease

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class PlanSteps:
    """Carries out what a plan asks for, shard by shard.

    Attributes:
        store: the lease store.
        key: the group.
        observer: who is named in the journal.
        steps: the steps that failed, and when each is due again.
        count: told of each statement's verb.
        decide: told of each thing that was done, in one line.
    """

    store: Shards
    key: GroupKey
    observer: str
    steps: FailingSteps
    count: Callable[[str], None]
    decide: Callable[[str], None]

    def claim(self, claims: list[Claim], summary: str) -> bool:
        """Claim free shards, all in one statement where that works; whether any was asked for.

        Raises:
            StoreError: the store does not answer, or the outcome is unknown.
        """
        if not claims:
            return False

        def claimed(some: list[Claim]) -> Mapping[ShardId, Changed | Stale]:
            self.count("claim")
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
        for node in sorted({claim.node for claim in claims}, key=rank_key):
            asked = [c.shard for c in claims if c.node == node and c.shard in outcomes]
            won = tuple(shard for shard in asked if isinstance(outcomes[shard], Changed))
            if won:
                self.decide(f"{node} claimed {listed(won)}: {summary}")
            if len(won) < len(asked):
                self.decide(f"{len(asked) - len(won)} claims of {node} came too late")
        return bool(answers)

    def move(self, action: BeginTransfer | CancelTransfer) -> str | None:
        """Begin or cancel a transfer; what became of it, or None where the step failed or waits.

        Raises:
            StoreError: the store does not answer, or the outcome is unknown.
        """
        return self._alone(action.shard, partial(self._move, action))

    def _move(self, action: BeginTransfer | CancelTransfer) -> str:
        outcome: Changed | Stale
        if isinstance(action, BeginTransfer):
            self.count("begin_transfer")
            outcome = self.store.begin_transfer(
                self.key, action.shard, action.seen_lease_id, action.to,
                observer=self.observer, reason=action.reason,
            )  # fmt: skip
        else:
            self.count("cancel_transfer")
            outcome = self.store.cancel_transfer(
                self.key, action.shard, action.seen_lease_id,
                observer=self.observer, reason=action.reason,
            )  # fmt: skip
        return str(action) if isinstance(outcome, Changed) else f"{action} (came too late)"

    def complete(self, lease: ShardLease, *, waited_s: float, limit_s: float) -> bool:
        """Take over a shard whose holder let its hand-over's deadline pass; whether that was tried.

        Raises:
            StoreError: the store does not answer, or the outcome is unknown.
        """
        reason = f"{lease.consumer_owner} did not let go in {waited_s:.1f} s, limit {limit_s:g} s"
        outcome = self._alone(lease.shard, partial(self._complete, lease, reason))
        if isinstance(outcome, Changed):
            self.decide(f"{lease.lease_owner} took over {lease.shard}: {reason}")
        return outcome is not None

    def _complete(self, lease: ShardLease, reason: str) -> Changed | Stale:
        self.count("complete_transfer")
        return self.store.complete_transfer(
            self.key, lease.shard, lease.lease_id, observer=self.observer, reason=reason
        )

    def _alone(self, shard: ShardId, step: Callable[[], Answer]) -> Answer | None:
        return self.steps.attempt(f"shard {shard}", step, None, raises=(OutcomeUnknown,))
