"""The rows that tell what happened as frozen values: journal, gaps, events of the outbox."""

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

    `kind` is one of `edge, open, close, force, join, leave, evict, resume, group, gap, ack,
    rewrite, accept`. For `edge` the number of the edge of `lease_store.rules.states` is in `edge`;
    `resume` is a member that registered again with other settings; `group` is a change of the
    group's settings; `gap` is a range that was found missing or was skipped, and `ack` one that
    an operator accepted; `rewrite` is committed output that was replaced; `accept` is a shard that
    continues although its parent was reopened.

    Attributes:
        reason: for people alone; no code reads it.
        facts: what code reads beside the columns, as JSON values: for `group` each changed setting
            with its values before and after, for `accept` the `parent`, for an `open` that rolled a
            shard forward to its table the publication (`rolled_forward`).
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
    """A row of the journal: a note with its number, its date and who wrote it."""

    sequence: int
    observer: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Gap:
    """Records that were never consumed: `[start, end)` of a shard, and why.

    Attributes:
        acknowledged: an operator has accepted the loss.
        skipped: the checkpoint has moved past it; otherwise the shard holds at `start`.
    """

    shard: ShardId
    start: str
    end: str
    reason: str
    at: datetime
    acknowledged: bool = False
    skipped: bool = True


class EventKind(StrEnum):
    """The receiver of an event of the outbox: Dagster, or the hook of the stream's declaration."""

    MATERIALIZATION = "materialization"
    HOOK = "hook"


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """A row of the outbox: delivered at least once, with `batch_id` as its idempotency key.

    Attributes:
        attempts: how often its delivery has failed.
        error: how it failed last, in one line; empty where it did not.
        at: when it was committed; its age counts once it is delivered.
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
    """The number of a shard's undelivered events of one kind; `oldest` comes next."""

    shard: ShardId
    count: int
    oldest: OutboxEvent


@dataclass(frozen=True, slots=True)
class DeliveryClaim:
    """The lock to deliver a group's hook events: a node, and the lock's fencing number."""

    key: GroupKey
    node: NodeName
    epoch: int
