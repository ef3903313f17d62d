"""Groups, and reading them, in memory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from typing_extensions import override

from dagster_leasehold.lease_store.draining import Draining, draining_of
from dagster_leasehold.lease_store.group_rows import GROUPS_PER_STREAM_MAX, Group, Pulse, Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId, StreamName
from dagster_leasehold.lease_store.memory_store.rows import GroupRows, MemoryRows
from dagster_leasehold.lease_store.roles.groups import Groups
from dagster_leasehold.lease_store.rules import refusals
from dagster_leasehold.lease_store.rules.lineage import UNORDERED, freed_to_start
from dagster_leasehold.lease_store.rules.transitions import settings_note
from dagster_leasehold.lease_store.shard_rows import Progress


class MemoryGroups(MemoryRows, Groups):
    """The verbs on groups."""

    @override
    def create_group(self, group: Group) -> None:
        with self._verb("create_group"):
            if group.key in self._groups:
                raise refusals.group_exists(group.key)
            siblings = sum(key.stream == group.key.stream for key in self._groups)
            if siblings >= GROUPS_PER_STREAM_MAX:
                raise refusals.group_limit(group.key, siblings)
            self._groups[group.key] = GroupRows(replace(group, generation=0))

    @override
    def groups(self, stream: StreamName | None = None) -> list[Group]:
        with self._verb("groups"):
            groups = [
                rows.group
                for key, rows in self._groups.items()
                if stream is None or key.stream == stream
            ]
            return sorted(groups, key=lambda group: (group.key.stream, group.key.group))

    @override
    def update_group(self, group: Group, *, observer: str) -> Group:
        with self._rows("update_group", group.key) as rows:
            note = settings_note(rows.group, group)
            rows.group = replace(group, generation=rows.group.generation + 1)
            self._note(rows, note, observer)
            freed = freed_to_start(
                self._snapshot(rows).shards, ordered=group.ordered, reason=UNORDERED
            )
            self._write(rows, freed, observer)
            return rows.group

    @override
    def delete_group(self, key: GroupKey, *, force: bool = False) -> None:
        with self._rows("delete_group", key) as rows:
            if rows.members and not force:
                raise refusals.group_in_use(key, rows.members)
            del self._groups[key]

    @override
    def pulse(self, key: GroupKey, node: NodeName | None = None) -> Pulse:
        with self._rows("pulse", key) as rows:
            names = sorted(rows.nodes) if node is None else rows.nodes.keys() & {node}
            return Pulse(rows.group, tuple(rows.nodes[name] for name in names))

    @override
    def snapshot(self, key: GroupKey) -> Snapshot:
        with self._rows("snapshot", key) as rows:
            return self._snapshot(rows)

    @override
    def draining(self, key: GroupKey) -> Draining:
        with self._rows("draining", key) as rows:
            return draining_of(rows.group, rows.shards.values(), rows.batches.values())

    @override
    def progress(self, key: GroupKey, nodes: Collection[NodeName]) -> dict[ShardId, Progress]:
        wanted = set(nodes)
        with self._rows("progress", key) as rows:
            return {
                shard: Progress(
                    shard,
                    row.check_point,
                    row.consumer_epoch,
                    row.consumer_run,
                    row.tries,
                    row.suspicion,
                )
                for shard, row in sorted(rows.shards.items())
                if row.consumer_owner in wanted
            }
