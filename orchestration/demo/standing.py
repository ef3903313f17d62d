"""The standing of a demo: how much is consumed, and if everything is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from dagster_leasehold.lease_store.errors import UnknownGroup
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.roles.groups import Groups
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.shard_sources.source import ShardBounds, ShardSource


@dataclass(frozen=True, slots=True)
class Standing:
    """The standing of a stream's shards.

    Attributes:
        available: records in the log.
        consumed: records up to the checkpoints.
        states: shards by state; those that no sensor has seen yet are `unseen`.
        owned: all shards that can be consumed have an owner.
        open_runs: shards that a run has open.
        complete: every record is consumed, every read-only shard is over, and no run is at work.
    """

    available: int
    consumed: int
    states: dict[str, int]
    owned: bool
    open_runs: int
    complete: bool

    @property
    def lag(self) -> int:
        """Records that are not consumed yet."""
        return self.available - self.consumed


def standing(store: Groups, key: GroupKey, source: ShardSource) -> Standing:
    """Return the standing of the stream now.

    The leases are read before the log: what is appended in between counts as not consumed, so
    that a stream is never called complete too early.
    """
    try:
        leases = {lease.shard: lease for lease in store.snapshot(key).shards}
    except UnknownGroup:
        leases = {}
    shards = [entry.shard for entry in source.list_shards()]
    bounds = source.bounds(shards)
    available = consumed = 0
    complete = True
    for shard in shards:
        lease = leases.get(shard)
        total = source.lag(shard, bounds[shard].begin, bounds[shard]) or 0
        left = total
        if lease is not None and lease.check_point is not None:
            left = source.lag(shard, lease.check_point, bounds[shard]) or 0
        available += total
        consumed += total - left
        complete = complete and left == 0 and _settled(lease, bounds[shard])
    states = Counter(lease.state.value for lease in leases.values())
    states["unseen"] = len([shard for shard in shards if shard not in leases])
    return Standing(
        available=available,
        consumed=consumed,
        states={state: number for state, number in sorted(states.items()) if number},
        owned=bool(leases)
        and all(lease.state.held for lease in leases.values() if lease.state.consumable),
        open_runs=sum(lease.consumer_run != "" for lease in leases.values()),
        complete=complete,
    )


def _settled(lease: ShardLease | None, bounds: ShardBounds) -> bool:
    """Return True if no run has the shard open, and it is over if it can take no more records."""
    if lease is None or lease.consumer_run:
        return False
    return lease.state is ShardState.OVER if bounds.finished else lease.state.held
