"""The statements on publications, changes of tables and catalogs; values are always bound.

Those of a tick without work read a row per group and a row per shard, whatever the ledger holds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchState
from dagster_leasehold.lease_store.publication_rows import TableName
from dagster_leasehold.lease_store.sql_store.group_statements import lock_rows, of_group
from dagster_leasehold.lease_store.sql_store.history_statements import BATCH_ROW
from dagster_leasehold.lease_store.sql_store.publication_mapping import table_values
from dagster_leasehold.lease_store.tables import (
    batch,
    consumer_group,
    iceberg_namespace_properties,
    iceberg_tables,
    publication,
    shard_lease,
    table_change,
)

_KEY = ("consume_group", "logstream_sig")
_PLACE = (
    shard_lease.c.shard_id,
    shard_lease.c.published_until,
    shard_lease.c.committed_until,
    shard_lease.c.ledger_version,
)
# The JSON is decoded when the transaction is over.
_FILES = ("removed", "added")
_CHANGE = (
    *(column for column in table_change.c if column.name not in _FILES),
    *(sa.type_coerce(table_change.c[name], sa.Text).label(name) for name in _FILES),
)


# -- publications ---------------------------------------------------------------------------------


def select_publication(key: GroupKey) -> sa.Select[*tuple[Any, ...]]:
    """The publication of a group, with the question for changes; a row at least, if the group is.

    `found` is its epoch, empty where the group has no publication.
    """
    changes = sa.select(table_change.c.sequence).where(
        of_group(table_change, key), table_change.c.published.is_(False)
    )
    columns = (column for column in publication.c if column.name not in _KEY)
    return (
        sa.select(
            consumer_group.c.consume_group,
            consumer_group.c.logstream_sig,
            *columns,
            publication.c.epoch.label("found"),
            changes.exists().label("changes_pending"),
        )
        .select_from(consumer_group.outerjoin(publication, _same_group(publication)))
        .where(of_group(consumer_group, key))
    )


def lock_publication(key: GroupKey) -> sa.Select[Any]:
    """The publication of a group, locked."""
    return lock_rows(publication, key)


def select_border(key: GroupKey, shard: ShardId) -> sa.Select[*tuple[Any, ...]]:
    """The cursor of a shard that somebody publishes, and what is on its way into the table."""
    same = _same_group(publication, shard_lease)
    return (
        sa.select(shard_lease.c.published_until, publication.c.pending)
        .select_from(shard_lease.join(publication, same))
        .where(of_group(shard_lease, key, shard_id=shard), publication.c.epoch > 0)
    )


def select_publishers(table: TableName) -> sa.Select[Any]:
    """The group that publishes to a table, if there is one."""
    values = table_values(table)
    return sa.select(publication).where(
        *(publication.c[name] == each for name, each in values.items())
    )


# -- cursors and what lies behind them ------------------------------------------------------------


def select_waiting(key: GroupKey, limit: int) -> sa.Select[*tuple[Any, ...]]:
    """The shards with something to publish, most first; a row without a shard if there is none."""
    waits = shard_lease.c.committed_until > shard_lease.c.published_until
    waiting = consumer_group.outerjoin(shard_lease, sa.and_(_same_group(shard_lease), waits))
    most = (shard_lease.c.committed_until - shard_lease.c.published_until).desc()
    return (
        sa.select(*_PLACE)
        .select_from(waiting)
        .where(of_group(consumer_group, key))
        .order_by(most, shard_lease.c.shard_id)
        .limit(limit)
    )


def select_cursors(
    key: GroupKey, shards: Collection[ShardId] | None
) -> sa.Select[*tuple[Any, ...]]:
    """The cursors of these shards or of all, with the epoch of publishing; one row at least."""
    own = _same_group(shard_lease)
    if shards is not None:
        own = sa.and_(own, shard_lease.c.shard_id.in_(sorted(shards)))
    joined = consumer_group.outerjoin(publication, _same_group(publication))
    return (
        sa.select(publication.c.epoch, shard_lease.c.shard_id, shard_lease.c.published_until)
        .select_from(joined.outerjoin(shard_lease, own))
        .where(of_group(consumer_group, key))
        .order_by(shard_lease.c.shard_id)
    )


def select_unpublished(
    key: GroupKey, shards: Mapping[ShardId, tuple[int, int]]
) -> sa.CompoundSelect[*tuple[Any, ...]]:
    """The committed ledger rows of some shards, each from a cursor on, and so many."""
    return sa.union_all(
        *(
            sa.select(_first(sa.select(*BATCH_ROW), key, shard, *place))
            for shard, place in shards.items()
        )
    )


def count_unpublished(
    key: GroupKey, shards: Mapping[ShardId, tuple[int, int]]
) -> sa.CompoundSelect[*tuple[Any, ...]]:
    """The sums over the same rows."""
    summed = [batch.c[name] for name in ("shard_id", "batches", "written", "committed_at")]
    return sa.union_all(
        *(
            sa.select(
                rows.c.shard_id,
                sa.func.count().label("rows"),
                sa.func.sum(rows.c.batches).label("batches"),
                sa.func.sum(rows.c.written).label("records"),
                sa.func.min(rows.c.committed_at).label("oldest_at"),
            ).group_by(rows.c.shard_id)
            for shard, place in shards.items()
            for rows in [_first(sa.select(*summed), key, shard, *place)]
        )
    )


def _first(
    columns: sa.Select[*tuple[Any, ...]], key: GroupKey, shard: ShardId, cursor: int, limit: int
) -> sa.Subquery:
    committed = of_group(batch, key, shard_id=shard, state=BatchState.COMMITTED.value)
    rows = columns.where(committed, batch.c.sequence >= cursor)
    return rows.order_by(batch.c.sequence).limit(limit).subquery()


def lock_places(key: GroupKey, shards: Collection[ShardId]) -> sa.Select[*tuple[Any, ...]]:
    """The places that publishing of some shards has reached, locked in order of their ids."""
    return (
        sa.select(*_PLACE)
        .where(of_group(shard_lease, key), shard_lease.c.shard_id.in_(sorted(shards)))
        .order_by(shard_lease.c.shard_id)
        .with_for_update()
    )


def move_cursors(key: GroupKey, cursors: Mapping[ShardId, int]) -> sa.Update:
    """Set the cursors of some shards, whose rows are locked."""
    each = ((shard_lease.c.shard_id == shard, cursor) for shard, cursor in cursors.items())
    return (
        sa.update(shard_lease)
        .where(of_group(shard_lease, key), shard_lease.c.shard_id.in_(sorted(cursors)))
        .values(published_until=sa.case(*each, else_=shard_lease.c.published_until))
    )


# -- changes --------------------------------------------------------------------------------------


def select_changes(key: GroupKey, *, after: int, limit: int) -> sa.Select[Any]:
    """Changes that are not published, in order."""
    pending = (of_group(table_change, key), table_change.c.published.is_(False))
    rows = sa.select(*_CHANGE).where(*pending, table_change.c.sequence > after)
    return rows.order_by(table_change.c.sequence).limit(limit)


def select_changed(key: GroupKey, numbers: Sequence[int]) -> sa.Select[*tuple[Any, ...]]:
    """The shards of the changes with these numbers that are not published."""
    return sa.select(table_change.c.sequence, table_change.c.shard_id).where(
        of_group(table_change, key),
        table_change.c.published.is_(False),
        table_change.c.sequence.in_(sorted(numbers)),
    )


def select_left_out(
    key: GroupKey, shards: Collection[ShardId], numbers: Sequence[int]
) -> sa.Select[*tuple[Any, ...]]:
    """Of each of some shards, the oldest other change that is not published."""
    return (
        sa.select(table_change.c.shard_id, sa.func.min(table_change.c.sequence).label("sequence"))
        .where(
            of_group(table_change, key),
            table_change.c.published.is_(False),
            table_change.c.shard_id.in_(sorted(shards)),
            table_change.c.sequence.not_in(sorted(numbers)),
        )
        .group_by(table_change.c.shard_id)
    )


def flag_changes(key: GroupKey, numbers: Sequence[int]) -> sa.Update:
    """Flag changes as published."""
    chosen = table_change.c.sequence.in_(sorted(numbers))
    return sa.update(table_change).where(of_group(table_change, key), chosen).values(published=True)


def drop_changes(key: GroupKey, cursors: Mapping[ShardId, int]) -> sa.Update:
    """Flag the changes of batches from the cursors on: their batches never got into the table."""
    own = (
        sa.and_(table_change.c.shard_id == shard, table_change.c.first_batch >= cursor)
        for shard, cursor in cursors.items()
    )
    pending = (of_group(table_change, key), table_change.c.published.is_(False))
    return sa.update(table_change).where(*pending, sa.or_(*own)).values(published=True)


def first_kept_change(key: GroupKey, keep: int) -> sa.Select[*tuple[int]]:
    """The number of the oldest published change among those that stay, whatever their dates."""
    return (
        sa.select(table_change.c.sequence)
        .where(of_group(table_change, key), table_change.c.published.is_(True))
        .order_by(table_change.c.sequence.desc())
        .offset(keep - 1)
        .limit(1)
    )


def select_published(key: GroupKey, *, below: int, limit: int) -> sa.Select[*tuple[Any, ...]]:
    """The oldest published changes with numbers below another, and their dates."""
    return (
        sa.select(table_change.c.sequence, table_change.c.recorded_at)
        .where(
            of_group(table_change, key),
            table_change.c.published.is_(True),
            table_change.c.sequence < below,
        )
        .order_by(table_change.c.sequence)
        .limit(limit)
    )


def delete_changes(numbers: Sequence[int]) -> sa.Delete:
    """Delete changes."""
    return sa.delete(table_change).where(table_change.c.sequence.in_(sorted(numbers)))


# -- the default catalog --------------------------------------------------------------------------


def select_pointer(table: TableName) -> sa.Select[Any]:
    """The row of a table in the default catalog."""
    values = table_values(table)
    return sa.select(iceberg_tables).where(
        *(iceberg_tables.c[name] == each for name, each in values.items())
    )


def move_pointer(table: TableName, before: str, after: str) -> sa.Update:
    """Point to the next metadata file of a table, if it points to the one that was seen."""
    values = table_values(table)
    return (
        sa.update(iceberg_tables)
        .where(
            *(iceberg_tables.c[name] == each for name, each in values.items()),
            iceberg_tables.c.metadata_location == before,
        )
        .values(metadata_location=after, previous_metadata_location=before)
    )


def select_namespace(table: TableName) -> sa.Select[Any]:
    """A property of a table's namespace, if it has any."""
    columns = iceberg_namespace_properties.c
    return (
        sa.select(columns.property_key)
        .where(columns.catalog_name == table.catalog, columns.namespace == table.namespace)
        .limit(1)
    )


def _same_group(table: sa.Table, other: sa.Table = consumer_group) -> sa.ColumnElement[bool]:
    return sa.and_(*(table.c[name] == other.c[name] for name in _KEY))
