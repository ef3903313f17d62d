"""Joins the runs of a backfill, so that one run materializes all partitions of a node.

Dagster launches one run per partition if nodes have agents, and otherwise one run per contiguous
range of partitions. The first run that starts on a node cancels the runs that are still queued for
the same node and materializes their partitions itself. `shard_asset` calls this module.
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
        run: the run that takes over the partitions of the other runs.
        holders: returns the node that holds each shard. Any host can materialize a shard that is
            not in the result.
    """

    instance: dg.DagsterInstance
    run: DagsterRun
    stream: ShardStream
    holders: Callable[[], Mapping[ShardId, str]]
    _takeovers: dict[str, list[ShardId]] = field(default_factory=dict[str, list[ShardId]])

    @property
    def shards(self) -> list[ShardId]:
        """The partitions that this run took over."""
        return [shard for shards in self._takeovers.values() for shard in shards]

    def rounds(self, own: Sequence[ShardId]) -> Iterator[Sequence[ShardId]]:
        """Yield the run's own and queued partitions, then partitions queued in the meantime."""
        shards = [*own, *self._inherit(), *self.take_over()]
        while shards:
            yield shards
            shards = self.take_over()

    def take_over(self) -> list[ShardId]:
        """Cancel the queued runs of this run's node, and return their partitions.

        Only the oldest started run of the node does this, so that two runs never take over the
        same partition. A queued run can start while this run cancels it:

        1. This run reads the status of the queued run, the queue launches it, and this run
           cancels it.
        2. The cancellation finds no process to terminate.
        3. The process starts, finds that its run is canceled, and exits. Only this run
           materializes the partition.
        """
        siblings = self._similar_runs()
        if not siblings:
            return []
        holders = self.holders()
        partitions = self._partitions_by_run([self.run, *siblings])

        def nodes(run: DagsterRun) -> set[str]:
            return {holders.get(shard, "") for shard in partitions[run.run_id]}

        siblings = [run for run in siblings if nodes(run) == nodes(self.run)]
        started = [run for run in siblings if run.status is not DagsterRunStatus.QUEUED]
        if not started or started[-1].run_id != self.run.run_id:
            return []
        # In the order of the queue, so that the queue launches as few of them as possible.
        queued = [run for run in reversed(siblings) if run.status is DagsterRunStatus.QUEUED]
        for run in queued:
            self.instance.add_run_tags(run.run_id, {TAKEN_OVER_TAG: self.run.run_id})
            self.instance.run_coordinator.cancel_run(run.run_id)
            canceled = self.instance.get_run_by_id(run.run_id)
            if canceled is not None and canceled.status in _CANCELED:
                self._takeovers[run.run_id] = partitions[run.run_id]
        return [shard for run in queued for shard in self._takeovers.get(run.run_id, ())]

    def _inherit(self) -> list[ShardId]:
        """Take over the unfinished partitions that the parent of this retry had taken over."""
        parent = self.run.parent_run_id
        if parent is None:
            return []
        canceled_runs = self._similar_runs(_CANCELED, {TAKEN_OVER_TAG: parent})
        for run in canceled_runs:
            self.instance.add_run_tags(run.run_id, {TAKEN_OVER_TAG: self.run.run_id})
        self._takeovers |= self._partitions_by_run(canceled_runs)
        return self.shards

    def remove(self, done: Collection[ShardId]) -> None:
        """Delete the canceled runs whose partitions are all done.

        Such a run never started; the events of its partitions belong to this run.
        """
        for run_id, shards in self._takeovers.items():
            run = self.instance.get_run_by_id(run_id)
            if run is not None and run.is_finished and set(shards) <= set(done):
                self.instance.delete_run(run_id)

    def _partitions_by_run(self, runs: Iterable[DagsterRun]) -> dict[str, list[ShardId]]:
        name = str(shard_partitions(self.stream).name)
        keys = cache(partial(self.instance.get_dynamic_partitions, name))
        return {run.run_id: [ShardId(key) for key in partitions_of(run.tags, keys)] for run in runs}

    def _similar_runs(
        self,
        statuses: Sequence[DagsterRunStatus] = _UNFINISHED,
        tags: Mapping[str, str] | None = None,
    ) -> list[DagsterRun]:
        """Return the runs of this backfill with the same assets and config, newest first."""
        backfill = self.run.tags.get(BACKFILL_TAG)
        # A run that also materializes other assets keeps its partitions: this run could not
        # materialize those assets.
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
