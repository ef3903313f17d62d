"""The statements on groups and nodes, and those on rows by key that all tables share.

Values are always bound, never composed; `key` is the group everywhere. Statements that change
ownership run while the group's row is locked by `bump_generation`, which orders them.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from dagster_leasehold.lease_store.columns import server_time
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, StreamName
from dagster_leasehold.lease_store.tables import consumer_group, store_identity, worker_instance

GROUP_PREFIX = "group_"


def of_group(table: sa.Table, key: GroupKey, **same: object) -> sa.ColumnElement[bool]:
    """The rows of a table that belong to a group, and have these values in these columns."""
    values = {"consume_group": key.group, "logstream_sig": key.stream, **same}
    return sa.and_(*(table.c[name] == value for name, value in values.items()))


def rows_of(table: sa.Table, key: GroupKey, **same: object) -> sa.Select[Any]:
    """Whole rows of a group that have these values in these columns."""
    return sa.select(table).where(of_group(table, key, **same))


def lock_rows(table: sa.Table, key: GroupKey, **same: object) -> sa.Select[Any]:
    """The same rows, locked until the transaction ends."""
    return rows_of(table, key, **same).with_for_update()


def update_rows(
    table: sa.Table, key: GroupKey, values: dict[str, Any], **same: object
) -> sa.Update:
    """Write some columns of the rows of a group that have these values in other columns."""
    return sa.update(table).where(of_group(table, key, **same)).values(values)


def insert_into(table: sa.Table) -> sa.Insert:
    """Add rows to a table, whose key refuses one that is there already."""
    return sa.insert(table)


def select_groups(stream: StreamName | None) -> sa.Select[Any]:
    """All groups, or those of a stream, in order of stream and name."""
    chosen = sa.select(consumer_group).order_by(
        consumer_group.c.logstream_sig, consumer_group.c.consume_group
    )
    return chosen if stream is None else chosen.where(consumer_group.c.logstream_sig == stream)


def lock_stream_groups(stream: StreamName) -> sa.Select[Any]:
    """The groups of a stream, locked, so that two creators cannot both find room for one more."""
    return select_groups(stream).with_for_update()


def bump_generation(key: GroupKey) -> sa.Update:
    """Raise the generation; its row is then locked until the transaction ends."""
    return update_rows(consumer_group, key, {"generation": consumer_group.c.generation + 1})


def update_settings(key: GroupKey, values: dict[str, Any]) -> sa.Update:
    """Replace a group's settings."""
    return update_rows(consumer_group, key, values)


def delete_rows(table: sa.Table, key: GroupKey) -> sa.Delete:
    """Delete everything of a group in one table."""
    return sa.delete(table).where(of_group(table, key))


def pulse(key: GroupKey, node: NodeName | None) -> sa.Select[Any]:
    """A group and its nodes, or one of them, in one statement: a row per node, one at least."""
    same = sa.and_(
        sa.true() if node is None else worker_instance.c.worker_instance == node,
        worker_instance.c.consume_group == consumer_group.c.consume_group,
        worker_instance.c.logstream_sig == consumer_group.c.logstream_sig,
    )
    group_columns = [column.label(GROUP_PREFIX + column.name) for column in consumer_group.c]
    return (
        sa.select(worker_instance, *group_columns)
        .select_from(consumer_group.outerjoin(worker_instance, same))
        .where(of_group(consumer_group, key))
        .order_by(worker_instance.c.worker_instance)
    )


def select_nodes(key: GroupKey) -> sa.Select[Any]:
    """The nodes of a group by name."""
    return rows_of(worker_instance, key).order_by(worker_instance.c.worker_instance)


def select_members(key: GroupKey) -> sa.Select[Any]:
    """The names that somebody answers to."""
    return sa.select(worker_instance.c.worker_instance).where(
        of_group(worker_instance, key), worker_instance.c.incarnation != ""
    )


def select_beat_times(key: GroupKey) -> sa.Select[Any]:
    """The members, with the time of their last beat and the present time of the same clock."""
    own = worker_instance.c
    chosen: sa.Select[Any] = sa.select(
        own.worker_instance, own.update_time, server_time().label("now")
    )  # pyright: ignore[reportAssignmentType]
    return chosen.where(of_group(worker_instance, key), own.incarnation != "")


def select_identity() -> sa.Select[Any]:
    """The identity of the store."""
    return sa.select(store_identity.c.identity)


def select_turn(table: sa.Table, key: GroupKey) -> sa.Select[Any]:
    """The turn, with the counter of its node if that is alive; the group's row is locked."""
    same = sa.and_(
        worker_instance.c.consume_group == table.c.consume_group,
        worker_instance.c.logstream_sig == table.c.logstream_sig,
        worker_instance.c.worker_instance == table.c.worker_instance,
        worker_instance.c.incarnation == table.c.incarnation,
        worker_instance.c.incarnation != "",
    )
    return (
        sa.select(table, worker_instance.c.lease_id)
        .select_from(table.outerjoin(worker_instance, same))
        .where(of_group(table, key))
    )


def select_alive(key: GroupKey, node: NodeName, incarnation: str) -> sa.Select[Any]:
    """The row of a node, if this incarnation answers to its name."""
    named = rows_of(worker_instance, key, worker_instance=node, incarnation=incarnation)
    return named.where(worker_instance.c.incarnation != "")


def beat(key: GroupKey, node: NodeName, incarnation: str, *, dialect: str) -> sa.Update:
    """Add 1 to a node's counter and report it, in one statement."""
    counted = worker_instance.c.lease_id + 1
    statement = sa.update(worker_instance).where(
        of_group(worker_instance, key, worker_instance=node, incarnation=incarnation),
        worker_instance.c.incarnation != "",
    )
    if dialect == "mysql":
        # MariaDB's UPDATE returns no rows; LAST_INSERT_ID(x) sends x back with the reply.
        return statement.values(lease_id=sa.func.last_insert_id(counted))
    return statement.values(lease_id=counted).returning(worker_instance.c.lease_id)
