"""Plans the next batch of each open shard; the batch loop calls it before each sweep."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dagster_leasehold.assets.consuming.batch_sizes import BatchSizes
from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.consuming.gap_handling import GapHandling
from dagster_leasehold.assets.consuming.isolation import Isolation, NextRange
from dagster_leasehold.assets.consuming.open_shards import OpenShard, OpenShards
from dagster_leasehold.assets.consuming.sweep import Retry
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import CursorExpired, LeaseholdError, LeaseLost
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.tracing import span
from dagster_leasehold.shard_sources.source import PlannedRange, ReadRange


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """The next batch of a shard.

    Attributes:
        last: True if the shard is read-only and ends with this batch.
        size: the length of the range in the source's unit during a search for a bad record;
            otherwise 0.
        set_aside: the reason why its records go to quarantine without the transform; otherwise
            empty.
        unread: True if they go to quarantine without their bytes.
    """

    open_: OpenShard
    range_: ReadRange
    last: bool
    size: int = 0
    set_aside: str = ""
    unread: bool = False

    @property
    def numbers(self) -> range:
        """The number of the batch, as a range of one number."""
        return range(self.open_.sequence, self.open_.sequence + 1)

    @property
    def retry(self) -> Retry:
        """The same batch for `SeparateJobs`."""
        return Retry(self.range_, self.numbers, self.size > 1, self.set_aside, self.unread)

    @property
    def separate(self) -> bool:
        """True if it gets a separate Spark job, because an earlier attempt failed."""
        return self.open_.failures > 0 or self.open_.isolating


@dataclass(frozen=True, slots=True)
class BatchPlanning:
    """Plans the batches of one run's shards.

    Attributes:
        follows: True if the run follows its shards, so a shard without unread records stays open.
    """

    stream: ShardStream
    store: LeaseStore
    shards: OpenShards
    gaps: GapHandling
    sizes: BatchSizes
    isolation: Isolation
    follows: bool = False

    @span("plan")
    def plan(self) -> list[PlannedBatch]:
        """Return the next batches, and release shards without unread records.

        Shards whose batch is in flight are skipped.
        """
        plans = self.shards.each(self._plan, self.shards.at_rest())
        caught_up = [each for each in plans if isinstance(each, OpenShard)]
        self.shards.stop_all(StopReason.CAUGHT_UP, among=caught_up)
        return [each for each in plans if isinstance(each, PlannedBatch)]

    def _plan(self, open_: OpenShard) -> PlannedBatch | OpenShard | None:
        """Return a shard's next batch, the shard itself if it must be released, or None."""
        while True:
            try:
                return self._plan_from_cursor(open_)
            except CursorExpired as error:
                self._pass_gap(open_, error)

    def _pass_gap(self, open_: OpenShard, error: CursorExpired) -> None:
        """Continue after removed records, if the group's gap policy allows it."""
        open_.cursor = self.gaps.handle(open_.tenure, open_.cursor, str(error))
        # The ledger keeps the range of the intent under its number, marked as abandoned.
        open_.sequence += open_.numbered
        open_.intent, open_.numbered = None, False
        open_.failures, open_.suspicion = 0, None
        open_.intended = open_.attempt_failed = False
        open_.report = replace(open_.report, end=open_.cursor)

    def pass_gap_of_batch(self, open_: OpenShard, error: CursorExpired) -> None:
        """Continue after a batch whose records expired before they were read."""
        try:
            self._pass_gap(open_, error)
        except LeaseLost as lost:
            self.shards.lose(open_, str(lost))
        except LeaseholdError as refusal:
            self.shards.stop(open_, StopReason.FAILED, str(refusal))

    @staticmethod
    def _batch_of(open_: OpenShard, step: NextRange) -> PlannedBatch:
        range_, bounds = step.range_, open_.bounds
        at_end = bounds is not None and bounds.finished and range_.end == bounds.end
        last = step.last or at_end
        return PlannedBatch(open_, range_, last, step.size, step.set_aside, step.unread)

    def _plan_from_cursor(self, open_: OpenShard) -> PlannedBatch | OpenShard | None:
        shard, source, limits = open_.tenure.shard, self.stream.source, self.sizes.limits
        if open_.intent is not None:
            # Raises CursorExpired if the records expired before this run took over.
            source.plan(shard, open_.intent.start, limits)
            # Range and number stay the same, so that a sink recognizes a repeated batch, unless
            # `rules.isolation` divides the range.
            range_ = ReadRange(shard, open_.intent.start, open_.intent.end)
            return self._batch_of(open_, self.isolation.retry(open_, range_))
        if open_.isolating and (step := self.isolation.next_part(open_)):
            return self._batch_of(open_, step)
        plan: PlannedRange = source.plan(shard, open_.cursor, limits)
        if plan.end != open_.cursor:
            range_ = ReadRange(shard, open_.cursor, plan.end, plan.records)
            return PlannedBatch(open_, range_, plan.last)
        if not plan.last:
            return None if self.follows else open_
        if isinstance(self.store.finish_empty(open_.tenure, open_.cursor), Changed):
            self.shards.end(open_, StopReason.FINISHED)
        else:
            self.shards.lose(open_)
        return None
