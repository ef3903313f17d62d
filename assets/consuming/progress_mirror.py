"""Telling a source's service how far a stream is committed, for dashboards that look there.

Nothing reads it back: the lease store alone knows the checkpoints. They are told after a commit
and before its report is flagged as delivered, so that every commit is followed by at least one.
"""

from __future__ import annotations

from collections.abc import Iterable

from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.roles.groups import Groups
from dagster_leasehold.shard_sources.source import ProgressMirror

LOOKS_MAX = 10
"""Every further look has found a commit of another process since the one before."""


def mirror_progress(store: Groups, stream: ShardStream, shards: Iterable[ShardId]) -> str:
    """Tell the service the checkpoints of these shards, if the stream's source does that.

    The stored checkpoints are told, not those of the commits at hand: a dead run's commits are
    reported after newer ones, and progress would go back. They are looked at again after they were
    told: whoever told an older one last, because another process committed and told a newer one in
    between, tells the newer one too.

    Returns:
        Why it failed, which stops nothing; empty when it did not.
    """
    source, wanted = stream.source, set(shards)
    if not wanted or not isinstance(source, ProgressMirror) or not source.mirrors:
        return ""
    told: dict[ShardId, str] = {}
    try:
        for _ in range(LOOKS_MAX):
            leases = store.snapshot(stream.key).shards
            stored = {lease.shard: lease.check_point for lease in leases if lease.shard in wanted}
            news = {
                shard: checkpoint
                for shard, checkpoint in stored.items()
                if checkpoint is not None and told.get(shard) != checkpoint
            }
            if not news:
                break
            source.mirror(news)
            told |= news
    except LeaseholdError as error:
        return str(error)
    return ""
