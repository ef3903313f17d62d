"""The outcomes of the lease store's operations; a lost race is an outcome, not an error."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, RewriteClaim
from dagster_leasehold.lease_store.publication_rows import TableName
from dagster_leasehold.lease_store.rules.isolation import Suspicion
from dagster_leasehold.lease_store.shard_rows import Tenure


@dataclass(frozen=True, slots=True)
class Registered:
    """The node is registered; `lease_id` is its counter."""

    lease_id: int


@dataclass(frozen=True, slots=True)
class NameTaken:
    """Another incarnation has the name; `lease_id` is its counter."""

    incarnation: str
    lease_id: int


@dataclass(frozen=True, slots=True)
class Beaten:
    """The heartbeat was recorded; `lease_id` is the node's new counter."""

    lease_id: int


@dataclass(frozen=True, slots=True)
class BeatRefused:
    """The incarnation no longer has the name: it was evicted or displaced."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The conditional write took effect for these shards."""

    shards: tuple[ShardId, ...] = ()


@dataclass(frozen=True, slots=True)
class Stale:
    """The condition no longer held after a race; nothing was changed."""


@dataclass(frozen=True, slots=True)
class ShardsSynced:
    """The shards that a new listing added or changed."""

    added: tuple[ShardId, ...] = ()
    changed: tuple[ShardId, ...] = ()


@dataclass(frozen=True, slots=True)
class Opened:
    """A tenure began.

    Attributes:
        check_point: the cursor to resume at, or None.
        next_sequence: the number of the next batch.
        intent: a range that an earlier tenure did not commit. The new tenure commits it first, with
            the same bounds and batch id.
        failures: the number of failed attempts at that range, or at the first batch.
        suspicion: the suspicion about the records after the checkpoint, or None.
    """

    tenure: Tenure
    check_point: str | None
    next_sequence: int
    intent: Batch | None
    failures: int = 0
    suspicion: Suspicion | None = None


@dataclass(frozen=True, slots=True)
class OpenByOther:
    """Another run of the same node has the shard open."""

    run: str


@dataclass(frozen=True, slots=True)
class NotHeld:
    """The node cannot consume the shard now."""

    state: str
    consumer_owner: NodeName | None


@dataclass(frozen=True, slots=True)
class RewriteByOther:
    """Another run is replacing output of the shard."""

    claim: RewriteClaim


@dataclass(frozen=True, slots=True)
class TenureView:
    """A holder's view of its shard at a batch boundary; `transfer_to` is a waiting node."""

    current: bool
    transfer_to: NodeName | None = None
    paused: bool = False


@dataclass(frozen=True, slots=True)
class LockTaken:
    """Another node has the lock; `node` is None if the requesting node is not a member."""

    node: NodeName | None


@dataclass(frozen=True, slots=True)
class Settled:
    """The caller held the lock, and the write took effect."""


@dataclass(frozen=True, slots=True)
class LockOver:
    """Another node has taken the lock; nothing was changed."""


@dataclass(frozen=True, slots=True)
class PublishesElsewhere:
    """The group has another table, or the table belongs to another `group`; nothing was changed."""

    group: GroupKey
    table: TableName


@dataclass(frozen=True, slots=True)
class PointerMoved:
    """The table's pointer has moved to `location`, or is missing; nothing was changed."""

    location: str | None


@dataclass(frozen=True, slots=True)
class Unpublished:
    """A batch to rewrite is not before `until`, so it is not in the table; nothing was changed."""

    until: int
