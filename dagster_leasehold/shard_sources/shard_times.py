"""The input of the rules for complete event times: shards in the lease tables and in the source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.event_frontier import ShardTime, lease_times
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.unchanged import Unchanged
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.shard_sources.lag import caught_up
from dagster_leasehold.shard_sources.source import ShardSource


def shard_times(
    source: ShardSource,
    leases: Sequence[ShardLease],
    caught_up_since: Unchanged[ShardId],
    steps: FailingSteps,
    *,
    now_s: float,
    allowance_s: float | None,
) -> list[ShardTime]:
    """Return the event time of each shard, and which shards are idle.

    Args:
        caught_up_since: how long each shard has been caught up at one checkpoint.
        now_s: the time, in monotonic seconds.
        allowance_s: the time after which a shard that is caught up is idle, in seconds; None if
            no shard is.
    """
    times = lease_times(leases)
    if allowance_s is None:
        return times
    at_end = caught_up(source, leases, steps)
    idle_s = caught_up_since.update(at_end, now_s)
    return [replace(shard, idle=idle_s.get(shard.shard, -1.0) >= allowance_s) for shard in times]


def unlisted_shards(source: ShardSource, leases: Sequence[ShardLease]) -> frozenset[ShardId]:
    """Return the shards of a source that the lease tables lack; the leases must be read before.

    Otherwise an event time could seem complete too early:

    1. The source lists only shard 0.
    2. Shard 0 is split, read to its end and finished.
    3. The lease tables show that shard 0 is finished, and lack its children: no shard seems to hold
       back the event time.

    If the lease tables are read first and a parent is finished, the source lists its children.
    """
    shards = {row.shard for row in source.list_shards()}
    return frozenset(shards - {lease.shard for lease in leases})
