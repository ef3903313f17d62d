"""The rows of a group's shards as frozen values, a source's listing, and tenures."""

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
        lease_id: +1 at every change of ownership; the compare-and-set value of every claim.
        lease_owner: the node that has claimed it, or None.
        consumer_owner: the node that can consume it; differs from `lease_owner` in a transfer.
        check_point: the cursor up to which output is committed, or None.
        consumer_epoch: the fencing number of the newest tenure; never decreases.
        consumer_run: the run that has the shard open; empty if none has.
        handoff_eta_s: the holder's estimate until its next batch boundary, in seconds.
        watermark: event time up to which committed output is complete, or None.
        bootstrap: the cursor at which a pinned node last started the shard, or None.
        gone_parents: the parents that the source has removed for good.
        tries: the number of tenures in a row, including an open one, without a commit since the
            checkpoint. A release for a reason other than its records does not count.
        suspicion: the findings of failed attempts about the records after the checkpoint, or None.
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
    """The columns of a shard's row that change without a change of ownership."""

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
        parents: the shards that were split or merged into it. An ordered group waits for all of
            them, even for parents that are not listed yet.
        gone_parents: the parents that the source has removed for good. The group does not wait for
            a removed parent that it never had.

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
    """One uninterrupted holding of one shard by one run: the fencing token.

    Every write names the tenure as it was opened, and fails if the tenure is over.
    """

    key: GroupKey
    shard: ShardId
    holder: NodeName
    epoch: int
    run: str
