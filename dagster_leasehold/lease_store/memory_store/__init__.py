"""The lease store in memory, without a database: simulations and tests call it, no deployment does.

Every verb runs under one lock, so it is atomic and safe to call from threads. `rows_in_memory`
reads and writes the rows of a group, for the operations that `lease_store.roles` has written once.
Roles whose operations are not written there yet have a module here each.
"""

from dagster_leasehold.lease_store.memory_store.retention import MemoryRetention
from dagster_leasehold.lease_store.memory_store.rewrites import MemoryRewrites
from dagster_leasehold.lease_store.memory_store.rolling_forward import MemoryRollingForward
from dagster_leasehold.lease_store.store import LeaseStore

__all__ = ["MemoryStore"]


class MemoryStore(MemoryRewrites, MemoryRollingForward, MemoryRetention, LeaseStore):
    """All verbs of `lease_store.store.LeaseStore`, in memory.

    Args:
        clock: the wall clock for the journal's dates; nothing is decided by it.

    `statements` counts the verbs that were called; `backup` and `restore` play a database that
    loses its last commits.
    """
