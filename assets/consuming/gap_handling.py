"""What a run does about records that were removed before it could read them.

The group's policy decides; every such range is recorded first, so that nothing is ever skipped
without a trace.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import CursorExpired, GapHeld
from dagster_leasehold.lease_store.failpoints import Failpoint
from dagster_leasehold.lease_store.group_rows import GapPolicy
from dagster_leasehold.lease_store.shard_rows import Tenure
from dagster_leasehold.lease_store.store import LeaseStore
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
            The cursor at which the shard goes on; the checkpoint is there.

        Raises:
            GapHeld: the group holds, and nobody has accepted this gap yet; nothing moved.
            LeaseLost: the tenure is over.
            SourceError: the source does not say what it still holds.
        """
        shard = tenure.shard
        bounds = self.source.bounds([shard])[shard]
        policy = self.store.pulse(tenure.key).group.gap_policy
        end = bounds.end if policy is GapPolicy.END else bounds.begin
        if policy is GapPolicy.HOLD and end != start:
            accepted = self._accepted_end(tenure, start)
            if accepted is None:
                self.store.record_gap(tenure, start=start, end=end, reason=why, skip=False)
                raise GapHeld(
                    f"The records from {start} to {end} of shard {shard} of {tenure.key} were "
                    "removed before they were read, and the group holds at gaps: accept the loss "
                    f"with `leasehold gap ack {tenure.key.stream} {shard}`, or restore the log."
                )
            end = accepted
        elif end == start:
            # The source contradicts itself: what it calls removed is where it begins.
            raise CursorExpired(why)
        failpoints.reach(Failpoint.BEFORE_GAP)
        self.store.record_gap(tenure, start=start, end=end, reason=why)
        failpoints.reach(Failpoint.AFTER_GAP)
        return end

    def _accepted_end(self, tenure: Tenure, start: str) -> str | None:
        gaps = self.store.gaps(tenure.key, tenure.shard, start=start, acknowledged=True)
        return gaps[0].end if gaps else None
