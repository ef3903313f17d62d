"""Consumers of a group without Dagster or Spark: the same leases, tenures and checkpoints.

For those who consume from a Python program of their own; in the package only the simulation calls
it, and `shard_sources.record_feed`, which makes feeds.
`GroupMember` is the heartbeat surface that any client can be built on; `held_shards` knows its
shards. `PullClient` is asked for records (`pulling`, `connections`, `pinning`), and
`ProcessorWorker` calls the user's code (`shard_worker`); both begin by `starting`, and read a log
through a `ShardFeed`.
"""

from dagster_leasehold.lease_store.client.connections import Offsets, PulledBatch
from dagster_leasehold.lease_store.client.feed import Fetched, Record, ShardFeed
from dagster_leasehold.lease_store.client.group_member import GroupMember
from dagster_leasehold.lease_store.client.processing import ProcessorWorker
from dagster_leasehold.lease_store.client.pulling import PullClient
from dagster_leasehold.lease_store.client.shard_worker import Processor

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
