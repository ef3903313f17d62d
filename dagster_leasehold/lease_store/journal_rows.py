"""The rows of the journal, the gaps and the outbox as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.rules.states import ShardState

TENURE_KINDS = frozenset({"open", "close", "force", "gap", "ack"})
"""The kinds of journal entries that can change a shard's progress without a new generation."""


@dataclass(frozen=True, slots=True)
class Note:
    """One change of membership, ownership, tenure or checkpoint, for the journal.

    Attributes:
        kind: `edge` (see `rules.states`), `open`, `close`, `force`, `join`, `leave`, `evict`,
            `resume` (a member registered with other settings), `group` (its settings changed),
            `gap` (held or skipped), `ack` (an operator accepted a gap), `rewrite` (committed output
            was replaced), `columns` (an operator changed the table's columns), `accept` (a shard
            continues although its parent was reopened), `hold` (a check holds a publication) or
            `override` (an operator published held batches).
        reason: for people only.
        edge: the number of an `edge`.
        facts: JSON values that code reads. A `group` has each changed setting with its values
            before and after, an `accept` the `parent`, and an `open` that rolled a shard forward
            to its table the publication (`rolled_forward`).
    """

    kind: str
    reason: str
    shard: ShardId | None = None
    edge: int | None = None
    from_state: ShardState | None = None
    to_state: ShardState | None = None
    from_owner: NodeName | None = None
    to_owner: NodeName | None = None
    epoch: int = 0
    run: str = ""
    check_point: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry(Note):
    """A row of the journal: an observer's note with a number and a date."""

    sequence: int
    observer: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Gap:
    """Records `[start, end)` of a shard that were never consumed.

    Attributes:
        acknowledged: True if an operator has accepted the loss.
        skipped: True if the checkpoint has passed it; otherwise the shard holds at `start`.
    """

    shard: ShardId
    start: str
    end: str
    reason: str
    at: datetime
    acknowledged: bool = False
    skipped: bool = True


class EventKind(StrEnum):
    """The receiver of an outbox event: Dagster, or the stream's hook."""

    MATERIALIZATION = "materialization"
    HOOK = "hook"


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """A row of the outbox: delivered at least once, with `batch_id` as its idempotency key.

    Attributes:
        attempts: the number of failed deliveries.
        error: the error of the last failed one, in one line; empty if none failed.
        at: when it was committed.
    """

    sequence: int
    kind: str
    shard: ShardId
    batch_id: str
    payload: dict[str, Any]
    run: str
    attempts: int = 0
    error: str = ""
    delivered: bool = False
    at: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class WaitingEvents:
    """A shard's undelivered events of one kind: their number and the oldest."""

    shard: ShardId
    count: int
    oldest: OutboxEvent


@dataclass(frozen=True, slots=True)
class DeliveryClaim:
    """The lock to deliver a group's hook events, with its fencing number."""

    key: GroupKey
    node: NodeName
    epoch: int
