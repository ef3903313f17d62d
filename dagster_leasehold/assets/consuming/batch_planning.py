"""The next batch of each open shard: an intended one again, a new one, or none and why."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dagster_leasehold.assets.consuming.batch_sizes import BatchSizes
from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.consuming.gap_handling import GapHandling
from dagster_leasehold.assets.consuming.isolation import Isolation, NextRange
from dagster_leasehold.assets.consuming.open_shards import OpenShard, OpenShards
from dagster_leasehold.assets.consuming.sweep import Try
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
        last: a read-only shard ends with it.
        size: of a range that is searched for a bad record, in the source's units; else 0.
        set_aside: why its records go to quarantine as they are; empty where they do not.
        unread: they go there without their bytes.
    """

    open_: OpenShard
    range_: ReadRange
    last: bool
    size: int = 0
    set_aside: str = ""
    unread: bool = False

    @property
    def numbers(self) -> range:
        """The number of the batch."""
        return range(self.open_.sequence, self.open_.sequence + 1)

    @property
    def to_try(self) -> Try:
        """The batch as it is made apart from others."""
        return Try(self.range_, self.numbers, self.size > 1, self.set_aside, self.unread)

    @property
    def apart(self) -> bool:
        """True if it is made in a job of its own, because a try of it has failed."""
        return self.open_.failures > 0 or self.open_.isolating


@dataclass(frozen=True, slots=True)
class BatchPlanning:
    """Plans the batches of one run's shards.

    Attributes:
        stream: the stream's declaration, for its source and limits.
        store: where an empty shard is finished.
        shards: the open shards; one without a batch is released.
        gaps: settles the gaps of records that are gone.
        sizes: of the next batches.
        isolation: plans what follows a batch that failed.
        stays: True if a shard that is read to its end stays open, because the run follows it.
    """

    stream: ShardStream
    store: LeaseStore
    shards: OpenShards
    gaps: GapHandling
    sizes: BatchSizes
    isolation: Isolation
    stays: bool = False

    @span("plan")
    def plan(self) -> list[PlannedBatch]:
        """Return the next batch of each shard that has one and none under way."""
        planned = self.shards.each(self._plan, self.shards.at_rest())
        read = [each for each in planned if isinstance(each, OpenShard)]
        self.shards.stop_all(StopReason.CAUGHT_UP, among=read)
        return [each for each in planned if isinstance(each, PlannedBatch)]

    def _plan(self, open_: OpenShard) -> PlannedBatch | OpenShard | None:
        """Return a shard's next batch, or the shard itself if it is read and to be released."""
        while True:
            try:
                return self._plan_from_cursor(open_)
            except CursorExpired as error:
                self._pass_gap(open_, error)

    def _pass_gap(self, open_: OpenShard, error: CursorExpired) -> None:
        """Continue behind records that are gone, if the group's policy allows it."""
        open_.cursor = self.gaps.settle(open_.tenure, open_.cursor, str(error))
        # The ledger keeps the range that was intended there as abandoned, under its number.
        open_.sequence += open_.numbered
        open_.intent, open_.numbered = None, False
        open_.failures, open_.suspicion = 0, None
        open_.intended = open_.gave_up = False
        open_.report = replace(open_.report, end=open_.cursor)

    def pass_gap_of_batch(self, open_: OpenShard, error: CursorExpired) -> None:
        """Continue behind a batch whose records retention has removed before they were read."""
        try:
            self._pass_gap(open_, error)
        except LeaseLost as lost:
            self.shards.lose(open_, str(lost))
        except LeaseholdError as held:
            self.shards.stop(open_, StopReason.FAILED, str(held))

    @staticmethod
    def _suspected(open_: OpenShard, following: NextRange) -> PlannedBatch:
        range_, bounds = following.range_, open_.bounds
        ends = bounds is not None and bounds.finished and range_.end == bounds.end
        last = following.last or ends
        return PlannedBatch(
            open_, range_, last, following.size, following.set_aside, following.unread
        )

    def _plan_from_cursor(self, open_: OpenShard) -> PlannedBatch | OpenShard | None:
        shard, source, limits = open_.tenure.shard, self.stream.source, self.sizes.limits
        if open_.intent is not None:
            # Retention might have been faster than the run that takes over.
            source.plan(shard, open_.intent.start, limits)
            # The same range under the same number, so that a sink that saw the batch knows it,
            # unless `rules.isolation` says that it is to be made in parts.
            range_ = ReadRange(shard, open_.intent.start, open_.intent.end)
            return self._suspected(open_, self.isolation.again(open_, range_))
        if open_.isolating and (following := self.isolation.onwards(open_)):
            return self._suspected(open_, following)
        plan: PlannedRange = source.plan(shard, open_.cursor, limits)
        if plan.end != open_.cursor:
            range_ = ReadRange(shard, open_.cursor, plan.end, plan.records)
            return PlannedBatch(open_, range_, plan.last)
        if not plan.last:
            return None if self.stays else open_
        if isinstance(self.store.finish_empty(open_.tenure, open_.cursor), Changed):
            self.shards.end(open_, StopReason.FINISHED)
        else:
            self.shards.lose(open_)
        return None
