"""The parts under simulation: the project's own, or a mutant in the place of one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchCommit, BatchStatistics, DataFile
from dagster_leasehold.lease_store.member import Member
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.node_planning import NodePlanner
from dagster_leasehold.lease_store.rebalancing import Rebalancer
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.store import LeaseStore
from tests.simulation.protocol.schedule import Process
from tests.simulation.protocol.seam import StoreSeam
from tests.simulation.protocol.stage import ShardLog
from tests.simulation.protocol.waiting_runs import Waits

BATCH_RECORDS_MAX = 20
RUN_BUDGET_S = 60.0


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """The outcome of a simulated sweep for one shard's range."""

    attempt: str
    files: tuple[DataFile, ...]
    statistics: BatchStatistics


@dataclass(eq=False)
class Run:
    """A run that consumes shards of one node, and everything that its consumer can use.

    Attributes:
        process: can be killed and paused.
        store: the run's connection to the store.
        key: the group.
        node: the node that it consumes for.
        incarnation: the incarnation that its beats renew.
        shards: the shards that it was launched for.
        replaces: runs that its launcher believes to have ended, by shard.
        heartbeat: returns True if the node's leases can be trusted.
        clock: the host's monotonic clock.
        log: the records.
        read: the sweep over ranges, which takes the time of reading and writing.
        stop_requested: returns True if the run was asked to stop.
        pinned: True if its group is pinned, so that shards can have bootstrap cursors.
        acknowledge: receives each batch that the run believes to be committed.
        say: receives all messages of the run.
        waits: the waits of a following run; None if the run ends once its shards are read.
        planner: plans for its node while it follows.
    """

    process: Process
    store: LeaseStore
    key: GroupKey
    node: NodeName
    incarnation: str
    shards: tuple[ShardId, ...]
    replaces: Mapping[ShardId, str]
    heartbeat: Member
    clock: Clock
    log: ShardLog
    read: Callable[[Iterable[tuple[ShardId, str, str]]], dict[ShardId, WrittenRange]]
    stop_requested: Callable[[], bool]
    pinned: bool
    acknowledge: Callable[[Sequence[BatchCommit]], None]
    say: Callable[[str], None]
    waits: Waits | None = None
    planner: NodePlanner | None = None

    @property
    def name(self) -> str:
        """The run's unique id."""
        return self.process.name

    @property
    def dead(self) -> bool:
        """True once it was killed, or has ended."""
        return self.process.dead

    def will_open(self, shard: ShardId) -> bool:
        """Return True if it has yet to open a shard; one that follows may have release it again."""
        return shard in (self.shards if self.waits is None else self.waits.awaited)


@runtime_checkable
class TimeTravel(Protocol):
    """A store that can lose its last commits, like a failover to a replica that lagged."""

    def backup(self) -> object:
        """Return all current rows."""
        ...

    def restore(self, backup: object) -> None:
        """Go back to a backup."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """The code that a simulated world runs.

    Attributes:
        consume: the consumer's loop, given a run to work for.
        store: makes an empty store, given the time of day for its journal.
        rebalancer: ticks in each code server.
        heartbeat: beats in each run.
        seam: a process's connection to the store.
    """

    consume: Callable[[Run], None]
    store: Callable[[Callable[[], datetime]], LeaseStore] = MemoryStore
    rebalancer: type[Rebalancer] = Rebalancer
    heartbeat: type[Member] = Member
    seam: type[StoreSeam] = StoreSeam
