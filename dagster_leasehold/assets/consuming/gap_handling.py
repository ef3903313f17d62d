"""Gaps: ranges whose records were removed before a run could read them.

`opening` and `batch_planning` settle them. The group's gap policy determines whether the run
continues after a gap. Each gap is recorded before it is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.group_rows import GapPolicy
from dagster_leasehold.lease_store.rules.cursors import is_before
from dagster_leasehold.lease_store.rules.gap_policy import decide_gap, position_after_gap
from dagster_leasehold.lease_store.rules.refusals import gap_held
from dagster_leasehold.lease_store.rules.starting_point import END
from dagster_leasehold.lease_store.shard_rows import Tenure
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.shard_sources.positions import clamped
from dagster_leasehold.shard_sources.source import ShardSource


@dataclass(frozen=True, slots=True)
class GapHandling:
    """Settles gaps of one stream's shards."""

    store: LeaseStore
    source: ShardSource

    def handle(self, tenure: Tenure, start: str, reason: str) -> str:
        """Record the gap at the checkpoint `start`, and skip it if the policy allows that.

        Returns:
            The cursor after the gap, which is the new checkpoint.

        Raises:
            GapHeld: the policy holds the shard, and this gap is not accepted yet. The checkpoint is
                unchanged.
            CursorExpired: the source contradicts itself: it reports its first cursor as removed.
            LeaseLost: the tenure is over.
            SourceError: the source does not return the bounds of its records.
        """
        shard = tenure.shard
        bounds = self.source.bounds([shard])[shard]
        policy = self.store.pulse(tenure.key).group.gap_policy
        target = bounds.end if position_after_gap(policy) == END else bounds.begin
        verdict = decide_gap(
            start,
            policy=policy,
            # The first cursor of an empty shard can mean "before all records", although records
            # were removed.
            resumption=clamped(self.source, shard, start) if is_before(target, start) else target,
            accepted_end=self._accepted_end(tenure, start) if policy is GapPolicy.HOLD else None,
            contradiction=reason,
        )
        if not verdict.passes:
            self.store.record_gap(tenure, start=start, end=verdict.end, reason=reason, skip=False)
            raise gap_held(tenure.key, shard, start, verdict.end)
        failpoints.reach("before_gap")
        self.store.record_gap(tenure, start=start, end=verdict.end, reason=reason)
        failpoints.reach("after_gap")
        return verdict.end

    def _accepted_end(self, tenure: Tenure, start: str) -> str | None:
        gaps = self.store.gaps(tenure.key, tenure.shard, start=start, acknowledged=True)
        return gaps[0].end if gaps else None
