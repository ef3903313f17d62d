"""The lease store as a model in memory: what the verbs of `LeaseStore` mean, without a database.

It is the executable specification that the SQL store is compared with, and what simulations and
unit tests run on. Every verb runs under one lock, so it is atomic and safe to call from threads.
A module per role has its verbs. Simulations and tests call it; no deployment does.
"""

from dagster_leasehold.lease_store.memory_store.batches import MemoryBatches
from dagster_leasehold.lease_store.memory_store.ledger import MemoryLedger
from dagster_leasehold.lease_store.memory_store.retention import MemoryRetention
from dagster_leasehold.lease_store.memory_store.rewrites import MemoryRewrites
from dagster_leasehold.lease_store.memory_store.rolling_forward import MemoryRollingForward
from dagster_leasehold.lease_store.memory_store.shards import MemoryShards
from dagster_leasehold.lease_store.memory_store.tenures import MemoryTenures
from dagster_leasehold.lease_store.store import LeaseStore

__all__ = ["MemoryStore"]


class MemoryStore(
    MemoryShards,
    MemoryTenures,
    MemoryBatches,
    MemoryLedger,
    MemoryRewrites,
    MemoryRollingForward,
    MemoryRetention,
    LeaseStore,
):
    """All verbs of `lease_store.store.LeaseStore`, in memory.

    Args:
        clock: the wall clock for the journal's dates; nothing is decided by it.

    `statements` counts the verbs that were called; `backup` and `restore` play a database that
    loses its last commits.
    """
