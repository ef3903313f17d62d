"""The rows of the in-memory store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from copy import copy
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Generic, TypeVar

from typing_extensions import override

from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry, OutboxEvent
from dagster_leasehold.lease_store.ledger_rows import Batch, LedgerCounters, RewriteClaim
from dagster_leasehold.lease_store.publication_rows import (
    Publication,
    TableChange,
    TableName,
    TablePointer,
)
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.shard_summary import ShardSummary
from dagster_leasehold.lease_store.stored_rows import DeliveryLock, LogIdentity
from dagster_leasehold.lease_store.window_rows import EventWindow, WindowAttempt

S = TypeVar("S")
V = TypeVar("V")


class ByShard(MutableMapping[tuple[S, int], V], Generic[S, V]):
    """Numbered rows, sorted by shard: a verb on one shard costs what that shard holds.

    They come by shard in the order of its first row.
    """

    __slots__ = ("_shards",)

    def __init__(self) -> None:
        self._shards: dict[S, dict[int, V]] = {}

    @override
    def __getitem__(self, key: tuple[S, int]) -> V:
        shard, number = key
        rows = self._shards.get(shard)
        if rows is None:
            raise KeyError(key)
        return rows[number]

    @override
    def __setitem__(self, key: tuple[S, int], row: V) -> None:
        shard, number = key
        self._shards.setdefault(shard, {})[number] = row

    @override
    def __delitem__(self, key: tuple[S, int]) -> None:
        shard, number = key
        del self._shards[shard][number]

    @override
    def __iter__(self) -> Iterator[tuple[S, int]]:
        return ((shard, number) for shard, rows in self._shards.items() for number in rows)

    @override
    def __len__(self) -> int:
        return sum(map(len, self._shards.values()))

    def of(self, shard: S) -> list[V]:
        """Return the rows of one shard in the order of their numbers."""
        rows = self._shards.get(shard, {})
        return [rows[number] for number in sorted(rows)]

    def newest(self, shard: S) -> V | None:
        """Return the row of a shard with the highest number, or None."""
        rows = self._shards.get(shard)
        return rows[max(rows)] if rows else None

    def all(self) -> list[V]:
        """Return all rows, by shard and in the order of their numbers."""
        return [row for shard in self._shards for row in self.of(shard)]

    def __copy__(self) -> ByShard[S, V]:
        copied = ByShard[S, V]()
        copied._shards = {shard: dict(rows) for shard, rows in self._shards.items()}
        return copied


@dataclass(slots=True)
class GroupRows:
    """All rows of one group. The rows themselves are frozen: a shallow copy is a backup."""

    group: Group
    nodes: dict[NodeName, Node] = field(default_factory=dict[NodeName, Node])
    beat_times: dict[NodeName, datetime] = field(default_factory=dict[NodeName, datetime])
    shards: dict[ShardId, ShardLease] = field(default_factory=dict[ShardId, ShardLease])
    generations: dict[ShardId, int] = field(default_factory=dict[ShardId, int])
    batches: ByShard[ShardId, Batch] = field(default_factory=ByShard[ShardId, Batch])
    journal: ByShard[ShardId | None, JournalEntry] = field(
        default_factory=ByShard[ShardId | None, JournalEntry]
    )
    outbox: dict[int, OutboxEvent] = field(default_factory=dict[int, OutboxEvent])
    gaps: dict[tuple[ShardId, str, str], Gap] = field(
        default_factory=dict[tuple[ShardId, str, str], Gap]
    )
    rewrites: dict[ShardId, RewriteClaim] = field(default_factory=dict[ShardId, RewriteClaim])
    counters: dict[ShardId, LedgerCounters] = field(default_factory=dict[ShardId, LedgerCounters])
    delivering: dict[tuple[()], DeliveryLock] = field(default_factory=dict[tuple[()], DeliveryLock])
    publications: dict[tuple[()], Publication] = field(default_factory=dict[tuple[()], Publication])
    logs: dict[tuple[()], LogIdentity] = field(default_factory=dict[tuple[()], LogIdentity])
    changes: dict[int, TableChange] = field(default_factory=dict[int, TableChange])
    windows: dict[tuple[str, datetime], EventWindow] = field(
        default_factory=dict[tuple[str, datetime], EventWindow]
    )
    window_attempts: dict[int, WindowAttempt] = field(default_factory=dict[int, WindowAttempt])
    summaries: dict[ShardId | None, ShardSummary] = field(
        default_factory=dict[ShardId | None, ShardSummary]
    )

    def copy(self) -> GroupRows:
        """Return a copy of the rows as they are now."""
        return GroupRows(**{each.name: copy(getattr(self, each.name)) for each in fields(self)})


TABLES: Mapping[type, str] = {
    Node: "nodes",
    ShardLease: "shards",
    Batch: "batches",
    JournalEntry: "journal",
    OutboxEvent: "outbox",
    EventWindow: "windows",
    WindowAttempt: "window_attempts",
    DeliveryLock: "delivering",
    LogIdentity: "logs",
    Gap: "gaps",
    LedgerCounters: "counters",
    RewriteClaim: "rewrites",
    Publication: "publications",
    TableChange: "changes",
    ShardSummary: "summaries",
}
"""The attribute of `GroupRows` that holds the rows of each kind."""


@dataclass(slots=True)
class AllRows:
    """All rows of a store in memory, and what numbers and dates them."""

    clock: Callable[[], datetime]
    groups: dict[GroupKey, GroupRows] = field(default_factory=dict[GroupKey, GroupRows])
    pointers: dict[TableName, TablePointer] = field(default_factory=dict[TableName, TablePointer])
    sequence: int = 0

    def next_sequence(self) -> int:
        """Return a number that is larger than all before."""
        self.sequence += 1
        return self.sequence
