"""Consumers of a group without Dagster or Spark: the same leases, tenures and checkpoints.

For people who consume from a Python program of their own; in the package only the simulation calls
it, and `shard_sources.record_feed`, which makes feeds. `GroupMember` is the heartbeat surface that
any client can be built on. A `PullLoop` connects a member's shards, reads them through a
`ShardFeed` and saves confirmed checkpoints: `PullClient` is asked for records, and
`ProcessorWorker` calls the user's code.
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
