"""Rows of one group in one transaction of a database: all that operations ask for."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import sqlalchemy as sa

from dagster_leasehold.lease_store.columns import server_time
from dagster_leasehold.lease_store.group_rows import Group, Pulse
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId, StreamName
from dagster_leasehold.lease_store.journal_rows import EventKind, OutboxEvent, WaitingEvents
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.outcomes import Beaten, BeatRefused
from dagster_leasehold.lease_store.sql_store.mapping import (
    EVENT,
    GROUP_PREFIX,
    NODE,
    batch_from,
    group_from,
    group_values,
    joined_group,
    key_values,
)
from dagster_leasehold.lease_store.sql_store.shard_leases import ShardLeases
from dagster_leasehold.lease_store.sql_store.table_rows import portions
from dagster_leasehold.lease_store.stored_rows import given
from dagster_leasehold.lease_store.tables import (
    GROUP_TABLES,
    batch,
    consumer_group,
    outbox,
    store_identity,
    worker_instance,
)

_ONLY_ROW = 1
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

    # -- the outbox -----------------------------------------------------------------------------

    def undelivered_events(
        self, kind: EventKind, *, run: str | None, shard: ShardId | None, limit: int
    ) -> Iterator[OutboxEvent]:
        """Read undelivered events of a kind in order, of one run or shard or of all."""
        own = given(run=run, shard=shard)
        return self.select(OutboxEvent, limit=limit, delivered=False, kind=kind, **own)

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

    def deliver(self, sequences: Collection[int]) -> None:
        """Flag events as delivered; flagging the same again is harmless."""
        for part in portions(sequences):
            self.change(OutboxEvent, {"delivered": True}, sequence=set(part))
