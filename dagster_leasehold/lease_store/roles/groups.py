"""The role for consumer groups: their settings, and pictures of all that they hold."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from dagster_leasehold.lease_store.draining import Draining, draining_of
from dagster_leasehold.lease_store.group_rows import (
    GROUPS_PER_STREAM_MAX,
    Group,
    Node,
    Pulse,
    Snapshot,
)
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId, StreamName
from dagster_leasehold.lease_store.ledger_rows import BatchState
from dagster_leasehold.lease_store.roles.operations import Operations, Rows
from dagster_leasehold.lease_store.rules import refusals
from dagster_leasehold.lease_store.rules.lineage import UNORDERED, freed_to_start
from dagster_leasehold.lease_store.rules.transitions import settings_note
from dagster_leasehold.lease_store.shard_rows import Progress, ShardLease

SNAPSHOT_LOOKS = 3


class Groups(Operations):
    """The verbs on groups, and reads of a whole group."""

    def create_group(self, group: Group) -> None:
        """Insert a group.

        Raises:
            GroupExists: the stream has a group of this name.
            GroupLimitReached: the stream has as many groups as allowed.
        """
        key, new = group.key, replace(group, generation=0)

        def work(rows: Rows) -> None:
            # They are locked, so that two creators cannot both find room for one more.
            siblings = rows.groups(key.stream, lock=True)
            if any(sibling.key == key for sibling in siblings):
                raise refusals.group_exists(key)
            if len(siblings) >= GROUPS_PER_STREAM_MAX:
                raise refusals.group_limit(key, len(siblings))
            rows.add_group(new)

        def mark(rows: Rows) -> bool:
            return new in rows.groups(key.stream, lock=True)

        self._writing("create_group", key, work, mark=mark)

    def groups(self, stream: StreamName | None = None) -> list[Group]:
        """Return all groups, or one stream's, in order of stream and name."""
        return self._reading("groups", None, lambda rows: rows.groups(stream))

    def update_group(self, group: Group, *, observer: str) -> Group:
        """Replace a group's settings and bump its generation; its order takes effect at once.

        Ordered to unordered frees every waiting shard (edge 2); unordered to ordered leaves
        running shards alone.
        """

        def work(rows: Rows) -> Group:
            before = rows.group()
            after = replace(group, generation=before.generation)
            rows.change_group(after)
            rows.journal([settings_note(before, group)], observer)
            if before.ordered and not group.ordered:
                freed = freed_to_start(rows.each_shard(), ordered=False, reason=UNORDERED)
                rows.carry_out(freed, observer)
            return after

        return self._changing("update_group", group.key, work)

    def delete_group(self, key: GroupKey, *, force: bool = False) -> None:
        """Remove a group with all that belongs to it.

        Raises:
            GroupInUse: a node of it is a member and `force` is not given.
        """
        started = False

        def work(rows: Rows) -> None:
            nonlocal started
            if started and key not in (group.key for group in rows.groups(key.stream)):
                return  # an earlier attempt of this call did it, and its reply was lost
            rows.group(lock=True)
            members = rows.members()
            if members and not force:
                raise refusals.group_in_use(key, members)
            started = True
            rows.delete_group()

        self._writing("delete_group", key, work)

    def pulse(self, key: GroupKey, node: NodeName | None = None) -> Pulse:
        """Return the group and the counters of its nodes, or of one node, in one statement."""
        return self._reading("pulse", key, lambda rows: rows.pulse(node))

    def snapshot(self, key: GroupKey, since: int | None = None) -> Snapshot:
        """Return the group, its nodes and its shards, read in one transaction.

        With `since`, only the shards whose listing, state or owner has changed after that
        generation.
        """

        # Every statement sees its own moment, so the generation is read before and after; while
        # changes keep coming in between, the last look holds them off.
        def work(rows: Rows) -> tuple[Group, Iterator[Node], Iterator[ShardLease]]:
            for look in range(SNAPSHOT_LOOKS):
                group = rows.group(lock=look == SNAPSHOT_LOOKS - 1)
                nodes = rows.select(Node)
                shards = rows.each_shard() if since is None else rows.changed_shards(since)
                if look == SNAPSHOT_LOOKS - 1 or rows.group() == group:
                    return group, nodes, shards
            raise AssertionError("The last look returns.")

        group, nodes, shards = self._reading("snapshot", key, work)
        return Snapshot(group, tuple(nodes), tuple(shards))

    def draining(self, key: GroupKey) -> Draining:
        """Return the work under way on each shard; nothing can begin after a committed pause.

        All rows are locked for the reading, so that an opening that overtook the pause is seen.
        """

        def work(rows: Rows) -> Draining:
            shards = list(rows.each_shard(lock=True))
            newest = rows.newest([row.shard for row in shards]).values()
            intents = [batch for batch in newest if batch.state is BatchState.INTENT]
            return draining_of(rows.group(), shards, intents)

        return self._reading("draining", key, work)

    def progress(
        self, key: GroupKey, nodes: Collection[NodeName], shards: Collection[ShardId] | None = None
    ) -> dict[ShardId, Progress]:
        """Return checkpoint and tenure of the shards that `nodes` may consume; one statement.

        With `shards`, of these alone.
        """

        def work(rows: Rows) -> Iterable[Progress]:
            if shards is None:
                return rows.progress(nodes)
            leases = rows.shards(shards).values()
            return [Progress.of(row) for row in leases if row.consumer_owner in nodes]

        return {row.shard: row for row in self._reading("progress", key, work)}
