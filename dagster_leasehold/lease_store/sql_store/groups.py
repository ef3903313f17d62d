"""Groups, and reading them, in SQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from sqlalchemy import RowMapping
from sqlalchemy.exc import IntegrityError
from typing_extensions import override

from dagster_leasehold.lease_store.draining import Draining, draining_of
from dagster_leasehold.lease_store.group_rows import GROUPS_PER_STREAM_MAX, Group, Pulse, Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId, StreamName
from dagster_leasehold.lease_store.ledger_rows import BatchState
from dagster_leasehold.lease_store.roles.groups import Groups
from dagster_leasehold.lease_store.rules import refusals
from dagster_leasehold.lease_store.rules.lineage import UNORDERED, freed_to_start
from dagster_leasehold.lease_store.rules.transitions import settings_note
from dagster_leasehold.lease_store.shard_rows import Progress
from dagster_leasehold.lease_store.sql_store import group_statements, mapping, shard_statements
from dagster_leasehold.lease_store.sql_store.group_statements import insert_into, lock_rows
from dagster_leasehold.lease_store.sql_store.verbs import SqlVerbs
from dagster_leasehold.lease_store.tables import GROUP_TABLES, consumer_group
from dagster_leasehold.lease_store.transactions import Transaction

SNAPSHOT_LOOKS = 3


class SqlGroups(SqlVerbs, Groups):
    """The verbs on groups."""

    @override
    def create_group(self, group: Group) -> None:
        key = group.key

        def work(tx: Transaction) -> None:
            siblings = tx.all(group_statements.lock_stream_groups(key.stream), mapping.group_from)
            if any(sibling.key == key for sibling in siblings):
                raise refusals.group_exists(key)
            if len(siblings) >= GROUPS_PER_STREAM_MAX:
                raise refusals.group_limit(key, len(siblings))
            values = mapping.key_values(key) | mapping.group_values(group) | {"generation": 0}
            try:
                tx.connection.execute(insert_into(consumer_group), values)
            except IntegrityError as error:
                raise refusals.group_exists(key) from error

        def mark(tx: Transaction) -> bool:
            row = tx.rows(lock_rows(consumer_group, key)).first()
            return row is not None and mapping.group_from(row) == replace(group, generation=0)

        self._write("create_group", work, mark=mark)

    @override
    def groups(self, stream: StreamName | None = None) -> list[Group]:
        def work(tx: Transaction) -> list[Group]:
            return tx.all(group_statements.select_groups(stream), mapping.group_from)

        return self._read("groups", work)

    @override
    def update_group(self, group: Group, *, observer: str) -> Group:
        key = group.key

        def work(tx: Transaction) -> Group:
            before = self._group(tx, key)
            tx.connection.execute(
                group_statements.update_settings(key, mapping.group_values(group))
            )
            self._journal(tx, key, [settings_note(before, group)], observer)
            if before.ordered and not group.ordered:
                shards = self._all_shards(tx, key)
                freed = freed_to_start(shards, ordered=False, reason=UNORDERED)
                self._carry_out(tx, key, freed, observer)
            return replace(group, generation=before.generation)

        return self._change("update_group", key, work)

    @override
    def delete_group(self, key: GroupKey, *, force: bool = False) -> None:
        started = False

        def work(tx: Transaction) -> None:
            nonlocal started
            row = tx.rows(lock_rows(consumer_group, key)).first()
            if row is None:
                if started:
                    return  # an earlier attempt of this call did it, and its reply was lost
                raise refusals.unknown_group(key)
            members = self._members(tx, key)
            if members and not force:
                raise refusals.group_in_use(key, members)
            started = True
            for table in GROUP_TABLES:
                tx.connection.execute(group_statements.delete_rows(table, key))

        self._write("delete_group", work)

    @override
    def pulse(self, key: GroupKey, node: NodeName | None = None) -> Pulse:
        def work(tx: Transaction) -> Pulse:
            rows = tx.rows(group_statements.pulse(key, node)).all()
            if not rows:
                raise refusals.unknown_group(key)
            nodes = [mapping.NODE.read(row) for row in rows if row["worker_instance"] is not None]
            return Pulse(mapping.joined_group(rows[0]), tuple(nodes))

        return self._read("pulse", work)

    @override
    def snapshot(self, key: GroupKey) -> Snapshot:
        # Every statement sees its own moment, so the generation is looked at before and after; when
        # changes keep coming in between, the last look holds them off.

        def work(tx: Transaction) -> tuple[Group, Sequence[RowMapping], Sequence[RowMapping]]:
            for look in range(SNAPSHOT_LOOKS):
                group = self._group(tx, key, lock=look == SNAPSHOT_LOOKS - 1)
                nodes = tx.rows(group_statements.select_nodes(key)).all()
                shards = self._shard_rows(tx, key)
                if look == SNAPSHOT_LOOKS - 1 or self._group(tx, key) == group:
                    return group, nodes, shards
            raise AssertionError("The last look returns.")

        group, nodes, shards = self._read("snapshot", work)
        # Ten thousand rows take a slow machine seconds, and the server ends idle transactions.
        return Snapshot(
            group,
            tuple(mapping.NODE.read(row) for row in nodes),
            tuple(mapping.SHARD.read(row) for row in shards),
        )

    @override
    def draining(self, key: GroupKey) -> Draining:
        def work(tx: Transaction) -> Draining:
            shards = self._all_shards(tx, key, lock=True)
            newest = self._newest(tx, key, [row.shard for row in shards]).values()
            intents = [batch for batch in newest if batch.state is BatchState.INTENT]
            return draining_of(self._group(tx, key), shards, intents)

        return self._read("draining", work)

    @override
    def progress(self, key: GroupKey, nodes: Collection[NodeName]) -> dict[ShardId, Progress]:
        def work(tx: Transaction) -> Sequence[RowMapping]:
            rows = tx.rows(shard_statements.progress(key, nodes)).all()
            if not rows:
                raise refusals.unknown_group(key)
            return rows

        # Outside of the transaction, which would stand still meanwhile.
        rows = self._read("progress", work)
        served = [mapping.PROGRESS.read(row) for row in rows if row["shard_id"] is not None]
        return {row.shard: row for row in served}
