"""The rows of the in-memory store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from copy import copy
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Generic, TypeVar

from typing_extensions import override

from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry, OutboxEvent
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchState,
    Compacted,
    RewriteClaim,
    ShardTotals,
)
from dagster_leasehold.lease_store.outcomes import TurnTaken
from dagster_leasehold.lease_store.publication_rows import (
    Publication,
    TableChange,
    TableName,
    TablePointer,
)
from dagster_leasehold.lease_store.rules.refusals import unknown_shard
from dagster_leasehold.lease_store.rules.transitions import holds
from dagster_leasehold.lease_store.shard_rows import ShardLease, Tenure
from dagster_leasehold.lease_store.shard_summary import ShardSummary
from dagster_leasehold.lease_store.stored_rows import DeliveryTurn, LogIdentity
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
        """Return all rows, those of a shard together and in the order of their numbers."""
        return [row for shard in self._shards for row in self.of(shard)]

    def __copy__(self) -> ByShard[S, V]:
        copied = ByShard[S, V]()
        copied._shards = {shard: dict(rows) for shard, rows in self._shards.items()}
        return copied


@dataclass(frozen=True, slots=True)
class Turn:
    """The turn of one node of a group: to deliver, or to publish.

    Attributes:
        of: the node and its incarnation, or None.
        epoch: the turn's fencing number.
    """

    of: tuple[NodeName, str] | None = None
    epoch: int = 0

    def is_of(self, node: NodeName | None, epoch: int) -> bool:
        """Return True if this is still a node's turn, or that of no node."""
        return (self.of[0] if self.of else None, self.epoch) == (node, epoch)


@dataclass(slots=True)
class GroupRows:
    """All rows of one group. The rows themselves are frozen: a shallow copy is a backup."""

    group: Group
    nodes: dict[NodeName, Node] = field(default_factory=dict[NodeName, Node])
    beat_times: dict[NodeName, datetime] = field(default_factory=dict[NodeName, datetime])
    shards: dict[ShardId, ShardLease] = field(default_factory=dict[ShardId, ShardLease])
    batches: ByShard[ShardId, Batch] = field(default_factory=ByShard[ShardId, Batch])
    journal: ByShard[ShardId | None, JournalEntry] = field(
        default_factory=ByShard[ShardId | None, JournalEntry]
    )
    outbox: dict[int, OutboxEvent] = field(default_factory=dict[int, OutboxEvent])
    gaps: dict[tuple[ShardId, str, str], Gap] = field(
        default_factory=dict[tuple[ShardId, str, str], Gap]
    )
    rewrites: dict[ShardId, RewriteClaim] = field(default_factory=dict[ShardId, RewriteClaim])
    compacted: dict[ShardId, Compacted] = field(default_factory=dict[ShardId, Compacted])
    versions: Counter[ShardId] = field(default_factory=Counter[ShardId])
    totals: dict[ShardId, ShardTotals] = field(default_factory=dict[ShardId, ShardTotals])
    delivering: dict[tuple[()], DeliveryTurn] = field(default_factory=dict[tuple[()], DeliveryTurn])
    publishing: Turn = Turn()
    publication: Publication | None = None
    logs: dict[tuple[()], LogIdentity] = field(default_factory=dict[tuple[()], LogIdentity])
    published: Counter[ShardId] = field(default_factory=Counter[ShardId])
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

    @property
    def members(self) -> Collection[NodeName]:
        """The nodes that somebody answers to."""
        return {name for name, node in self.nodes.items() if node.member}

    def bump(self) -> None:
        """Raise the group's generation."""
        self.group = replace(self.group, generation=self.group.generation + 1)

    def current(self, tenure: Tenure) -> ShardLease | None:
        """Return the shard's row where the tenure still holds, or None."""
        row = self.shards.get(tenure.shard)
        return row if row is not None and holds(row, tenure) else None

    def shard(self, shard: ShardId) -> ShardLease:
        """Return a shard's row.

        Raises:
            UnknownShard: there is none.
        """
        if shard not in self.shards:
            raise unknown_shard(self.group.key, shard)
        return self.shards[shard]

    def summary(self, shard: ShardId | None) -> ShardSummary:
        """Return the remains of a shard's deleted history."""
        return self.summaries.get(shard, ShardSummary(shard))

    def look_again(self, shard: ShardId, sequence: int) -> None:
        """Have rows from a number on looked at for folding again: they were written anew."""
        summary = self.summary(shard)
        if summary.folded_until > sequence:
            self.summaries[shard] = replace(
                summary, folded_until=sequence, version=summary.version + 1
            )

    def intents(self, shard: ShardId) -> list[Batch]:
        """Return the shard's batches that are only intended."""
        return [batch for batch in self.batches.of(shard) if batch.state is BatchState.INTENT]

    def committed(self, shard: ShardId, since: int = 0) -> list[Batch]:
        """Return the shard's committed batches from a number on."""
        return [
            batch
            for batch in self.batches.of(shard)
            if batch.state is BatchState.COMMITTED and batch.sequence >= since
        ]

    def next_turn(self, turn: Turn, node: NodeName | None, incarnation: str) -> Turn | TurnTaken:
        """Return the turn of a node or of none that wants it, or who else has it."""
        if node is not None and not self._alive(node, incarnation):
            return TurnTaken(None)
        if turn.of is not None and turn.of[0] != node and self._alive(*turn.of):
            return TurnTaken(turn.of[0])
        return Turn(None if node is None else (node, incarnation), turn.epoch + 1)

    def _alive(self, node: NodeName, incarnation: str) -> bool:
        row = self.nodes.get(node)
        return row is not None and row.member and row.incarnation == incarnation

    def abandon_intents(self, shard: ShardId) -> None:
        """Give up what was intended for a shard."""
        for batch in self.intents(shard):
            self.batches[shard, batch.sequence] = replace(batch, state=BatchState.ABANDONED)

    def next_sequence(self, shard: ShardId) -> int:
        """Return the number of the shard's next batch: that of an intent, if there is one."""
        settled = [
            batch.last for batch in self.batches.of(shard) if batch.state is not BatchState.INTENT
        ]
        return max(settled, default=-1) + 1


TABLES: Mapping[type, str] = {
    Node: "nodes",
    ShardLease: "shards",
    Batch: "batches",
    JournalEntry: "journal",
    OutboxEvent: "outbox",
    EventWindow: "windows",
    WindowAttempt: "window_attempts",
    DeliveryTurn: "delivering",
    LogIdentity: "logs",
    Gap: "gaps",
    ShardTotals: "totals",
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
