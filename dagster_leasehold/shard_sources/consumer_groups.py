"""The contract of consumers that a group here takes over from, or hands over to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dagster_leasehold.lease_store.identifiers import ShardId


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The places that other consumers have come to.

    Attributes:
        cursors: by shard, the cursor of the record that they would read next.
        unstored: the shards without a stored place.
        at_work: the reason to take them for running, as a sentence that says what to do about it;
            empty if there is nothing to do.
    """

    cursors: Mapping[ShardId, str]
    unstored: Sequence[ShardId] = ()
    at_work: str = ""


class OtherConsumers(Protocol):
    """Consumers of a source that keep their places outside of the lease store."""

    def progress(self) -> GroupProgress:
        """Return their stored positions.

        Raises:
            UnknownGroup: there are no such consumers, or they read another log.
            CheckpointRefused: a stored place has no counterpart here.
            SourceError: it cannot be read.
        """
        ...


@runtime_checkable
class TakesCheckpoints(OtherConsumers, Protocol):
    """Consumers that can be told where to continue."""

    def exists(self) -> bool:
        """Return True if the service has the group."""
        ...

    def within(self, cursors: Mapping[ShardId, str]) -> list[ShardId]:
        """Return the shards whose cursor the service cannot hold: some records come again."""
        ...

    def store(self, cursors: Mapping[ShardId, str], *, timeout_s: float, ordered: bool) -> None:
        """Set the places of these shards; the group is made if it is not there.

        Args:
            cursors: by shard, the cursor of the record to read next.
            timeout_s: the time after which a new group takes a silent consumer for dead, where the
                service asks for it, in seconds.
            ordered: True if a new group reads parents before their children.

        Raises:
            CheckpointRefused: the service does not take them.
            SourceError: it does not answer.
        """
        ...
