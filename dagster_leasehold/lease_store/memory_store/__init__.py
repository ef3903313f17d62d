"""The lease store in memory, for tests, simulations and `leasehold simulate`.

`rows_in_memory` reads and writes the rows of a group, for the operations of `lease_store.roles`.
"""

from dagster_leasehold.lease_store.memory_store.rows_in_memory import MemoryTransactions
from dagster_leasehold.lease_store.store import LeaseStore

__all__ = ["MemoryStore"]


class MemoryStore(MemoryTransactions, LeaseStore):
    """All operations of `lease_store.store.LeaseStore`, in memory; safe for threads.

    `clock` is the wall clock for the journal's dates. `statements` counts the operations. `backup`
    and `restore` simulate a database that loses its last commits.
    """
