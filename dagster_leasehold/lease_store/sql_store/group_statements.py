"""The statements on groups and nodes, and those on rows by key that all tables share.

Values are always bound, never composed; `key` is the group everywhere. Statements that change
ownership run while the group's row is locked by `bump_generation`, which orders them.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.tables import worker_instance


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
