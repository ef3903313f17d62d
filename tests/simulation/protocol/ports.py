"""Ports between the parts of a world: each names all that one part may ask of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchCommit
from dagster_leasehold.lease_store.store import LeaseStore
from tests.simulation.protocol.measures import Measures
from tests.simulation.protocol.parts import Parts, Run
from tests.simulation.protocol.schedule import Process
from tests.simulation.protocol.stage import Stage


class Ears(Protocol):
    """Everything that processes report to their observers."""

    def hear(self, *texts: str) -> None:
        """Take the words of a process, in a log line, a report or a cursor: none is a secret."""
        ...

    def acknowledge(self, process: Process, commits: Sequence[BatchCommit]) -> None:
        """Take batches that a run takes for committed."""
        ...

    def beaten(self, node: NodeName, incarnation: str) -> None:
        """Take note of a beat that was sent for an incarnation of a node."""
        ...


class Surroundings(Protocol):
    """Everything that a host can ask and do; of the other hosts it sees only the store.

    Attributes:
        stage: the stage.
        parts: the code of its processes.
        runs: all runs ever launched, by their unique ids.
        measures: receives each tick.
    """

    stage: Stage
    parts: Parts
    runs: dict[str, Run]
    measures: Measures

    @property
    def watch(self) -> Ears:
        """The observer of messages and actions of processes."""
        ...

    def connect(self, process: Process) -> LeaseStore:
        """Return a process's connection to the store."""
        ...

    def register(self, node: Node) -> None:
        """Make a node a member at once and without faults, unless its settings contradict."""
        ...


class Members(Protocol):
    """Everything that the watch asks of the nodes, and that the store cannot tell."""

    def trust_of(self, node: NodeName, incarnation: str, *, ended: bool) -> list[float]:
        """Return the virtual times until which an incarnation's processes trust themselves."""
        ...

    def worked_through(
        self, process: Process, shard: ShardId, start: str | None, end: str | None
    ) -> bool:
        """Return False if a client's user has not processed all of `[start, end)`."""
        ...
