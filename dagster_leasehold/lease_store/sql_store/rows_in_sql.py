"""Rows of one group in one transaction of a database: all that operations ask for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from dagster_leasehold.lease_store.columns import server_time
from dagster_leasehold.lease_store.group_rows import Group, Pulse
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId, StreamName
from dagster_leasehold.lease_store.journal_rows import EventKind, OutboxEvent, WaitingEvents
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchCommit,
    BatchState,
    LedgerHead,
    Throughput,
)
from dagster_leasehold.lease_store.outcomes import Beaten, BeatRefused
from dagster_leasehold.lease_store.publication_rows import PlannedPublication, TableChange
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.sql_store.mapping import (
    EVENT,
    GROUP_PREFIX,
    NODE,
    THROUGHPUT,
    batch_from,
    batch_values,
    event_row,
    group_from,
    group_values,
    head_from,
    joined_group,
    key_values,
    moved_values,
)
from dagster_leasehold.lease_store.sql_store.publication_mapping import change_values, pending_from
from dagster_leasehold.lease_store.sql_store.shard_leases import ShardLeases
from dagster_leasehold.lease_store.sql_store.table_rows import portions
from dagster_leasehold.lease_store.stored_rows import given
from dagster_leasehold.lease_store.tables import (
    GROUP_TABLES,
    batch,
    consumer_group,
    gap,
    outbox,
    publication,
    shard_lease,
    store_identity,
    table_change,
    worker_instance,
)

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

    def ledger_rows(self) -> int:
        """Return the number of rows of batches that were ever committed, as shards count them."""
        counted = sa.select(sa.func.sum(shard_lease.c.ledger_rows)).where(self._own(shard_lease))
        rows = self._tx.value(counted)
        if rows is None:
            self.group()
        # MySQL adds integers up to a decimal.
        return int(rows or 0)

    def gap_counts(self) -> dict[bool, int]:
        """Return the number of gaps that were acknowledged, and of the others."""
        counted = (
            sa.select(gap.c.acknowledged, sa.func.count().label("gaps"))
            .where(self._own(gap))
            .group_by(gap.c.acknowledged)
        )
        rows = self._tx.rows(counted).all()
        if not rows:
            self.group()
        return {True: 0, False: 0} | {bool(row["acknowledged"]): row["gaps"] for row in rows}

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

    def write_intended(self, batches: Sequence[Batch]) -> None:
        """Write ledger rows that are still intents.

        Raises:
            Raced: one of them is none any more.
        """
        rows = [
            {"seen_shard": each.shard, "seen_sequence": each.sequence} | batch_values(each)
            for each in batches
        ]
        if rows:
            names = batch_values(batches[0])
            statement = (
                sa.update(batch)
                .where(
                    self._own(batch, state=BatchState.INTENT.value),
                    batch.c.shard_id == sa.bindparam("seen_shard"),
                    batch.c.sequence == sa.bindparam("seen_sequence"),
                )
                .values({name: sa.bindparam(name) for name in names})
            )
            self._must_change_all(statement, rows)

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

    def raise_version(self, shard: ShardId) -> None:
        """Note that what a shard's ledger says of the past has changed; its row is locked."""
        raised = {"ledger_version": shard_lease.c.ledger_version + 1}
        own = self._own(shard_lease, shard_id=shard)
        self._tx.connection.execute(sa.update(shard_lease).where(own).values(raised))

    def lower_committed(self, shard: ShardId, first: int) -> None:
        """Note that the batches of a shard from a number on are committed no more."""
        until = shard_lease.c.committed_until
        own = self._own(shard_lease, shard_id=shard)
        self._tx.connection.execute(
            sa.update(shard_lease).where(own, until > first).values(committed_until=first)
        )

    # -- the table ------------------------------------------------------------------------------

    def published(self, shard: ShardId) -> tuple[int, PlannedPublication | None] | None:
        """Return a shard's cursor and the pending publication; None where nobody publishes."""
        own = sa.and_(self._own(publication), publication.c.epoch > 0)
        chosen = (
            sa.select(shard_lease.c.published_until, publication.c.pending)
            .select_from(shard_lease.join(publication, own))
            .where(self._own(shard_lease, shard_id=shard))
        )
        row = self._tx.rows(chosen).first()
        return None if row is None else (row["published_until"], pending_from(row))

    def add_table_changes(self, changes: Iterable[TableChange]) -> None:
        """Have the table of the group follow."""
        at = self._clock()
        rows = [key_values(self.key) | change_values(change, at) for change in changes]
        self._insert(table_change, rows)

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

    def add_events(self, events: Sequence[OutboxEvent], at: datetime) -> None:
        """Add events; `at` is for the judgement of their age once they are delivered."""
        self._insert(outbox, [event_row(self.key, event, at) for event in events])

    def deliver(self, sequences: Collection[int]) -> None:
        """Flag events as delivered; flagging the same again is harmless."""
        for part in portions(sequences):
            self.change(OutboxEvent, {"delivered": True}, sequence=set(part))
