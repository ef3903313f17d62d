"""Rebalancing a weighted group: loads are balanced, and measured again as the ledger grows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from dagster_leasehold.lease_store.group_rows import Group, Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchCommit, BatchStatistics, Intent
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rebalancing import WEIGHING_S, Rebalancer
from dagster_leasehold.lease_store.shard_rows import ShardListing

KEY = GroupKey.parse("group", "stream")
A, B = NodeName("a"), NodeName("b")
SHARDS = [ShardId(str(number)) for number in range(6)]
NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)


class Scene:
    """Two nodes with separate rebalancers, and a ledger that grows as a test says."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.store = MemoryStore(lambda: NOON + timedelta(seconds=self.now_s))
        self.store.create_group(Group(KEY, weighted=True))
        self.store.sync_shards(KEY, [ShardListing(shard) for shard in SHARDS], observer="test")
        self.rebalancers = [
            Rebalancer(
                self.store,
                KEY,
                serves=(node,),
                timing=Timing(),
                observer=str(node),
                incarnation_of=lambda name: f"{name}-1",
                clock=lambda: self.now_s,
            )
            for node in (A, B)
        ]

    def tick(self) -> list[str]:
        self.now_s += 5
        return [line for each in self.rebalancers for line in each.tick().decisions]

    def held(self) -> dict[NodeName, set[ShardId]]:
        held: dict[NodeName, set[ShardId]] = {A: set(), B: set()}
        for lease in self.store.snapshot(KEY).shards:
            if lease.consumer_owner:
                held[lease.consumer_owner].add(lease.shard)
        return held

    def consume(self, records: dict[ShardId, int]) -> None:
        """Commit one batch of each shard by its owner."""
        self.now_s += 10
        for lease in self.store.snapshot(KEY).shards:
            assert lease.consumer_owner is not None
            opened = self.store.open_tenure(KEY, lease.shard, lease.consumer_owner, "run")
            assert isinstance(opened, Opened)
            start = int(opened.check_point or 0)
            bounds = opened.next_sequence, str(start), str(start + records[lease.shard])
            self.store.record_intents([Intent(opened.tenure, *bounds)])
            statistics = BatchStatistics(records[lease.shard])
            self.store.commit([BatchCommit(opened.tenure, *bounds, "f", (), statistics)])
            self.store.close_tenure(opened.tenure, reason="caught up")


def test_a_busy_shard_ends_alone_on_a_node() -> None:
    scene = Scene()
    for _ in range(3):
        scene.tick()
    assert sorted(len(shards) for shards in scene.held().values()) == [3, 3], "nothing is known yet"
    busy = dict.fromkeys(SHARDS, 100) | {SHARDS[0]: 600}
    for _ in range(6):
        scene.consume(busy)
        scene.tick()
    scene.now_s += WEIGHING_S
    for _ in range(3):
        scene.tick()
    owner = next(node for node, shards in scene.held().items() if SHARDS[0] in shards)
    assert scene.held()[owner] == {SHARDS[0]}
    moved = len(scene.store.journal(KEY))
    for _ in range(20):
        scene.consume(busy)
        scene.tick()
    edges = [entry for entry in scene.store.journal(KEY)[moved:] if entry.edge is not None]
    assert edges == [], "the same rates move nothing"


def test_weights_are_read_once_a_minute_and_not_in_every_tick() -> None:
    scene = Scene()
    for _ in range(3):
        scene.tick()
    before = scene.store.statements["heads"]
    for _ in range(24):
        scene.tick()
    # Backlog and throughput both begin with the heads.
    assert scene.store.statements["heads"] - before == 2 * 2 * (24 * 5 // WEIGHING_S)
