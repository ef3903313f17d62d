"""Every statement of the SQL store, named; values are always bound, never composed.

`key` is the group everywhere. Statements that change ownership run while the group's row is
locked by `bump_generation`, which orders them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Delete,
    Insert,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal,
    select,
    tuple_,
    update,
)

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId, StreamName
from dagster_leasehold.lease_store.ledger_rows import BatchState, BatchStatistics
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import Tenure
from dagster_leasehold.lease_store.tables import (
    batch,
    consumer_group,
    gap,
    lease_journal,
    shard_lease,
    worker_instance,
)

GROUP_PREFIX = "group_"
HELD = (ShardState.ALREADY_ALLOC.value, ShardState.TRANSFER.value)


def of_group(table: Table, key: GroupKey) -> ColumnElement[bool]:
    """The rows of a table that belong to a group."""
    return and_(table.c.consume_group == key.group, table.c.logstream_sig == key.stream)


# -- groups ---------------------------------------------------------------------------------------


def select_groups(stream: StreamName | None) -> Select[Any]:
    """All groups, or those of a stream, in order of stream and name."""
    chosen = select(consumer_group).order_by(
        consumer_group.c.logstream_sig, consumer_group.c.consume_group
    )
    return chosen if stream is None else chosen.where(consumer_group.c.logstream_sig == stream)


def lock_stream_groups(stream: StreamName) -> Select[Any]:
    """The groups of a stream, locked, so that two creators cannot both find room for one more."""
    return select_groups(stream).with_for_update()


def select_group(key: GroupKey, *, lock: bool = False) -> Select[Any]:
    """A group's row."""
    chosen = select(consumer_group).where(of_group(consumer_group, key))
    return chosen.with_for_update() if lock else chosen


def bump_generation(key: GroupKey) -> Update:
    """Raise the generation; its row is then locked until the transaction ends."""
    return (
        update(consumer_group)
        .where(of_group(consumer_group, key))
        .values(generation=consumer_group.c.generation + 1)
    )


def insert_group(values: dict[str, Any]) -> Insert:
    """A new group."""
    return insert(consumer_group).values(values)


def update_settings(key: GroupKey, values: dict[str, Any]) -> Update:
    """Replace a group's settings."""
    return update(consumer_group).where(of_group(consumer_group, key)).values(values)


def delete_rows(table: Table, key: GroupKey) -> Delete:
    """Everything of a group in one table."""
    return delete(table).where(of_group(table, key))


def pulse(key: GroupKey) -> Select[Any]:
    """A group and its nodes in one statement: one row per node, one at least."""
    same = and_(
        worker_instance.c.consume_group == consumer_group.c.consume_group,
        worker_instance.c.logstream_sig == consumer_group.c.logstream_sig,
    )
    group_columns = [column.label(GROUP_PREFIX + column.name) for column in consumer_group.c]
    return (
        select(worker_instance, *group_columns)
        .select_from(consumer_group.outerjoin(worker_instance, same))
        .where(of_group(consumer_group, key))
        .order_by(worker_instance.c.worker_instance)
    )


# -- nodes ----------------------------------------------------------------------------------------


def select_nodes(key: GroupKey) -> Select[Any]:
    """The nodes of a group by name."""
    return (
        select(worker_instance)
        .where(of_group(worker_instance, key))
        .order_by(worker_instance.c.worker_instance)
    )


def select_members(key: GroupKey) -> Select[Any]:
    """The names that somebody answers to."""
    return select(worker_instance.c.worker_instance).where(
        of_group(worker_instance, key), worker_instance.c.incarnation != ""
    )


def _one_node(key: GroupKey, node: NodeName) -> ColumnElement[bool]:
    return and_(of_group(worker_instance, key), worker_instance.c.worker_instance == node)


def select_node(key: GroupKey, node: NodeName, *, lock: bool = False) -> Select[Any]:
    """One node's row."""
    chosen = select(worker_instance).where(_one_node(key, node))
    return chosen.with_for_update() if lock else chosen


def insert_node(values: dict[str, Any]) -> Insert:
    """A name that nobody has answered to before."""
    return insert(worker_instance).values(values)


def update_node(
    key: GroupKey, node: NodeName, seen_lease_id: int, values: dict[str, Any]
) -> Update:
    """Change a node's row whose counter is still the one that was seen."""
    return (
        update(worker_instance)
        .where(_one_node(key, node), worker_instance.c.lease_id == seen_lease_id)
        .values(values)
    )


def beat(key: GroupKey, node: NodeName, incarnation: str, *, dialect: str) -> Update:
    """Add 1 to a node's counter and report it, in one statement."""
    counted = worker_instance.c.lease_id + 1
    statement = update(worker_instance).where(
        _one_node(key, node),
        worker_instance.c.incarnation == incarnation,
        worker_instance.c.incarnation != "",
    )
    if dialect == "mysql":
        # MariaDB's UPDATE returns no rows; LAST_INSERT_ID(x) sends x back with the reply.
        return statement.values(lease_id=func.last_insert_id(counted))
    return statement.values(lease_id=counted).returning(worker_instance.c.lease_id)


# -- shards ---------------------------------------------------------------------------------------


def select_shards(key: GroupKey, *, lock: bool = False) -> Select[Any]:
    """All shards of a group by id."""
    chosen = select(shard_lease).where(of_group(shard_lease, key)).order_by(shard_lease.c.shard_id)
    return chosen.with_for_update() if lock else chosen


def lock_shards(key: GroupKey, shards: Collection[ShardId]) -> Select[Any]:
    """Some shards, locked in order of their ids, so that two transactions cannot cross."""
    return select_shards(key, lock=True).where(shard_lease.c.shard_id.in_(sorted(shards)))


def select_shards_of(key: GroupKey, node: NodeName) -> Select[Any]:
    """Ids of the shards that a node may consume or waits for."""
    owned = (shard_lease.c.consumer_owner == node) | (shard_lease.c.lease_owner == node)
    return select(shard_lease.c.shard_id).where(of_group(shard_lease, key), owned)


def progress(key: GroupKey, nodes: Collection[NodeName]) -> Select[*tuple[Any, ...]]:
    """Checkpoint and tenure of served shards: a row per shard, or one without if there is none."""
    served = and_(
        shard_lease.c.consume_group == consumer_group.c.consume_group,
        shard_lease.c.logstream_sig == consumer_group.c.logstream_sig,
        shard_lease.c.consumer_owner.in_(sorted(nodes)),
    )
    return (
        select(
            shard_lease.c.shard_id,
            shard_lease.c.check_point,
            shard_lease.c.consumer_epoch,
            shard_lease.c.consumer_run,
        )
        .select_from(consumer_group.outerjoin(shard_lease, served))
        .where(of_group(consumer_group, key))
        .order_by(shard_lease.c.shard_id)
    )


def review(key: GroupKey, shards: Collection[ShardId]) -> Select[Any]:
    """The rows of some shards with their group's `paused`; one row at least."""
    chosen = and_(
        shard_lease.c.consume_group == consumer_group.c.consume_group,
        shard_lease.c.logstream_sig == consumer_group.c.logstream_sig,
        shard_lease.c.shard_id.in_(sorted(shards)),
    )
    return (
        select(shard_lease, consumer_group.c.paused)
        .select_from(consumer_group.outerjoin(shard_lease, chosen))
        .where(of_group(consumer_group, key))
    )


def insert_shards() -> Insert:
    """New shards."""
    return insert(shard_lease)


def update_shards(
    key: GroupKey,
    seen: Sequence[tuple[str, int, int, str]],
    values: dict[str, Any],
    *,
    lease_ids_more: int,
    epochs_more: int,
) -> Update:
    """Write shards that change alike, and whose ownership and tenure are still as they were read.

    Args:
        seen: shard, lease id, epoch and run of each, as they were read.
        values: the columns that change, the same for all.
        lease_ids_more, epochs_more: added to these two counters.
    """
    columns = shard_lease.c
    identity = tuple_(
        columns.shard_id, columns.lease_id, columns.consumer_epoch, columns.consumer_run
    )
    counters = {
        "lease_id": columns.lease_id + lease_ids_more,
        "consumer_epoch": columns.consumer_epoch + epochs_more,
    }
    return (
        update(shard_lease)
        .where(
            of_group(shard_lease, key),
            columns.shard_id.in_([shard for shard, *_ in seen]),  # finds the rows in the index
            identity.in_(seen),
        )
        .values(values | counters)
    )


def _current(tenure: Tenure) -> ColumnElement[bool]:
    """The fence: the shard's row, where this tenure is its current one."""
    return and_(
        of_group(shard_lease, tenure.key),
        shard_lease.c.shard_id == tenure.shard,
        shard_lease.c.consumer_owner == tenure.holder,
        shard_lease.c.consumer_epoch == tenure.epoch,
        shard_lease.c.consumer_run == tenure.run,
        shard_lease.c.state.in_(HELD),
    )


def update_current(tenure: Tenure, values: dict[str, Any]) -> Update:
    """Write a shard's row if the tenure is still its current one."""
    return update(shard_lease).where(_current(tenure)).values(values)


# -- journal --------------------------------------------------------------------------------------


def insert_journal() -> Insert:
    """Journal entries."""
    return insert(lease_journal)


def journalled(transaction_id: str) -> Select[Any]:
    """Whether a transaction's entries are there."""
    return select(literal(1)).where(lease_journal.c.transaction_id == transaction_id).limit(1)


# -- ledger ---------------------------------------------------------------------------------------


def insert_batches() -> Insert:
    """New ledger rows."""
    return insert(batch)


def update_intended(key: GroupKey, values: Iterable[str]) -> Update:
    """Write ledger rows that are still intents. Parameters: `seen_shard`, `seen_sequence`."""
    return (
        update(batch)
        .where(
            of_group(batch, key),
            batch.c.shard_id == bindparam("seen_shard"),
            batch.c.sequence == bindparam("seen_sequence"),
            batch.c.state == BatchState.INTENT.value,
        )
        .values({name: bindparam(name) for name in values})
    )


def abandon_intent(key: GroupKey, shard: ShardId, number: int) -> Update:
    """Give up what was intended for a shard; only its newest row can be an intent."""
    return (
        update(batch)
        .where(
            of_group(batch, key),
            batch.c.shard_id == shard,
            batch.c.sequence == number,
            batch.c.state == BatchState.INTENT.value,
        )
        .values(state=BatchState.ABANDONED.value)
    )


def raised_totals(statistics: BatchStatistics) -> dict[str, ColumnElement[int]]:
    """The totals of a shard's row with one more batch."""
    more = {
        "committed_batches": 1,
        "committed_records": statistics.written,
        "committed_bytes": statistics.bytes or 0,
        "quarantined_records": statistics.quarantined,
    }
    return {name: shard_lease.c[name] + number for name, number in more.items()}


def raise_version(key: GroupKey, shard: ShardId) -> Update:
    """Note that what a shard's ledger says of the past has changed; the shard's row is locked."""
    return (
        update(shard_lease)
        .where(of_group(shard_lease, key), shard_lease.c.shard_id == shard)
        .values(ledger_version=shard_lease.c.ledger_version + 1)
    )


def withdraw_batches(key: GroupKey, shard: ShardId, numbers: range) -> Update:
    """Take back what was committed for a shard under some numbers; its row is locked."""
    return (
        update(batch)
        .where(
            of_group(batch, key),
            batch.c.shard_id == shard,
            batch.c.sequence >= numbers.start,
            batch.c.sequence < numbers.stop,
            batch.c.state == BatchState.COMMITTED.value,
        )
        .values(state=BatchState.WITHDRAWN.value, generation=batch.c.generation + 1)
    )


# -- gaps -----------------------------------------------------------------------------------------


def insert_gap(values: dict[str, Any]) -> Insert:
    """A new gap."""
    return insert(gap).values(values)


def select_gaps_at(key: GroupKey, shard: ShardId, start: str) -> Select[Any]:
    """The gaps of a shard that begin at one cursor, by their end."""
    at = and_(of_group(gap, key), gap.c.shard_id == shard, gap.c.start_cursor == start)
    return select(gap).where(at).order_by(gap.c.end_cursor)


def update_gap(
    key: GroupKey, shard: ShardId, start: str, end: str, values: dict[str, Any]
) -> Update:
    """Change one gap; its shard's row is locked."""
    return (
        update(gap)
        .where(
            of_group(gap, key),
            gap.c.shard_id == shard,
            gap.c.start_cursor == start,
            gap.c.end_cursor == end,
        )
        .values(values)
    )
