"""The event time up to which a snapshot is complete.

The rule of hourly assets (`rules.event_frontier`) is applied to the records in the table:

1. Before a publisher takes the lock, it reads the shards: first from the lease tables, then from
   the source. So if a parent is finished in the lease tables, the source lists its children.
2. All batches that were committed before this are in the snapshot, except batches of shards with a
   backlog, which count as neither finished nor idle.
3. Gaps are read after the batches. A gap is recorded before the batches after it are committed, so
   the gap is known if the snapshot has records after it. While a gap is not accepted, the event
   time does not advance.

If the source does not answer, the event time does not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from dagster_leasehold.assets.output.table.publication import SnapshotPlan
from dagster_leasehold.assets.output.table.shard_states import States
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import LeaseholdError, StoreError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.roles.groups import Groups
from dagster_leasehold.lease_store.rules.event_frontier import ShardTime, frontier
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.unchanged import Unchanged
from dagster_leasehold.shard_sources.shard_times import shard_times, unlisted_shards

RETRY_S = 60.0
"""The time before a source that did not answer is read again, in seconds."""


@dataclass(frozen=True, slots=True)
class ShardsSeen:
    """The shards of a group at one moment.

    Attributes:
        shards: all shards in the lease tables.
        unlisted: shards of the source that are not in the lease tables yet.
    """

    shards: tuple[ShardTime, ...]
    unlisted: frozenset[ShardId] = frozenset()


@dataclass(slots=True)
class ShardTimesReader:
    """Reads the shards of a stream before each publication of one process.

    Attributes:
        clock: monotonic seconds.
    """

    stream: ShardStream
    store: Groups
    clock: Callable[[], float]
    _caught_up: Unchanged[ShardId] = field(default_factory=Unchanged[ShardId])
    _due_s: float = -math.inf
    _steps: FailingSteps = field(init=False)

    def __post_init__(self) -> None:
        self._steps = FailingSteps(self.clock)

    def read(self) -> ShardsSeen | None:
        """Return the current shards; None if the source does not answer.

        Raises:
            StoreError: the lease store does not answer.
        """
        if self.clock() < self._due_s:
            return None
        try:
            return self._seen()
        except StoreError:
            raise
        except LeaseholdError:
            self._due_s = self.clock() + RETRY_S
            return None

    def _seen(self) -> ShardsSeen:
        source, allowance_s = self.stream.source, self.stream.iceberg.idle_after_s
        leases = self.store.snapshot(self.stream.key).shards
        self._steps.begin()
        times = shard_times(
            source,
            leases,
            self._caught_up,
            self._steps,
            now_s=self.clock(),
            allowance_s=allowance_s,
        )
        return ShardsSeen(tuple(times), unlisted_shards(source, leases))


@dataclass(slots=True)
class Completeness:
    """The event time up to which the next snapshots of a table are complete.

    Attributes:
        until: the event time of the newest snapshot so far; None if it is unknown.
        seen: the shards, as they were before the batches were read; None if they are unknown.
        behind: the shards with unpublished batches; True if the next publication leaves some out.
        gaps: True if a skipped gap is not accepted.
        out_of_order_s: see `TableSettings`.
    """

    until: datetime | None = None
    seen: ShardsSeen | None = None
    behind: Mapping[ShardId, bool] = field(default_factory=dict[ShardId, bool])
    gaps: bool = False
    out_of_order_s: float = 0.0

    def after(self, states: States, snapshot: SnapshotPlan | None) -> datetime | None:
        """Return the event time up to which the next snapshot is complete; None if unknown.

        Args:
            states: the states of the shards in the snapshot.
            snapshot: the plan of the snapshot; None if it has neither files nor batches.
        """
        if self.seen is None:
            if snapshot is not None and snapshot.withdrawn:
                self.until = None
            return self.until
        committed = () if snapshot is None else snapshot.committed
        published = {batches[0].shard for batches in committed}
        behind = {shard for shard, more in self.behind.items() if more or shard not in published}
        until = frontier(
            [_in_table(shard, states, behind) for shard in self.seen.shards],
            unlisted=self.seen.unlisted,
            out_of_order=timedelta(seconds=self.out_of_order_s),
        ).until
        if self.gaps and until is not None:
            until = None if self.until is None else min(until, self.until)
        self.until = until
        return until


def _in_table(shard: ShardTime, states: States, behind: Collection[ShardId]) -> ShardTime:
    """Return the event time of a shard in a snapshot."""
    state = states.get(shard.shard)
    watermark = datetime.fromisoformat(state.watermark) if state and state.watermark else None
    if shard.shard in behind:
        return ShardTime(shard.shard, watermark)
    return replace(shard, watermark=watermark)
