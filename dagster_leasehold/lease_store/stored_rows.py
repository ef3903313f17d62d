"""The kinds of rows of a group, and the conditions that select them.

A condition is the value of a field, a `range` of numbers, a set of values, or one of the classes
below. `sql_store` translates conditions to SQL, `memory_store` to comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry, OutboxEvent
from dagster_leasehold.lease_store.ledger_rows import Batch, LedgerCounters, RewriteClaim
from dagster_leasehold.lease_store.publication_rows import Publication, TableChange
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.shard_summary import ShardSummary
from dagster_leasehold.lease_store.window_rows import EventWindow, WindowAttempt


class Raced(Exception):
    """Rows changed between an operation's first read and its locks, so it is retried."""


NO_GROUP = GroupKey.parse("none", "none")
"""The group of an operation on the whole store."""


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """The identity of the log that a group's cursors belong to."""

    identity: str


@dataclass(frozen=True, slots=True)
class DeliveryLock:
    """The lock to deliver the events of a group. No epoch is used twice."""

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
    """A change: add this number to the field."""

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
"""The fields that identify a row within its group, also the order of reading."""

NUMBERED = (OutboxEvent, TableChange)
"""The store numbers and dates these rows when they are added."""


def given(**conditions: Any) -> dict[str, Any]:
    """Return the conditions whose value is not None."""
    return {name: value for name, value in conditions.items() if value is not None}
