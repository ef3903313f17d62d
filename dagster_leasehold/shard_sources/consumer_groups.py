"""The interface to other consumers of a log: a group imports or exports their positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dagster_leasehold.lease_store.identifiers import ShardId


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The stored positions of other consumers.

    Attributes:
        cursors: by shard, the cursor of the next record.
        unstored: the shards without a stored position.
        at_work: if the consumers seem to run, a message with the evidence and the remedy.
    """

    cursors: Mapping[ShardId, str]
    unstored: Sequence[ShardId] = ()
    at_work: str = ""


class OtherConsumers(Protocol):
    """Consumers of a source that store their positions outside the lease store."""

    def progress(self) -> GroupProgress:
        """Return the stored positions.

        Raises:
            UnknownGroup: these consumers do not exist, or read another log.
            CheckpointRefused: a stored position cannot be expressed as a cursor.
            SourceError: the service does not answer.
        """
        ...


@runtime_checkable
class TakesCheckpoints(OtherConsumers, Protocol):
    """Consumers whose positions can be set."""

    def exists(self) -> bool:
        """Return True if the service has the group."""
        ...

    def within(self, cursors: Mapping[ShardId, str]) -> list[ShardId]:
        """Return the shards whose cursor the service can only round down, so records repeat."""
        ...

    def store(self, cursors: Mapping[ShardId, str], *, timeout_s: float, ordered: bool) -> None:
        """Set the positions of these shards; create the group if it does not exist.

        Args:
            cursors: by shard, the cursor of the next record.
            timeout_s: the consumer timeout of a new group, if the service has one.
            ordered: True if a new group reads parents before their children.

        Raises:
            CheckpointRefused: the service refuses the positions.
            SourceError: the service does not answer.
        """
        ...
