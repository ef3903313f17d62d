"""Checkpoints of the service's own consumer groups, so that consumption can move here and back.

The service keeps a cursor for each shard of a group: the LogGroup that is read next. That is what
a checkpoint is here, as long as it does not lie within a LogGroup.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_leasehold.lease_store.errors import CheckpointRefused, UnknownGroup, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.loghub.cursors import GroupCursor
from dagster_leasehold.shard_sources.loghub.source import LogHub

NAMES_SHOWN_MAX = 10


@dataclass(frozen=True, slots=True)
class ServiceCheckpoint:
    """The place of one of the service's consumer groups in a shard.

    Attributes:
        cursor: the service's cursor; None where nothing is stored.
        consumer: the holder of the shard, as far as the service tells; empty when there is none.
    """

    cursor: GroupCursor | None
    consumer: str


class ServiceConsumerGroup:
    """A consumer group of a logstore, in the service."""

    def __init__(self, source: LogHub, name: str) -> None:
        self._source = source
        self._name = name

    @property
    def exists(self) -> bool:
        """True if the service has the group."""
        return self._name in self._source.client.consumer_groups()

    def checkpoints(self) -> dict[ShardId, ServiceCheckpoint]:
        """Return the checkpoints that the service has stored, by shard.

        Raises:
            UnknownGroup: it has no such group.
            CursorInvalid: a stored checkpoint is no cursor.
        """
        groups = sorted(self._source.client.consumer_groups())
        if self._name not in groups:
            names = ", ".join(groups[:NAMES_SHOWN_MAX]) or "none"
            raise UnknownGroup(
                f"The log service has no consumer group {shown(self._name)} of "
                f"{self._source.options.logstore}; known are: {names}."
            )
        checkpoints: dict[ShardId, ServiceCheckpoint] = {}
        for row in self._source.client.checkpoints(self._name):
            shard = ShardId(str(row["shard"]))
            text = str(row.get("checkpoint") or "")
            cursor = GroupCursor.from_service(shard, text) if text else None
            checkpoints[shard] = ServiceCheckpoint(cursor, str(row.get("consumer") or ""))
        return checkpoints

    def create(self, timeout_s: float, *, ordered: bool) -> None:
        """Make the group in the service, without checkpoints."""
        self._source.client.create_consumer_group(
            self._name, max(1, round(timeout_s)), ordered=ordered
        )

    def store(self, shard: ShardId, cursor: GroupCursor) -> None:
        """Set the service's checkpoint of a shard, whoever holds it there.

        Raises:
            CheckpointRefused: the cursor lies within a LogGroup.
        """
        if cursor.index:
            raise CheckpointRefused(
                f"The checkpoint {cursor} of shard {shard} lies within a LogGroup, where the "
                "service cannot point."
            )
        self._source.client.set_checkpoint(
            self._name, self._source.number_of(shard), cursor.service
        )
