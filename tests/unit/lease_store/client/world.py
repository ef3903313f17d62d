"""A virtual clock, a log in memory, and groups of a few members, for tests of the clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dagster_leasehold.lease_store.client import (
    Fetched,
    GroupMember,
    PullClient,
    PulledBatch,
    Record,
)
from dagster_leasehold.lease_store.errors import CursorExpired, CursorInvalid
from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.lease_store.store import LeaseStore
from tests.manual_clock import ManualClock

KEY = GroupKey.parse("readers", "events")
TIMEOUT_S = 30.0
BEAT_S = 5.0
PROTECT_S = 12.0
S0, S1 = ShardId("0"), ShardId("1")


@dataclass
class ListFeed:
    """A log in memory whose cursors are the records' numbers."""

    shards: dict[ShardId, list[bytes]] = field(default_factory=dict)
    read_only: set[ShardId] = field(default_factory=set)
    begins: dict[ShardId, int] = field(default_factory=dict)

    def append(self, shard: str, *values: bytes) -> None:
        self.shards.setdefault(ShardId(shard), []).extend(values)

    def cursor_at(self, shard: ShardId, position: str) -> str:
        return str(len(self.shards[shard]) if position == "end" else self.begins.get(shard, 0))

    def first_cursor(self, shard: ShardId) -> str:
        return "0"

    def clamp(self, shard: ShardId, cursor: str) -> str:
        if not cursor.isdecimal():
            raise CursorInvalid(f"{cursor} is no cursor")
        low, high = self.begins.get(shard, 0), len(self.shards[shard])
        return str(min(max(int(cursor), low), high))

    def fetch(self, shard: ShardId, cursor: str, *, records_max: int) -> Fetched:
        return self._slice(shard, int(cursor), len(self.shards[shard]), records_max)

    def fetch_between(self, shard: ShardId, start: str, end: str, *, records_max: int) -> Fetched:
        return self._slice(shard, int(start), int(end), records_max)

    def _slice(self, shard: ShardId, start: int, end: int, records_max: int) -> Fetched:
        if start < self.begins.get(shard, 0):
            raise CursorExpired(f"{start} was removed")
        if start > len(self.shards[shard]):
            raise CursorInvalid(f"{start} lies after the end")
        values = self.shards[shard][start : min(end, start + records_max)]
        records = tuple(
            Record(shard, str(place), str(place + 1), None, None, value)
            for place, value in enumerate(values, start)
        )
        stop = start + len(records)
        last = shard in self.read_only and stop == len(self.shards[shard])
        return Fetched(str(start), str(stop), records, last)


def make_group(store: LeaseStore, shards: Sequence[str] = ("0",), **settings: object) -> None:
    """A group whose shards were listed already."""
    store.create_group(Group(KEY, timeout_s=TIMEOUT_S, **settings))  # pyright: ignore
    listing = [ShardListing(ShardId(shard)) for shard in shards]
    store.sync_shards(KEY, listing, observer="test")


def memory_store(shards: Sequence[str] = ("0",), **settings: object) -> MemoryStore:
    store = MemoryStore()
    make_group(store, shards, **settings)
    return store


def member(
    store: LeaseStore, clock: ManualClock, name: str, *, incarnation: str = "", **row: object
) -> GroupMember:
    """A member that has not registered yet."""
    node = Node(NodeName(name), 0, "", **row)  # pyright: ignore
    return GroupMember(
        store,
        KEY,
        node,
        incarnation=incarnation or f"{name}-process",
        clock=clock,
        flush_s=10.0,
        pause=clock.pass_s,
    )


def pull_client(
    store: LeaseStore, clock: ManualClock, feed: ListFeed, name: str, **options: object
) -> PullClient:
    """A client whose beats the test calls."""
    return PullClient(
        store,
        KEY,
        feed,
        name=NodeName(name),
        incarnation=f"{name}-process",
        clock=clock,
        background=False,
        pause=clock.pass_s,
        **options,  # pyright: ignore
    )


def checkpoint(store: LeaseStore, shard: str = "0") -> str | None:
    """Return the checkpoint of a shard that the store has."""
    rows = store.snapshot(KEY).shards
    return next(row.check_point for row in rows if row.shard == shard)


def owner(store: LeaseStore, shard: str = "0") -> str | None:
    """Return the node that may consume a shard now."""
    rows = store.snapshot(KEY).shards
    return next(row.consumer_owner for row in rows if row.shard == shard)


def moving_to(store: LeaseStore, node: str) -> ShardId:
    """The one shard that a node has or is to get."""
    [shard] = [row.shard for row in store.snapshot(KEY).shards if row.lease_owner == node]
    return shard


def started(
    store: MemoryStore, clock: ManualClock, feed: ListFeed, name: str, *modulo: int
) -> PullClient:
    client = pull_client(store, clock, feed, name, protect_s=PROTECT_S)
    client.start(*modulo)
    return client


def polled(client: PullClient, shard: ShardId = S0, count: int = 4) -> PulledBatch:
    batch = client.poll(shard, records_max=count)
    assert batch is not None
    return batch
