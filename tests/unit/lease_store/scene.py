"""A group, its rebalancers, and one clock that is moved by hand."""

from __future__ import annotations

from dataclasses import replace

from dagster_leasehold.lease_store.group_rows import Group, Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rebalancing import Rebalancer, TickReport
from dagster_leasehold.lease_store.shard_rows import ShardListing

KEY = GroupKey.parse("group", "stream")
TIMING = Timing(timeout_s=20.0, beat_s=6.0)
TICK_S = 5.0


class Scene:
    """A group with shards, and rebalancers that tick on one clock."""

    def __init__(self, shards: int = 8, store: MemoryStore | None = None, **group: object) -> None:
        self.now = 0.0
        self.store = store or MemoryStore()
        self.store.create_group(replace(Group(KEY), **group))
        self.list_shards(*(ShardListing(ShardId(str(i))) for i in range(shards)))
        self.made = 0

    def list_shards(self, *listing: ShardListing) -> None:
        self.store.sync_shards(KEY, listing, observer="test")

    def rebalancer(self, *names: str, **options: object) -> Rebalancer:
        def incarnation_of(name: NodeName) -> str:
            self.made += 1
            return f"{name}.{self.made}"

        return Rebalancer(
            self.store,
            KEY,
            serves=tuple(map(NodeName, names)),
            timing=TIMING,
            observer="+".join(names),
            incarnation_of=incarnation_of,
            clock=lambda: self.now,
            **options,
        )

    def tick(self, *rebalancers: Rebalancer, times: int = 1) -> list[TickReport]:
        reports: list[TickReport] = []
        for _ in range(times):
            self.now += TICK_S
            reports = [rebalancer.tick() for rebalancer in rebalancers]
        return reports

    def owners(self) -> dict[str, str | None]:
        shards = self.store.snapshot(KEY).shards
        return {str(lease.shard): lease.consumer_owner for lease in shards}

    def counts(self) -> list[int]:
        owners = list(self.owners().values())
        return sorted(owners.count(owner) for owner in {*owners} - {None})

    def open(self, shard: str, run: str = "run") -> Opened:
        owner = self.owners()[shard]
        assert owner is not None
        outcome = self.store.open_tenure(KEY, ShardId(shard), NodeName(owner), run)
        assert isinstance(outcome, Opened)
        return outcome
