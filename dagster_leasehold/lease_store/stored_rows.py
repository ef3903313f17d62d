"""The kinds of rows that a group has, and the conditions that select some of them.

A condition is the value of a field, or a `range` of numbers, a set of values, or one of the
classes below. Both stores read the same conditions: `sql_store` as SQL, `memory_store` as
comparisons.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry, OutboxEvent
from dagster_leasehold.lease_store.ledger_rows import Batch, LedgerCounters, RewriteClaim
from dagster_leasehold.lease_store.publication_rows import Publication, TableChange
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.shard_summary import ShardSummary
from dagster_leasehold.lease_store.window_rows import EventWindow, WindowAttempt


class Raced(Exception):
    """The rows changed between an operation's first look and its locks: look again."""


KEYS_PER_STATEMENT = 500
Key = TypeVar("Key", ShardId, int)
Value = TypeVar("Value")
NO_GROUP = GroupKey.parse("none", "none")
"""Stands in for the group of an operation that concerns the whole store."""


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """The identity of the log that a group's cursors belong to."""

    identity: str


@dataclass(frozen=True, slots=True)
class DeliveryLock:
    """A node's lock to deliver the events of its group. No epoch is used twice."""

    node: NodeName | None
    incarnation: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Above:
    """The field is larger than this value."""

    value: Any


@dataclass(frozen=True, slots=True)
class Below:
    """The field is smaller than this value."""

    value: Any


@dataclass(frozen=True, slots=True)
class Plus:
    """A change: the field grows by this number."""

    value: int


KEYS: Mapping[type, tuple[str, ...]] = {
    Node: ("name",),
    ShardLease: ("shard",),
    Batch: ("shard", "sequence"),
    JournalEntry: ("sequence",),
    OutboxEvent: ("sequence",),
    Gap: ("shard", "start", "end"),
    RewriteClaim: ("shard",),
    ShardSummary: ("shard",),
    LedgerCounters: ("shard",),
    Publication: (),
    TableChange: ("sequence",),
    EventWindow: ("asset", "start"),
    WindowAttempt: ("slot",),
    DeliveryLock: (),
    LogIdentity: (),
}
"""The fields that tell one row of a group from the others; also the order of reading."""

NUMBERED = (OutboxEvent, TableChange)
"""The store numbers and dates these when they are added."""


def given(**conditions: Any) -> dict[str, Any]:
    """Return the conditions whose value is not None."""
    return {name: value for name, value in conditions.items() if value is not None}


def portions(keys: Iterable[Key], size: int | None = None) -> Iterator[Sequence[Key]]:
    """Pieces of some keys, in order, that one statement can ask for."""
    return chunks(sorted(keys), size)


def chunks(values: Sequence[Value], size: int | None = None) -> Iterator[Sequence[Value]]:
    """Pieces of some values in the given order."""
    size = size or KEYS_PER_STATEMENT
    return (values[start : start + size] for start in range(0, len(values), size))
