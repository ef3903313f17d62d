"""Consumers of a group without Dagster or Spark: the same leases, tenures and checkpoints.

`GroupMember` is the heartbeat surface that any client can be built on. `PullClient` and
`ProcessorWorker` are two clients: one is asked for records, the other calls the user's code.
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
