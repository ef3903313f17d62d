"""The runs of one backfill, joined: a node makes its partitions in one run.

Dagster makes a run of each partition where nodes have agents, and elsewhere of each unbroken range
of them. The first run of a node that starts takes over runs that still wait in the queue and whose
partitions the node holds: they end as canceled before they begin.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import dagster as dg
from dagster import DagsterRun, DagsterRunStatus

from dagster_leasehold.assets.partitions import asset_key, partitions_of, shard_partitions
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import ShardId

BACKFILL_TAG = "dagster/backfill"
TAKEN_OVER_TAG = "leasehold/taken_over_by"
_UNFINISHED = (
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
)
_CANCELED = (DagsterRunStatus.CANCELED, DagsterRunStatus.CANCELING, DagsterRunStatus.FAILURE)


@dataclass(slots=True)
class Siblings:
    """The other runs of a run's backfill.

    Attributes:
        instance: knows the runs.
        run: the one that takes over.
        stream: the stream of its partitions.
        holders: returns the node that holds each shard; one left out is made on any host.
    """

    instance: dg.DagsterInstance
    run: DagsterRun
    stream: ShardStream
    holders: Callable[[], Mapping[ShardId, str]]
    _taken: dict[str, list[ShardId]] = field(default_factory=dict[str, list[ShardId]])

    @property
    def shards(self) -> list[ShardId]:
        """The partitions that were taken over."""
        return [shard for shards in self._taken.values() for shard in shards]

    def rounds(self, own: Sequence[ShardId]) -> Iterator[Sequence[ShardId]]:
        """Yield the run's partitions with the waiting ones, then later arrivals."""
        some = [*own, *self._inherit(), *self.take_over()]
        while some:
            yield some
            some = self.take_over()

    def take_over(self) -> list[ShardId]:
        """Return the partitions of the node's runs that wait, which are canceled.

        Only the oldest run of the node that has started takes over, so that no two do.

        1. The queue launches a run while this one cancels it.
        2. Canceling terminates it, and is told that nothing could be terminated.
        3. Its process begins, finds the run canceled, and ends: no other run makes its partition.
        """
        alike = self._alike()
        if not alike:
            return []
        holders, asked = self.holders(), self._asked([self.run, *alike])

        def nodes(run: DagsterRun) -> set[str]:
            return {holders.get(shard, "") for shard in asked[run.run_id]}

        alike = [run for run in alike if nodes(run) == nodes(self.run)]
        started = [run for run in alike if run.status is not DagsterRunStatus.QUEUED]
        if not started or started[-1].run_id != self.run.run_id:
            return []
        # In the order of the queue, to be ahead of it.
        waiting = [run for run in reversed(alike) if run.status is DagsterRunStatus.QUEUED]
        for run in waiting:
            self.instance.add_run_tags(run.run_id, {TAKEN_OVER_TAG: self.run.run_id})
            self.instance.run_coordinator.cancel_run(run.run_id)
            canceled = self.instance.get_run_by_id(run.run_id)
            if canceled is not None and canceled.status in _CANCELED:
                self._taken[run.run_id] = asked[run.run_id]
        return [shard for run in waiting for shard in self._taken.get(run.run_id, ())]

    def _inherit(self) -> list[ShardId]:
        """Return the partitions that the run before this retry took over and did not make."""
        parent = self.run.parent_run_id
        if parent is None:
            return []
        left = self._alike(_CANCELED, {TAKEN_OVER_TAG: parent})
        for run in left:
            self.instance.add_run_tags(run.run_id, {TAKEN_OVER_TAG: self.run.run_id})
        self._taken |= self._asked(left)
        return self.shards

    def remove(self, done: Collection[ShardId]) -> None:
        """Delete the runs that were taken over, but for those with a partition that is not done.

        They never began; what became of their partitions is in this run.
        """
        for run_id, shards in self._taken.items():
            run = self.instance.get_run_by_id(run_id)
            if run is not None and run.is_finished and set(shards) <= set(done):
                self.instance.delete_run(run_id)

    def _asked(self, runs: Iterable[DagsterRun]) -> dict[str, list[ShardId]]:
        """Return the partitions that each run was launched for, by its id."""
        name = str(shard_partitions(self.stream).name)
        keys = cache(partial(self.instance.get_dynamic_partitions, name))
        return {run.run_id: [ShardId(key) for key in partitions_of(run.tags, keys)] for run in runs}

    def _alike(
        self,
        statuses: Sequence[DagsterRunStatus] = _UNFINISHED,
        tags: Mapping[str, str] | None = None,
    ) -> list[DagsterRun]:
        """Return the runs of this backfill with the same assets and config, newest first."""
        backfill = self.run.tags.get(BACKFILL_TAG)
        # This run takes over partitions of the stream; what else those runs would make, it cannot.
        if backfill is None or self.run.asset_selection != {asset_key(self.stream)}:
            return []
        filters = dg.RunsFilter(
            statuses=list(statuses), tags={BACKFILL_TAG: backfill, **(tags or {})}
        )
        return [
            run
            for run in self.instance.get_runs(filters=filters)
            if run.asset_selection == self.run.asset_selection
            and run.run_config == self.run.run_config
        ]
