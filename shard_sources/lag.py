"""The lag of a group's shards: what is in the log and not yet committed."""

from __future__ import annotations

from collections.abc import Iterable

from lease_store.errors import LeaseholdError
from lease_store.identifiers import ShardId
from lease_store.records import ShardLease
from shard_sources.source import ShardSource, bounds_for


def lags_of(
    source: ShardSource, leases: Iterable[ShardLease]
) -> tuple[dict[ShardId, int | None], str]:
    """Unread records of each shard, None where the source cannot tell.

    A source that does not answer is a sentence beside an empty answer, not an error: lag is for
    people to look at.
    """
    rows = list(leases)
    try:
        bounds = bounds_for(source, {lease.shard: lease.check_point for lease in rows})
        return {
            shard: source.lag(shard, lease.check_point or bounds[shard].begin, bounds[shard])
            for lease in rows
            if (shard := lease.shard) in bounds
        }, ""
    except LeaseholdError as error:
        return {}, str(error)
