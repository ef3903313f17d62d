"""Consumers of a group without Dagster or Spark: the same leases, tenures and checkpoints.

`GroupMember` sends heartbeats and saves checkpoints. On top of it, a `PullLoop` connects shards,
reads them through a `ShardFeed` and confirms batches. A program polls a `PullClient`, and
`ProcessorWorker` calls the user's code. Users import these names from `dagster_leasehold.clients`;
`shard_sources.record_feed` has the feeds.
"""

from dagster_leasehold.lease_store.client.feed import Fetched, Record, ShardFeed
from dagster_leasehold.lease_store.client.group_member import GroupMember
from dagster_leasehold.lease_store.client.processing import Processor, ProcessorWorker
from dagster_leasehold.lease_store.client.pulling import Offsets, PullClient, PulledBatch

__all__ = [
    "Fetched",
    "GroupMember",
    "Offsets",
    "Processor",
    "ProcessorWorker",
    "PullClient",
    "PulledBatch",
    "Record",
    "ShardFeed",
]
