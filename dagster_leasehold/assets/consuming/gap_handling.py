"""Gaps: the way of a run past records that were removed before it could read them.

The group's policy decides; every such range is recorded first, so that nothing is ever skipped
without a trace.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.group_rows import GapPolicy
from dagster_leasehold.lease_store.rules.cursors import is_before
from dagster_leasehold.lease_store.rules.gap_policy import judged_gap, position_behind
from dagster_leasehold.lease_store.rules.refusals import gap_held
from dagster_leasehold.lease_store.rules.starting_point import END
from dagster_leasehold.lease_store.shard_rows import Tenure
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.shard_sources.positions import clamped
from dagster_leasehold.shard_sources.source import ShardSource


@dataclass(frozen=True, slots=True)
class GapHandling:
    """Settles gaps of one stream's shards.

    Attributes:
        store: where gaps are recorded and checkpoints moved, under the tenure.
        source: tells where the records that are still there begin and end.
    """

    store: LeaseStore
    source: ShardSource

    def settle(self, tenure: Tenure, start: str, why: str) -> str:
        """Record the gap that begins at the checkpoint `start`, and move past it if that is right.

        Returns:
            The cursor where the shard continues; the checkpoint is there.

        Raises:
            GapHeld: the group holds, and this gap is not accepted yet; nothing moved.
            CursorExpired: the source contradicts itself: it begins at a place that it calls
                removed.
            LeaseLost: the tenure is over.
            SourceError: the source does not say which records it still holds.
        """
        shard = tenure.shard
        bounds = self.source.bounds([shard])[shard]
        policy = self.store.pulse(tenure.key).group.gap_policy
        behind = bounds.end if position_behind(policy) == END else bounds.begin
        verdict = judged_gap(
            start,
            policy=policy,
            # An empty shard can begin "before all records", even if some were removed.
            behind=clamped(self.source, shard, start) if is_before(behind, start) else behind,
            accepted_end=self._accepted_end(tenure, start) if policy is GapPolicy.HOLD else None,
            contradiction=why,
        )
        if not verdict.passes:
            self.store.record_gap(tenure, start=start, end=verdict.end, reason=why, skip=False)
            raise gap_held(tenure.key, shard, start, verdict.end)
        failpoints.reach("before_gap")
        self.store.record_gap(tenure, start=start, end=verdict.end, reason=why)
        failpoints.reach("after_gap")
        return verdict.end

    def _accepted_end(self, tenure: Tenure, start: str) -> str | None:
        gaps = self.store.gaps(tenure.key, tenure.shard, start=start, acknowledged=True)
        return gaps[0].end if gaps else None
