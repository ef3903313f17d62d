"""The parts under simulation: the project's own, or a mutant in the place of one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

from dagster_leasehold.lease_store.heartbeat import Heartbeat
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.rebalancing import Rebalancer
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.simulation.host import Run
from dagster_leasehold.simulation.seam import StoreSeam


@runtime_checkable
class TimeTravel(Protocol):
    """A store that can lose its last commits, like a failover to a replica that was behind."""

    def backup(self) -> object:
        """All rows as they are now."""
        ...

    def restore(self, backup: object) -> None:
        """Go back to a backup."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What a simulated world is made of.

    Attributes:
        consume: the consumer's loop, given a run to work for.
        store: makes an empty store, given the time of day for its journal.
        rebalancer: what a code server ticks.
        heartbeat: what a run beats with.
        seam: a process's connection to the store.
    """

    consume: Callable[[Run], None]
    store: Callable[[Callable[[], datetime]], LeaseStore] = MemoryStore
    rebalancer: type[Rebalancer] = Rebalancer
    heartbeat: type[Heartbeat] = Heartbeat
    seam: type[StoreSeam] = StoreSeam
