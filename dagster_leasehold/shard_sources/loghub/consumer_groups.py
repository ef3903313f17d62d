"""Checkpoints of the service's consumer groups, so that consumption can move here and back.

The service keeps a cursor for each shard of a group: the next LogGroup. That equals a checkpoint
here, unless the checkpoint lies within a LogGroup.
"""

from __future__ import annotations

from collections.abc import Mapping

from dagster_leasehold.lease_store.errors import UnknownGroup, listed, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.consumer_groups import GroupProgress
from dagster_leasehold.shard_sources.loghub.cursors import GroupCursor
from dagster_leasehold.shard_sources.loghub.source import LogHub


class ServiceConsumerGroup:
    """A consumer group of the service.

    Args:
        stopped: True if the user confirms that its consumers have stopped. The service reports
            them as holders of shards for some time afterwards.
    """

    def __init__(self, source: LogHub, name: str, *, stopped: bool) -> None:
        self._source = source
        self._name = name
        self._stopped = stopped

    def exists(self) -> bool:
        """Return True if the service has the group."""
        return self._name in self._source.client.consumer_groups()

    def progress(self) -> GroupProgress:
        """Return the group's checkpoints, and the consumers that hold its shards.

        Raises:
            UnknownGroup: the service has no such group.
            CursorInvalid: a stored checkpoint is not a cursor.
        """
        groups = sorted(self._source.client.consumer_groups())
        if self._name not in groups:
            raise UnknownGroup(
                f"The log service has no consumer group {shown(self._name)} of "
                f"{self._source.options.logstore}; its groups are: {listed(groups)}."
            )
        rows = {
            ShardId(str(row["shard"])): row for row in self._source.client.checkpoints(self._name)
        }
        checkpoints = {shard: str(row.get("checkpoint") or "") for shard, row in rows.items()}
        busy_shards = sorted((shard for shard, row in rows.items() if row.get("consumer")), key=int)
        doubt = (
            f"The log service reports consumers of {shown(self._name)} that hold shards "
            f"{', '.join(busy_shards)}: stop them, and add --stopped. The service also reports "
            "consumers that stopped recently."
        )
        return GroupProgress(
            cursors={
                shard: str(GroupCursor.from_service(shard, text))
                for shard, text in checkpoints.items()
                if text
            },
            unstored=[shard for shard, text in checkpoints.items() if not text],
            at_work=doubt if busy_shards and not self._stopped else "",
        )

    def within(self, cursors: Mapping[ShardId, str]) -> list[ShardId]:
        """Return the shards whose cursor lies within a LogGroup, so the service cannot store it."""
        return [each for each, cursor in cursors.items() if GroupCursor.parse(each, cursor).index]

    def store(self, cursors: Mapping[ShardId, str], *, timeout_s: float, ordered: bool) -> None:
        """Set the service's checkpoints; one within a LogGroup becomes the group's beginning."""
        if not self.exists():
            self._source.client.create_consumer_group(
                self._name, max(1, round(timeout_s)), ordered=ordered
            )
        for shard, cursor in cursors.items():
            whole = GroupCursor(GroupCursor.parse(shard, cursor).group)
            self._source.client.set_checkpoint(
                self._name, self._source.number_of(shard), whole.service
            )
