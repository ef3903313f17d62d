"""Side door for consumers without Dagster or Spark: the same leases, in any Python process.

A client joins a consumer group as a node, gets its share of the shards and saves fenced
checkpoints. `GroupMember` is what a client is built on; `ProcessorWorker` calls a `Processor` of
yours for each shard, and `PullClient` is asked for records. `SourceFeed` lets them read any source.
"""

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.client import (
    Fetched,
    GroupMember,
    Offsets,
    Processor,
    ProcessorWorker,
    PullClient,
    PulledBatch,
    Record,
    ShardFeed,
)
from dagster_leasehold.lease_store.errors import (
    BatchUnconfirmed,
    CheckpointUnsaved,
    ConfirmedTooLate,
    GapHeld,
    LeaseLost,
    NodeNameTaken,
    OutcomeUnknown,
    RunStalled,
    ShardNotOpen,
    ShardOccupied,
    StoreUnavailable,
)
from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.shard_sources.record_feed import SourceFeed

__all__ = [
    "BatchUnconfirmed",
    "CheckpointUnsaved",
    "ConfirmedTooLate",
    "Fetched",
    "GapHeld",
    "Group",
    "GroupKey",
    "GroupMember",
    "LeaseLost",
    "NodeName",
    "NodeNameTaken",
    "Offsets",
    "OutcomeUnknown",
    "Processor",
    "ProcessorWorker",
    "PullClient",
    "PulledBatch",
    "Record",
    "RunStalled",
    "ShardFeed",
    "ShardId",
    "ShardListing",
    "ShardNotOpen",
    "ShardOccupied",
    "SourceFeed",
    "StoreUnavailable",
    "open_store",
]
