"""The runs of one backfill, joined: a selection with holes is not a run for each of its parts.

Dagster gives a run one unbroken range of partitions, in the order in which they were added. All
partitions of a stream are one run; those of a node that was away, every third of them, say, are as
many runs as there are holes. The first of these that starts takes over the partitions of those
that still wait in the queue, which end as canceled before they begin.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import dagster as dg
from dagster import DagsterRun, DagsterRunStatus

from dagster_leasehold.assets.partitions import (
    SHARE_TAG,
    asset_key,
    partitions_of,
    shard_partitions,
)
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import ShardId

BACKFILL_TAG = "dagster/backfill"
TAKEN_OVER_TAG = "leasehold/taken_over_by"
_UNFINISHED = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


@dataclass(slots=True)
class Siblings:
    """The other runs of a run's backfill.

    Attributes:
        instance: knows the runs.
        run: the one that takes over.
        stream: the stream of its partitions.
    """

    instance: dg.DagsterInstance
    run: DagsterRun
    stream: ShardStream
    _taken: dict[str, list[ShardId]] = field(default_factory=dict[str, list[ShardId]])

    @property
    def shards(self) -> list[ShardId]:
        """The partitions that were taken over."""
        return [shard for shards in self._taken.values() for shard in shards]

    def rounds(self, own: Sequence[ShardId]) -> Iterator[Sequence[ShardId]]:
        """Yield the run's partitions with those that wait, then those that came meanwhile."""
        some = [*own, *self.take_over()]
        while some:
            yield some
            some = self.take_over()

    def take_over(self) -> list[ShardId]:
        """Return the partitions of the runs that wait, which are canceled.

        Only the oldest run that has started takes over, so that no two do. Should the queue launch
        one of them in this moment, its process finds the run canceled and ends.
        """
        alike = self._alike()
        started = [run for run in alike if run.status is not DagsterRunStatus.QUEUED]
        if not started or started[-1].run_id != self.run.run_id:
            return []
        waiting = [run for run in alike if run.status is DagsterRunStatus.QUEUED]
        keys = self.instance.get_dynamic_partitions(str(shard_partitions(self.stream).name))
        for run in waiting:
            self.instance.add_run_tags(run.run_id, {TAKEN_OVER_TAG: self.run.run_id})
            if self.instance.run_coordinator.cancel_run(run.run_id):
                asked = partitions_of(run.tags, lambda: keys)
                self._taken[run.run_id] = [ShardId(key) for key in asked]
        return [shard for run in waiting for shard in self._taken.get(run.run_id, ())]

    def remove(self, done: Collection[ShardId]) -> None:
        """Delete the runs that were taken over, but for those with a partition that is not done.

        They never began; what became of their partitions is in this run.
        """
        for run_id, shards in self._taken.items():
            if set(shards) <= set(done):
                self.instance.delete_run(run_id)

    def _alike(self) -> list[DagsterRun]:
        """Return the backfill's unfinished runs of the same assets and config, the newest first."""
        backfill = self.run.tags.get(BACKFILL_TAG)
        # This run takes over partitions of the stream; what else those runs would make, it cannot.
        if backfill is None or self.run.asset_selection != {asset_key(self.stream)}:
            return []
        wanted = dg.RunsFilter(statuses=_UNFINISHED, tags={BACKFILL_TAG: backfill})
        return [
            run
            for run in self.instance.get_runs(filters=wanted)
            if run.asset_selection == self.run.asset_selection
            and run.run_config == self.run.run_config
            and SHARE_TAG not in run.tags
        ]
