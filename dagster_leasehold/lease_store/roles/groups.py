"""The role for consumer groups: their settings, and pictures of all that they hold."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from dagster_leasehold.lease_store.draining import Draining
from dagster_leasehold.lease_store.group_rows import Group, Pulse, Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId, StreamName
from dagster_leasehold.lease_store.shard_rows import Progress


class Groups(Protocol):
    """The verbs on groups, and those that read all of a group."""

    def create_group(self, group: Group) -> None:
        """Insert a group.

        Raises:
            GroupExists: the stream has a group of this name.
            GroupLimitReached: the stream has as many groups as allowed.
        """
        ...

    def groups(self, stream: StreamName | None = None) -> list[Group]:
        """Return all groups, or those of one stream, in order of stream and name."""
        ...

    def update_group(self, group: Group, *, observer: str) -> Group:
        """Replace a group's settings and bump its generation; its order takes effect at once.

        Ordered to unordered frees every waiting shard (edge 2); unordered to ordered leaves
        running shards alone.
        """
        ...

    def delete_group(self, key: GroupKey, *, force: bool = False) -> None:
        """Remove a group with all that belongs to it.

        Raises:
            GroupInUse: a node of it is a member and `force` is not given.
        """
        ...

    def pulse(self, key: GroupKey, node: NodeName | None = None) -> Pulse:
        """Return the group and its nodes' counters, or those of one node, in one statement."""
        ...

    def snapshot(self, key: GroupKey) -> Snapshot:
        """Return the group, its nodes and its shards, read in one transaction."""
        ...

    def draining(self, key: GroupKey) -> Draining:
        """Return the work under way on each shard; nothing can begin after a committed pause.

        All rows are locked for the reading, so that an opening that overtook the pause is seen.
        """
        ...

    def progress(self, key: GroupKey, nodes: Collection[NodeName]) -> dict[ShardId, Progress]:
        """Return checkpoint and tenure of the shards that `nodes` may consume; one statement."""
        ...
