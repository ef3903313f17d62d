"""The lease store in memory, without a database: simulations and tests call it, no deployment does.

Every verb runs under one lock, so it is atomic and safe to call from threads. `rows_in_memory`
reads and writes the rows of a group, for the operations that `lease_store.roles` has written once.
"""

from dagster_leasehold.lease_store.memory_store.memory_transactions import MemoryTransactions
from dagster_leasehold.lease_store.store import LeaseStore

__all__ = ["MemoryStore"]


class MemoryStore(MemoryTransactions, LeaseStore):
    """All verbs of `lease_store.store.LeaseStore`, in memory.

    Args:
        clock: the wall clock for the journal's dates; nothing is decided by it.

    `statements` counts the verbs that were called; `backup` and `restore` play a database that
    loses its last commits.
    """
