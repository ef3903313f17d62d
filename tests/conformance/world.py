"""A consumer group to play with, and the few steps that most cases begin with."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import JournalEntry
from dagster_leasehold.lease_store.ledger_rows import BatchCommit, BatchStatistics, DataFile, Intent
from dagster_leasehold.lease_store.outcomes import Changed, NameTaken, Opened, Registered, Stale
from dagster_leasehold.lease_store.shard_rows import ShardLease, ShardListing, Tenure
from dagster_leasehold.lease_store.store import LeaseStore

A, B, C = NodeName("a"), NodeName("b"), NodeName("c")
X, Y, Z = ShardId("x"), ShardId("y"), ShardId("z")
NOON = datetime(2026, 3, 29, 12, 0, 0, 123456, tzinfo=UTC)


@dataclass
class World:
    """One group of a store under test; other groups of the store belong to other cases."""

    store: LeaseStore
    key: GroupKey
    incarnations: dict[NodeName, str] = field(default_factory=dict)

    def group(self, **settings: object) -> Group:
        group = Group(self.key, **settings)  # type: ignore[arg-type]
        self.store.create_group(group)
        return group

    def join(self, *nodes: NodeName) -> None:
        for node in nodes:
            self.incarnations[node] = f"{node}-1"
            joined = self.register(node, f"{node}-1")
            assert isinstance(joined, Registered)

    def register(
        self, node: NodeName, incarnation: str, displaced: int | None = None, **settings: object
    ) -> Registered | NameTaken:
        row = Node(node, 0, incarnation, **settings)  # type: ignore[arg-type]
        return self.store.register(self.key, row, observer="test", displaced_lease_id=displaced)

    def add(self, *shards: ShardId | ShardListing) -> None:
        listing = [s if isinstance(s, ShardListing) else ShardListing(s) for s in shards]
        self.store.sync_shards(self.key, listing, observer="test")

    def claim(self, node: NodeName, *shards: ShardId) -> None:
        claims = {shard: (node, self.shard(shard).lease_id) for shard in shards}
        outcomes = self.store.claim(self.key, claims, observer="test", reason="planned")
        assert all(isinstance(outcome, Changed) for outcome in outcomes.values())

    def shard(self, shard: ShardId) -> ShardLease:
        rows = {row.shard: row for row in self.store.snapshot(self.key).shards}
        return rows[shard]

    def node(self, node: NodeName) -> Node:
        rows = {row.name: row for row in self.store.snapshot(self.key).nodes}
        return rows[node]

    def generation(self) -> int:
        return self.store.pulse(self.key).group.generation

    def open(self, node: NodeName, shard: ShardId, run: str = "run-1") -> Opened:
        opened = self.store.open_tenure(self.key, shard, node, run)
        assert isinstance(opened, Opened), opened
        return opened

    def hold(self, node: NodeName, *shards: ShardId) -> list[Tenure]:
        """Claim and open shards in one run."""
        self.claim(node, *shards)
        return [self.open(node, shard).tenure for shard in shards]

    def transfer(self, shard: ShardId, to: NodeName) -> Changed | Stale:
        return self.store.begin_transfer(
            self.key, {shard: (to, self.shard(shard).lease_id, "balance")}, observer="test"
        )[shard]

    def intend(self, tenure: Tenure, start: str, end: str, sequence: int = 0) -> Changed | Stale:
        return self.store.record_intents([Intent(tenure, sequence, start, end)])[tenure.shard]

    def consume(
        self, tenure: Tenure, start: str, end: str, sequence: int = 0, **more: object
    ) -> Changed | Stale:
        """Intend and commit one batch."""
        assert isinstance(self.intend(tenure, start, end, sequence), Changed)
        return self.store.commit([a_commit(tenure, start, end, sequence, **more)])[tenure.shard]

    def journal(self, shard: ShardId | None = None) -> list[JournalEntry]:
        return self.store.journal(self.key, shard=shard)

    def edges(self, shard: ShardId) -> list[int | None]:
        """The edges that a shard has taken, in order."""
        return [entry.edge for entry in self.journal(shard) if entry.kind == "edge"]

    def kinds(self, shard: ShardId | None = None) -> list[str]:
        return [entry.kind for entry in self.journal(shard)]


def a_commit(
    tenure: Tenure, start: str, end: str, sequence: int = 0, **more: object
) -> BatchCommit:
    """Return a commit with statistics and one file of a separate attempt."""
    values: dict[str, object] = {
        "attempt": f"{tenure.shard}/{sequence}-{tenure.epoch}",
        "files": (DataFile(f"{tenure.shard}/{sequence}.parquet", 5, 123),),
        "statistics": BatchStatistics(5, 50, 4, 1, NOON, NOON),
    }
    return BatchCommit(tenure, sequence, start, end, **(values | more))  # type: ignore[arg-type]
