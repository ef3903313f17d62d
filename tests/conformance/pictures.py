"""A planner's snapshot of a group: read once, and then updated by changes."""

from __future__ import annotations

from dataclasses import replace

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.rebalancing import GroupMemory
from dagster_leasehold.lease_store.shard_rows import Progress, ShardLease
from dagster_leasehold.lease_store.store import LeaseStore


class Picture:
    """Follows a group without ever reading it whole again."""

    def __init__(self, store: LeaseStore, key: GroupKey, nodes: tuple[NodeName, ...]) -> None:
        self.store, self.key, self.nodes = store, key, nodes
        self.memory = GroupMemory(store, key, lambda: 0.0, lambda _: None, large_above=-1)

    def check(self) -> None:
        """Compare the picture with the group: ownership, tenures, and all of closed shards."""
        snapshot, _ = self.memory.at(None)
        whole = self.store.snapshot(self.key)
        assert snapshot.group == whole.group
        assert snapshot.nodes == whole.nodes
        assert _by_shard(snapshot.shards) == _by_shard(whole.shards)
        self.memory.read_progress(self.nodes, snapshot)
        progress = self.store.progress(self.key, self.nodes)
        assert _tenures(self.memory.progress) == _tenures(progress)


def _by_shard(shards: tuple[ShardLease, ...]) -> dict[ShardId, ShardLease]:
    """Shards without the fields that change under a tenure."""
    return {
        row.shard: replace(
            row,
            check_point=None,
            consumer_epoch=0,
            consumer_run="",
            handoff_eta_s=None,
            watermark=None,
            tries=0,
            suspicion=None,
        )
        for row in shards
    }


def _tenures(rows: dict[ShardId, Progress]) -> dict[ShardId, Progress]:
    """Progress, without what commits and failures change while a run has a shard open."""
    return {
        shard: replace(row, check_point=None, tries=0, suspicion=None) if row.consumer_run else row
        for shard, row in rows.items()
    }
