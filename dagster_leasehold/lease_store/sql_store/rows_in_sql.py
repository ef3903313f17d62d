"""Rows of one group in one transaction of a database: all that operations ask for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from dagster_leasehold.lease_store.columns import server_time
from dagster_leasehold.lease_store.group_rows import Group, Pulse
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId, StreamName
from dagster_leasehold.lease_store.journal_rows import EventKind, WaitingEvents
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchCommit,
    BatchState,
    LedgerCounters,
    LedgerHead,
    Throughput,
)
from dagster_leasehold.lease_store.outcomes import Beaten, BeatRefused
from dagster_leasehold.lease_store.publication_rows import (
    PointerMove,
    Publication,
    ShardLag,
    TableName,
    TablePointer,
)
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.sql_store.field_columns import COLUMNS, Row, key_values
from dagster_leasehold.lease_store.sql_store.mapping import (
    COUNTERS,
    EVENT,
    GROUP_PREFIX,
    NODE,
    PUBLICATION,
    TABLE,
    THROUGHPUT,
    batch_from,
    group_from,
    group_values,
    head_from,
    joined_group,
    moved_values,
)
from dagster_leasehold.lease_store.sql_store.shard_leases import ShardLeases
from dagster_leasehold.lease_store.sql_store.table_rows import portions
from dagster_leasehold.lease_store.tables import (
    GROUP_TABLES,
    batch,
    consumer_group,
    iceberg_namespace_properties,
    iceberg_tables,
    outbox,
    publication,
    shard_lease,
    store_identity,
    table_change,
    worker_instance,
)
from dagster_leasehold.lease_store.transactions import Raced

TABLE_TYPE = "TABLE"
_ONLY_ROW = 1
_TOTALS = (
    "committed_batches",
    "committed_records",
    "committed_bytes",
    "quarantined_records",
    "ledger_rows",
)
_MOVED = ("check_point", "watermark", "committed_until", "tries", "suspicion")
_HELD = (ShardState.ALREADY_ALLOC.value, ShardState.TRANSFER.value)
ROWS_PER_STATEMENT = 16
"""The process of a run is young, and every form of a statement must be compiled before it is sent,
which takes most of a millisecond for each of the whole ledger rows that it asks for."""


class RowsInSql(ShardLeases):
    """The rows of one group; see `lease_store.roles.operations`."""

    # -- the store and its groups ---------------------------------------------------------------

    def store_identity(self) -> str | None:
        """Return the identity of the store, or None where it has none yet."""
        return self._tx.value(sa.select(store_identity.c.identity))

    def add_store_identity(self, identity: str) -> str:
        """Give the store its identity and return it."""
        self._insert(store_identity, [{"number": _ONLY_ROW, "identity": identity}])
        return identity

    def groups(self, stream: StreamName | None, *, lock: bool = False) -> list[Group]:
        """Return all groups, or those of a stream, in order of stream and name."""
        columns = consumer_group.c
        chosen = sa.select(consumer_group).order_by(columns.logstream_sig, columns.consume_group)
        if stream is not None:
            chosen = chosen.where(columns.logstream_sig == stream)
        return [*self._rows(chosen.with_for_update() if lock else chosen, group_from)]

    def add_group(self, group: Group) -> None:
        """Add a group."""
        values = key_values(group.key) | group_values(group) | {"generation": group.generation}
        self._insert(consumer_group, [values])

    def change_group(self, group: Group) -> None:
        """Replace the group's settings; its row is locked."""
        own = self._own(consumer_group)
        self._tx.connection.execute(
            sa.update(consumer_group).where(own).values(group_values(group))
        )

    def delete_group(self) -> None:
        """Delete the group with all that belongs to it."""
        for table in GROUP_TABLES:
            self._tx.connection.execute(sa.delete(table).where(self._own(table)))

    # -- nodes ----------------------------------------------------------------------------------

    def members(self) -> set[NodeName]:
        """Return the names that somebody answers to."""
        own = sa.and_(self._own(worker_instance), worker_instance.c.incarnation != "")
        names = sa.select(worker_instance.c.worker_instance).where(own)
        return {NodeName(name) for name in self._tx.connection.execute(names).scalars()}

    def pulse(self, node: NodeName | None) -> Pulse:
        """Return the group and its nodes, or one of them, by one statement."""
        columns = worker_instance.c
        same = sa.and_(
            sa.true() if node is None else columns.worker_instance == node,
            columns.consume_group == consumer_group.c.consume_group,
            columns.logstream_sig == consumer_group.c.logstream_sig,
        )
        chosen = (
            sa.select(
                worker_instance,
                *(each.label(GROUP_PREFIX + each.name) for each in consumer_group.c),
            )
            .select_from(consumer_group.outerjoin(worker_instance, same))
            .where(self._own(consumer_group))
            .order_by(columns.worker_instance)
        )
        rows = self._tx.rows(chosen).all()
        group = joined_group(rows[0]) if rows else self.group()
        nodes = (NODE.read(row) for row in rows if row["worker_instance"] is not None)
        return Pulse(group, tuple(nodes))

    def beat(self, node: NodeName, incarnation: str) -> Beaten | BeatRefused:
        """Add 1 to a node's counter and report it, in one statement."""
        counted = worker_instance.c.lease_id + 1
        own = self._own(worker_instance, worker_instance=node, incarnation=incarnation)
        statement = sa.update(worker_instance).where(own, worker_instance.c.incarnation != "")
        if self._tx.connection.dialect.name == "mysql":
            # MariaDB's UPDATE returns no rows; LAST_INSERT_ID(x) sends x back with the reply.
            beaten = statement.values(lease_id=sa.func.last_insert_id(counted))
            result = self._tx.connection.execute(beaten)
            return Beaten(result.lastrowid) if result.rowcount == 1 else BeatRefused()
        beaten = statement.values(lease_id=counted).returning(worker_instance.c.lease_id)
        lease_id = self._tx.connection.execute(beaten).scalar()
        return BeatRefused() if lease_id is None else Beaten(lease_id)

    def beat_ages(self) -> dict[NodeName, float]:
        """Return the seconds since each member's last beat, by the database's own clock."""
        columns = worker_instance.c
        chosen: sa.Select[Any] = sa.select(
            columns.worker_instance, columns.update_time, server_time().label("now")
        )  # pyright: ignore[reportAssignmentType]
        return {
            NodeName(row["worker_instance"]): (row["now"] - row["update_time"]).total_seconds()
            for row in self._tx.rows(
                chosen.where(self._own(worker_instance), columns.incarnation != "")
            )
        }

    # -- the ledger -----------------------------------------------------------------------------

    def newest(self, shards: Collection[ShardId]) -> dict[ShardId, Batch]:
        """Return the newest ledger row of each shard that has one."""
        return {
            row.shard: row
            for part in portions(shards, ROWS_PER_STATEMENT)
            for row in self._rows(
                sa.union_all(*(sa.select(self._newest(sa.select(batch), each)) for each in part)),
                batch_from,
            )
        }

    def _newest(self, columns: sa.Select[*tuple[Any, ...]], shard: ShardId) -> sa.Subquery:
        """A shard's ledger row with the highest number.

        MySQL finds the end of an index's range only where the range is written out; it reads and
        sorts all rows of a shard whose name comes from another table. A maximum that is grouped by
        shard would have all rows read.
        """
        own = columns.where(self._own(batch, shard_id=shard))
        return own.order_by(batch.c.sequence.desc()).limit(1).subquery()

    def heads(self, shards: Collection[ShardId]) -> Iterator[LedgerHead]:
        """Read checkpoint and version of each shard, with its newest ledger row if it has one."""
        columns = [shard_lease.c[name] for name in ("shard_id", "check_point", "ledger_version")]
        ends = sa.select(batch.c.sequence, batch.c.last_sequence, batch.c.state, batch.c.run)
        each = (
            sa.select(*columns, *newest.c)
            .select_from(shard_lease.outerjoin(newest, sa.true()))
            .where(self._own(shard_lease, shard_id=shard))
            for shard in shards
            for newest in [self._newest(ends, shard)]
        )
        return self._rows(sa.union_all(*each), head_from)

    def throughput(self, since: Mapping[ShardId, int]) -> Iterator[Throughput]:
        """Add up the committed batches of each shard from a number on."""
        added_up = sa.select(
            batch.c.shard_id,
            sa.func.count().label("batches"),
            sa.func.sum(sa.func.coalesce(batch.c.records, batch.c.written)).label("records"),
            sa.func.min(batch.c.committed_at).label("first_at"),
            sa.func.max(batch.c.committed_at).label("last_at"),
        ).where(self._own(batch, state=BatchState.COMMITTED.value))
        # One range of the key for each: SQLite reads the whole group for several at once.
        each = (
            added_up.where(batch.c.shard_id == shard, batch.c.sequence >= since[shard]).group_by(
                batch.c.shard_id
            )
            for shard in sorted(since)
        )
        return self._rows(sa.union_all(*each), THROUGHPUT.read)

    def numbered(self, numbers: Mapping[ShardId, int]) -> dict[ShardId, Batch]:
        """Return the ledger rows with these shards and numbers."""
        rows: dict[ShardId, Batch] = {}
        for part in portions(numbers, ROWS_PER_STATEMENT):
            # Each by its key: for more than a few alternatives SQLite reads the whole group.
            each = (
                sa.select(batch).where(self._own(batch, shard_id=name, sequence=numbers[name]))
                for name in part
            )
            rows |= {row.shard: row for row in self._rows(sa.union_all(*each), batch_from)}
        return rows

    def move_checkpoints(self, moved: Sequence[ShardLease], commits: Sequence[BatchCommit]) -> None:
        """Move shards on by a batch each, if its tenure is still the current one: the fence.

        Raises:
            Raced: one of them is not.
        """
        columns = shard_lease.c
        own = self._own(
            shard_lease,
            shard_id=sa.bindparam("seen_shard"),
            consumer_owner=sa.bindparam("seen_owner"),
            consumer_epoch=sa.bindparam("seen_epoch"),
            consumer_run=sa.bindparam("seen_run"),
        )
        totals = {name: columns[name] + sa.bindparam(f"more_{name}") for name in _TOTALS}
        values = {name: sa.bindparam(name) for name in _MOVED}
        # A list of states would be sent anew for each shard.
        held = sa.or_(*(columns.state == state for state in _HELD))
        statement = sa.update(shard_lease).where(own, held).values(values | totals)
        rows = [moved_values(row, commit) for row, commit in zip(moved, commits, strict=True)]
        self._must_change_all(statement, rows)

    # -- the table ------------------------------------------------------------------------------

    def publication(self) -> Publication | None:
        """Return the publication, and if there are changes that are not published."""
        left = sa.select(table_change.c.sequence).where(
            self._own(table_change), table_change.c.published.is_(False)
        )
        chosen = sa.select(*PUBLICATION.selected, left.exists().label("changes_pending"))
        for row in self._tx.rows(chosen.where(self._own(publication))):
            return PUBLICATION.read(row, changes_pending=bool(row["changes_pending"]))
        return None

    def publishers(self, table: TableName) -> Iterator[Publication]:
        """Read the publication of the group that publishes to a table, if there is one."""
        own = (publication.c[name] == each for name, each in TABLE.values(table).items())
        return self._rows(sa.select(*PUBLICATION.selected).where(*own), PUBLICATION.read)

    def waiting(self, limit: int) -> Iterator[LedgerCounters]:
        """Read the counters of the shards with something to publish, those with most first."""
        left = shard_lease.c.committed_until - shard_lease.c.published_until
        rows = self._tx.rows(
            sa.select(*COUNTERS.selected)
            .select_from(consumer_group.outerjoin(shard_lease, sa.and_(self._joined(), left > 0)))
            .where(self._own(consumer_group))
            .order_by(left.desc(), shard_lease.c.shard_id)
            .limit(limit)
        ).all()
        if not rows:
            self.group()
        return (COUNTERS.read(row) for row in rows if row["shard_id"] is not None)

    def committed_from(self, places: Mapping[ShardId, tuple[int, int]]) -> Iterator[Batch]:
        """Read the committed ledger rows of shards, each from a number on, and so many."""
        selected = sa.select(*COLUMNS[Batch].selected)
        each = (sa.select(self._first(selected, *place)) for place in places.items())
        return self._rows(sa.union_all(*each), batch_from)

    def lags(self, places: Mapping[ShardId, tuple[int, int]]) -> Iterator[ShardLag]:
        """Add up the same rows."""
        summed = sa.select(
            *(batch.c[name] for name in ("shard_id", "batches", "written", "committed_at"))
        )
        each = (
            sa.select(
                rows.c.shard_id,
                sa.func.count().label("rows"),
                sa.func.sum(rows.c.batches).label("batches"),
                sa.func.sum(rows.c.written).label("records"),
                sa.func.min(rows.c.committed_at).label("oldest_at"),
            ).group_by(rows.c.shard_id)
            for place in places.items()
            for rows in [self._first(summed, *place)]
        )

        def read(row: Row) -> ShardLag:
            shard = ShardId(row["shard_id"])
            start, limit = places[shard]
            # MariaDB adds integers up to a decimal.
            batches, records = int(row["batches"]), int(row["records"])
            more = row["rows"] == limit
            return ShardLag(shard, start, batches, records, row["oldest_at"], more)

        return self._rows(sa.union_all(*each), read)

    def _first(self, chosen: sa.Select[Any], shard: ShardId, place: tuple[int, int]) -> sa.Subquery:
        since, limit = place
        committed = self._own(batch, shard_id=shard, state=BatchState.COMMITTED.value)
        rows = chosen.where(committed, batch.c.sequence >= since)
        return rows.order_by(batch.c.sequence).limit(limit).subquery()

    def move_cursors(self, cursors: Mapping[ShardId, int]) -> None:
        """Set the cursors of shards, whose rows are locked.

        Raises:
            Raced: one of them is not there any more.
        """
        published, shard = shard_lease.c.published_until, shard_lease.c.shard_id
        for part in portions(cursors):
            each = ((shard == name, cursors[name]) for name in part)
            moved = sa.update(shard_lease).where(self._own(shard_lease), shard.in_(part))
            moving = moved.values(published_until=sa.case(*each, else_=published))
            if self._tx.connection.execute(moving).rowcount != len(part):
                raise Raced

    def pointer(self, table: TableName) -> TablePointer | None:
        """Return the pointer of a table of the default catalog."""
        for row in self._tx.rows(sa.select(iceberg_tables).where(_entry_of(table))):
            location, previous = row["metadata_location"], row["previous_metadata_location"]
            return TablePointer(table, location, previous)
        return None

    def add_pointer(self, pointer: TablePointer) -> None:
        """Enter a table into the default catalog, and its namespace where that has no property."""
        table, columns = pointer.table, iceberg_namespace_properties.c
        own = {columns.catalog_name: table.catalog, columns.namespace: table.namespace}
        named = (column == value for column, value in own.items())
        if self._tx.value(sa.select(columns.property_key).where(*named).limit(1)) is None:
            exists = {"property_key": "exists", "property_value": "true"}
            row = {column.name: value for column, value in own.items()} | exists
            self._insert(iceberg_namespace_properties, [row])
        entry = {"metadata_location": pointer.location, "iceberg_type": TABLE_TYPE}
        self._insert(iceberg_tables, [TABLE.values(table) | entry])

    def move_pointer(self, table: TableName, move: PointerMove) -> bool:
        """Point to the next metadata file of a table; False where another one is there."""
        location = iceberg_tables.c.metadata_location
        there = sa.update(iceberg_tables).where(_entry_of(table), location == move.before)
        moved = there.values(metadata_location=move.after, previous_metadata_location=move.before)
        return self._tx.connection.execute(moved).rowcount == 1

    # -- the outbox -----------------------------------------------------------------------------

    def waiting_events(self, kind: EventKind) -> Iterator[WaitingEvents]:
        """Read per shard its oldest undelivered event of a kind, and how many there are."""
        oldest = sa.func.min(outbox.c.sequence).label("oldest")
        waiting = (
            sa.select(oldest, sa.func.count().label("waiting"))
            .where(self._own(outbox, kind=kind.value), outbox.c.delivered.is_(False))
            .group_by(outbox.c.shard_id)
            .subquery()
        )
        chosen = (
            sa.select(outbox, waiting.c.waiting)
            .join(waiting, outbox.c.sequence == waiting.c.oldest)
            .order_by(outbox.c.shard_id)
        )
        return self._rows(
            chosen,
            lambda row: WaitingEvents(ShardId(row["shard_id"]), row["waiting"], EVENT.read(row)),
        )


def _entry_of(table: TableName) -> sa.ColumnElement[bool]:
    return sa.and_(*(iceberg_tables.c[name] == each for name, each in TABLE.values(table).items()))
