"""What a pull client keeps of each shard that is connected."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_leasehold.lease_store.client.feed import Record
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import Tenure


@dataclass(frozen=True, slots=True)
class PulledBatch:
    """Records of one shard, to be confirmed within the protect time.

    Attributes:
        number: tells the batches of one client apart.
        start: the cursor of the first record.
        end: the cursor after the last record.
    """

    number: int
    shard: ShardId
    start: str
    end: str
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where a connected shard stands.

    Attributes:
        polled: up to which records were delivered.
        confirmed: up to which they were confirmed.
        persisted: the checkpoint that the store is known to have, or None.
    """

    polled: str
    confirmed: str
    persisted: str | None


@dataclass(slots=True)
class Connection:
    """A connected shard. At most one batch is outstanding, protected until `protected_until`."""

    tenure: Tenure
    confirmed: str
    outstanding: PulledBatch | None = None
    protected_until: float = 0.0
    ends_shard: bool = False
    fetching: bool = False
    leaving: bool = False
