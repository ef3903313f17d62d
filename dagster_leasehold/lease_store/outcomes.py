"""The typed outcomes of the lease store's verbs: losing a race is an outcome, not an error."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, RewriteClaim
from dagster_leasehold.lease_store.publication_rows import TableName
from dagster_leasehold.lease_store.rules.isolation import Suspicion
from dagster_leasehold.lease_store.shard_rows import Tenure


@dataclass(frozen=True, slots=True)
class Registered:
    """The name is ours; `lease_id` is its counter now."""

    lease_id: int


@dataclass(frozen=True, slots=True)
class NameTaken:
    """Another incarnation answers to the name; its counter is what to watch."""

    incarnation: str
    lease_id: int


@dataclass(frozen=True, slots=True)
class Beaten:
    """The beat counted."""

    lease_id: int


@dataclass(frozen=True, slots=True)
class BeatRefused:
    """The name is no longer this incarnation's: it was evicted or taken."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The conditional write took effect for these shards."""

    shards: tuple[ShardId, ...] = ()


@dataclass(frozen=True, slots=True)
class Stale:
    """The condition no longer held; nothing was changed. A normal outcome of a race."""


@dataclass(frozen=True, slots=True)
class ShardsSynced:
    """The changes that a new shard list made."""

    added: tuple[ShardId, ...] = ()
    changed: tuple[ShardId, ...] = ()


@dataclass(frozen=True, slots=True)
class Opened:
    """A tenure began.

    Attributes:
        check_point: where to resume, or None where nothing is stored.
        next_sequence: the number of the next batch.
        intent: a range that an earlier tenure intended and did not commit: it comes first, with
            the same bounds and the same batch id.
        failures: the tries of that range that failed, or of the first batch if there is none.
        suspicion: of the records behind the checkpoint, after those tries; or None.
    """

    tenure: Tenure
    check_point: str | None
    next_sequence: int
    intent: Batch | None
    failures: int = 0
    suspicion: Suspicion | None = None


@dataclass(frozen=True, slots=True)
class OpenByOther:
    """Another run has the shard open under the same node."""

    run: str


@dataclass(frozen=True, slots=True)
class NotHeld:
    """The node may not consume the shard now."""

    state: str
    consumer_owner: NodeName | None


@dataclass(frozen=True, slots=True)
class RewriteByOther:
    """Another run is replacing output of the shard."""

    claim: RewriteClaim


@dataclass(frozen=True, slots=True)
class TenureView:
    """A holder's view of its own shard at a batch boundary.

    Attributes:
        current: the tenure still holds.
        transfer_to: the node that waits for the shard, if any.
        paused: the group is paused.
    """

    current: bool
    transfer_to: NodeName | None = None
    paused: bool = False


@dataclass(frozen=True, slots=True)
class LockTaken:
    """The lock to deliver or to publish is another's.

    Attributes:
        node: the live node that has it; None where the one that asked is not alive itself.
    """

    node: NodeName | None


@dataclass(frozen=True, slots=True)
class Settled:
    """The lock was current, and the write took effect."""


@dataclass(frozen=True, slots=True)
class LockOver:
    """The lock has passed to another since; nothing was changed."""


@dataclass(frozen=True, slots=True)
class PublishesElsewhere:
    """The group and the table do not belong together; nothing was changed.

    Attributes:
        group: the one that publishes to the table.
        table: the one that the group publishes to.
    """

    group: GroupKey
    table: TableName


@dataclass(frozen=True, slots=True)
class PointerMoved:
    """The table's pointer is not where it was seen; nothing was changed.

    Attributes:
        location: of the table's newest metadata file; None where the catalog has no such table.
    """

    location: str | None


@dataclass(frozen=True, slots=True)
class Unpublished:
    """A batch that was to be rewritten is not in the group's table yet; nothing was changed.

    Attributes:
        until: the batches of the shard with smaller numbers are.
    """

    until: int
