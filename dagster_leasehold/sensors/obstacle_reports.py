"""The reports of the check `progress`, which fails within a minute once a shard stalls."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import dagster as dg

from dagster_leasehold.assets.checks import should_store
from dagster_leasehold.assets.obstacles import Obstacle, obstacle
from dagster_leasehold.assets.progress_check import progress_outcome
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rebalancing import TickReport
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.times import utc_now

PATIENCE_S = 20.0
"""How long an obstacle that can resolve by itself is not reported, in seconds."""
COMPARE_EVERY_S = 30.0
"""The time between two reads of the last stored outcome, which runs can store too, in seconds."""


def obstacles_of(
    report: TickReport, *, quiet: Iterable[ShardId], source_errors: Mapping[ShardId, str]
) -> dict[ShardId, Obstacle | None]:
    """Return the obstacle of each shard of a group, as observed by one deployment.

    Shards of another deployment's live nodes are left out: that deployment reports theirs.

    Args:
        source_errors: a sentence for each shard whose bounds the source did not return.
    """
    nodes = {
        node.name: node.accepts_runs
        for node in report.snapshot.nodes
        if node.name in report.live and node.member
    }
    quiet_shards, obstacles = set(quiet), dict[ShardId, Obstacle | None]()
    for lease in report.snapshot.shards:
        shard, progress, row = lease.shard, report.progress.get(lease.shard), lease
        if progress is not None:
            row = replace(
                lease,
                check_point=progress.check_point,
                consumer_run=progress.consumer_run,
                tries=progress.tries,
                suspicion=progress.suspicion,
            )
        elif lease.consumer_owner in nodes:
            obstacles[shard] = None
            continue
        obstacles[shard] = obstacle(
            report.snapshot.group.key,
            row,
            nodes=nodes,
            unread=shard not in quiet_shards,
            source_error=source_errors.get(shard, ""),
        )
    return obstacles


@dataclass(slots=True)
class ObstacleReports:
    """The reports of one stream's check."""

    stream: ShardStream
    clock: Clock
    _reported: str = ""
    _compare_s: float = -math.inf
    _since_s: dict[ShardId, float] = field(default_factory=dict[ShardId, float])

    def report(
        self, instance: dg.DagsterInstance, obstacles: Mapping[ShardId, Obstacle | None]
    ) -> None:
        """Report the outcome of the check, unless the last stored outcome is the same."""
        now_s = self.clock()
        stalled = (shard for shard, reason in obstacles.items() if reason is not None)
        self._since_s = {shard: self._since_s.get(shard, now_s) for shard in stalled}
        outcome = progress_outcome(
            {shard: self._lasting(shard, reason) for shard, reason in obstacles.items()}
        )
        if outcome.description == self._reported and now_s < self._compare_s:
            return
        evaluation = outcome.evaluation(self.stream, None)
        if should_store(instance, evaluation, utc_now()):
            instance.report_runless_asset_event(evaluation)
        self._reported, self._compare_s = outcome.description, now_s + COMPARE_EVERY_S

    def _lasting(self, shard: ShardId, reason: Obstacle | None) -> Obstacle | None:
        """Return the obstacle, or None while it is new and can resolve by itself."""
        if reason is None or not reason.kind.transient:
            return reason
        return reason if self.clock() - self._since_s[shard] >= PATIENCE_S else None
