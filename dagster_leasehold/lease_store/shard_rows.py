"""The rows of a group's shards as frozen values, a source's listing of them, and tenures."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Self

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.rules.isolation import Suspicion, blocks
from dagster_leasehold.lease_store.rules.states import ShardState


@dataclass(frozen=True, slots=True)
class ShardLease:
    """A shard within a group: row of `loghub_client_shard_lease`.

    Attributes:
        lease_id: +1 at every change of ownership; the test-and-set of every claim.
        lease_owner: the node that has claimed it, or None.
        consumer_owner: who may consume and persist now; differs from `lease_owner` in a transfer.
        check_point: the cursor up to which output is committed; None where nothing is stored.
        consumer_epoch: the fencing number of the newest tenure; never decreases.
        consumer_run: the run that has the shard open; empty when none has.
        handoff_eta_s: how long the holder expects to need until its next batch boundary.
        watermark: event time up to which committed output is complete, or None.
        bootstrap: the bootstrap cursor that a pinned node last started the shard at, or None.
        gone_parents: the parents that the source has removed for good.
        tries: the tenures in a row, the open one included, that began at the checkpoint and neither
            committed nor released for a reason that has nothing to do with records.
        suspicion: what failed tries tell of the records behind the checkpoint, or None.
    """

    shard: ShardId
    state: ShardState
    lease_id: int = 0
    lease_owner: NodeName | None = None
    consumer_owner: NodeName | None = None
    check_point: str | None = None
    consumer_epoch: int = 0
    consumer_run: str = ""
    handoff_eta_s: float | None = None
    parents: tuple[ShardId, ...] = ()
    hash_begin: str = ""
    hash_end: str = ""
    read_only: bool = False
    subscribable: bool = True
    watermark: datetime | None = None
    bootstrap: str | None = None
    gone_parents: tuple[ShardId, ...] = ()
    tries: int = 0
    suspicion: Suspicion | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one served shard: the part of its row that changes without a generation."""

    shard: ShardId
    check_point: str | None
    consumer_epoch: int
    consumer_run: str
    tries: int = 0
    suspicion: Suspicion | None = None

    @classmethod
    def of(cls, row: ShardLease) -> Self:
        """Return the progress of a shard from its row."""
        return cls(*(getattr(row, each.name) for each in fields(cls)))

    @property
    def blocked(self) -> bool:
        """True if the shard needs runs of its own."""
        return blocks(self.tries, self.suspicion)


@dataclass(frozen=True, slots=True)
class ShardListing:
    """One shard as its source lists it.

    Attributes:
        parents: the shards that it came from. An ordered group waits for all of them, also for
            parents that were not listed yet.
        gone_parents: the parents that the source has removed for good and will not list again:
            one that the group never had cannot be finished, so that it is not waited for.

    Examples:
        >>> ShardListing(ShardId("2"), parents=(ShardId("0"), ShardId("1"))).read_only
        False
    """

    shard: ShardId
    parents: tuple[ShardId, ...] = ()
    hash_begin: str = ""
    hash_end: str = ""
    read_only: bool = False
    subscribable: bool = True
    gone_parents: tuple[ShardId, ...] = ()


@dataclass(frozen=True, slots=True)
class Tenure:
    """One uninterrupted holding of one shard by one run: the fencing token, held since opening.

    Nothing re-reads it just before a write: a write names the tenure as it was opened, and fails
    when the store has moved on.
    """

    key: GroupKey
    shard: ShardId
    holder: NodeName
    epoch: int
    run: str
