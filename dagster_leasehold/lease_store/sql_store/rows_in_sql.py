"""Rows of one group in one transaction of a database: all that operations ask for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dagster_leasehold.lease_store.columns import server_time
from dagster_leasehold.lease_store.group_rows import Group, Pulse
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId, StreamName
from dagster_leasehold.lease_store.journal_rows import EventKind, JournalEntry, Note, WaitingEvents
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchCommit,
    BatchState,
    LedgerCounters,
    LedgerHead,
    Throughput,
)
from dagster_leasehold.lease_store.outcomes import Beaten, BeatRefused, Changed
from dagster_leasehold.lease_store.publication_rows import (
    PointerMove,
    Publication,
    ShardLag,
    TableName,
    TablePointer,
)
from dagster_leasehold.lease_store.rules.refusals import unknown_group
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.rules.transitions import Step
from dagster_leasehold.lease_store.shard_rows import Progress, ShardLease
from dagster_leasehold.lease_store.sql_store.mapping import (
    BATCH,
    COLUMNS,
    COUNTERS,
    EVENT,
    GROUP_NAMES,
    GROUP_PREFIX,
    NODE,
    PROGRESS,
    PUBLICATION,
    SHARD,
    TABLE,
    THROUGHPUT,
    Columns,
    Row,
    group_from,
    group_values,
    head_from,
    joined_group,
    key_values,
    moved_values,
    note_row,
)
from dagster_leasehold.lease_store.stored_rows import NUMBERED, chunks, portions
from dagster_leasehold.lease_store.tables import (
    GROUP_TABLES,
    batch,
    consumer_group,
    iceberg_namespace_properties,
    iceberg_tables,
    lease_journal,
    outbox,
    publication,
    shard_lease,
    store_identity,
    table_change,
    worker_instance,
)
from dagster_leasehold.lease_store.transactions import Outcome, Raced, Transaction

Value = TypeVar("Value")
SHARDS_PER_PAGE = 10_000
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


class RowsInSql:
    """The rows of one group; see `lease_store.roles.operations`.

    Args:
        tx: the transaction that reads and writes them.
        key: the group.
        clock: the wall clock for the journal's dates; nothing is decided by it.
    """

    def __init__(self, tx: Transaction, key: GroupKey, clock: Callable[[], datetime]) -> None:
        self.key = key
        self._tx = tx
        self._clock = clock
        self._numbered = dict[str, int]()

    def abandon(self, outcome: Outcome) -> Outcome:
        """Undo all writes so far; `outcome` is the operation's."""
        return self._tx.abandon(outcome)

    # -- rows of any kind -----------------------------------------------------------------------

    def select(
        self,
        kind: type[Value],
        /,
        *,
        newest_first: bool = False,
        limit: int | None = None,
        after: Value | None = None,
        lock: bool = False,
        **conditions: Any,
    ) -> Iterator[Value]:
        """Read rows in the order of their keys, those after one; decoded as they are taken."""
        columns: Columns[Value] = COLUMNS[kind]
        query = self._chosen(kind, columns.selected, conditions, newest_first=newest_first)
        if after is None:
            query = query.limit(limit)
            return columns.read_all(self._all(query.with_for_update() if lock else query))
        rows: list[Row] = []
        # Each is one range of the index; asked for together, MySQL and SQLite would read and sort
        # what lies between them as well.
        for beyond in columns.beyond(after, newest_first=newest_first):
            left = None if limit is None else limit - len(rows)
            if left != 0:
                rows += self._tx.rows(query.where(beyond).limit(left))
        return map(columns.read, rows)

    def first(self, kind: type[Value], /, *, lock: bool = False, **conditions: Any) -> Value | None:
        """Return the first of the rows that meet the conditions, or None."""
        return next(self.select(kind, limit=1, lock=lock, **conditions), None)

    def values(
        self,
        kind: type,
        /,
        *fields: str,
        newest_first: bool = False,
        offset: int | None = None,
        limit: int | None = None,
        **conditions: Any,
    ) -> list[Any]:
        """Read one field of rows in the order of their keys, or a tuple of several."""
        columns = COLUMNS[kind]
        selected = map(columns.column, fields)
        query = self._chosen(kind, selected, conditions, newest_first=newest_first)
        rows = self._tx.connection.execute(query.offset(offset).limit(limit))
        read = (tuple(map(columns.field, fields, row)) for row in rows)
        return [values[0] if len(fields) == 1 else values for values in read]

    def add(self, *values: Any) -> None:
        """Add rows of one kind that were not there when this transaction looked.

        Raises:
            Raced: another process was first between that look and this insert.
        """
        if not values:
            return
        kind = type(values[0])
        columns = COLUMNS[kind]
        rows = [columns.row(self.key, each) for each in values]
        if kind in NUMBERED:
            for row in rows:
                del row["sequence"]
                row["recorded_at"] = self._clock()
        if kind is ShardLease:
            rows = [row | self._numbered for row in rows]
        self._insert(columns.table, rows)

    def write(self, *values: Any, **seen: Any) -> None:
        """Replace the rows, of one kind, that have the keys of these values.

        Raises:
            Raced: a row of such a key no longer has the values seen in these fields.
        """
        if not values:
            return
        columns = COLUMNS[type(values[0])]
        of_key = (columns.column(name) == sa.bindparam(f"seen_{name}") for name in columns.order)
        statement = sa.update(columns.table).where(columns.where(self.key, seen), *of_key)
        written = [columns.values(value) for value in values]
        rows = [
            {f"seen_{name}": each for name, each in columns.place(value).items()} | own
            for value, own in zip(values, written, strict=True)
        ]
        named = {name: sa.bindparam(name) for name in written[0]}
        self._must_change_all(statement.values(named), rows)

    def change(self, kind: type, changes: Mapping[str, Any], /, **conditions: Any) -> int:
        """Change fields of the rows that meet the conditions; return their number."""
        columns = COLUMNS[kind]
        changed = sa.update(columns.table).where(columns.where(self.key, conditions))
        values = columns.changed(changes) | (self._numbered if kind is ShardLease else {})
        return self._tx.connection.execute(changed.values(values)).rowcount

    def delete(self, kind: type, /, **conditions: Any) -> int:
        """Delete the rows that meet the conditions; return their number."""
        columns = COLUMNS[kind]
        statement = sa.delete(columns.table).where(columns.where(self.key, conditions))
        return self._tx.connection.execute(statement).rowcount

    # -- the group ------------------------------------------------------------------------------

    def group(self, *, lock: bool = False) -> Group:
        """Return the group.

        Raises:
            UnknownGroup: there is none.
        """
        query = sa.select(consumer_group).where(self._own(consumer_group))
        for row in self._tx.rows(query.with_for_update() if lock else query):
            return group_from(row)
        raise unknown_group(self.key)

    def bump(self) -> None:
        """Raise the generation, and number the shards that this transaction changes by it.

        The group's row is then locked until the transaction ends, so that numbers become visible
        in their order, and a reader that has seen one need not look for lower ones:

        1. Transaction A raises the generation to 8. B waits for the group's row.
        2. A numbers its shards 8 and commits. B raises the generation to 9, and continues.
        3. A reader sees 9: all shards that will ever be numbered 8 are there. Numbers from a
           counter that nothing locks (the journal's) can appear after higher ones: see
           `lease_store.journal_tail`.
        """
        own = sa.update(consumer_group).where(self._own(consumer_group))
        generation = self._raised(own, consumer_group.c.generation)
        if generation is None:
            raise unknown_group(self.key)
        self._numbered = {"generation": generation}

    def _raised(self, own: sa.Update, counter: sa.Column[int]) -> int | None:
        """Add 1 to a counter of one row; return the sum, or None if there is no such row."""
        if self._tx.connection.dialect.name == "mysql":
            # MariaDB's UPDATE returns no rows; LAST_INSERT_ID(x) sends x back with the reply.
            raised = own.values({counter: sa.func.last_insert_id(counter + 1)})
            result = self._tx.connection.execute(raised)
            return result.lastrowid if result.rowcount == 1 else None
        return self._tx.connection.execute(
            own.values({counter: counter + 1}).returning(counter)
        ).scalar()

    # -- the journal ----------------------------------------------------------------------------

    def journal(self, notes: Iterable[Note], observer: str) -> None:
        """Append entries to the journal."""
        at, transaction_id = self._clock(), self._tx.id
        entries = [
            note_row(self.key, note, observer=observer, at=at, transaction_id=transaction_id)
            for note in notes
        ]
        self._insert(lease_journal, entries)

    def journalled(self) -> bool:
        """Return True if the transaction of this id has written to the journal."""
        entries = sa.select(sa.literal(1)).where(lease_journal.c.transaction_id == self._tx.id)
        return self._tx.value(entries.limit(1)) is not None

    # -- statements -----------------------------------------------------------------------------

    def _chosen(
        self,
        kind: type,
        selected: Iterable[sa.ColumnElement[Any]],
        conditions: Mapping[str, Any],
        *,
        newest_first: bool,
    ) -> sa.Select[Any]:
        columns = COLUMNS[kind]
        query = sa.select(*selected).where(columns.where(self.key, conditions))
        if kind is JournalEntry:
            # MySQL would rather read the whole journal backwards until it has met entries enough
            # of this group or shard.
            index = "lease_journal_by_shard" if "shard" in conditions else "lease_journal_by_group"
            hint = f"FORCE INDEX ({index})"
            query = query.with_hint(lease_journal, hint, dialect_name="mysql")
        order = [columns.column(name) for name in columns.order]
        return query.order_by(*(each.desc() for each in order) if newest_first else order)

    def _all(self, statement: sa.Executable) -> Sequence[sa.Row[Any]]:
        return self._tx.connection.execute(statement).all()

    def _rows(self, statement: sa.Executable, read: Callable[[Row], Value]) -> Iterator[Value]:
        return map(read, self._tx.rows(statement).all())

    def _own(self, table: sa.Table, **same: object) -> sa.ColumnElement[bool]:
        values = key_values(self.key) | same
        return sa.and_(*(table.c[name] == value for name, value in values.items()))

    def _insert(self, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
        if rows:
            try:
                self._tx.connection.execute(sa.insert(table), rows)
            except IntegrityError:
                raise Raced from None

    def _must_change_all(self, statement: sa.Update, rows: Sequence[dict[str, Any]]) -> None:
        """Send an update for each of some rows.

        Raises:
            Raced: one of them was removed.
        """
        try:
            changed = self._tx.connection.execute(statement, rows).rowcount if rows else 0
        except IntegrityError:
            raise Raced from None
        if changed != len(rows):
            raise Raced

    # -- shards ----------------------------------------------------------------------------------

    def each_shard(self, *, lock: bool = False) -> Iterator[ShardLease]:
        """Read all shards by id, page by page.

        A process that takes a hundred thousand rows at once is busy for seconds, in which its
        session stalls; the server ends a transaction that does so for too long. Rows as the driver
        has them are ten times as large as the values, so that one page is decoded at a time.
        """
        shards: list[ShardLease] = []
        while len(shards) % SHARDS_PER_PAGE == 0:
            after = shards[-1].shard if shards else ""
            # MySQL would rather find the group by the index of owners, and sort all its shards
            # for each page.
            page = (
                sa.select(*SHARD.selected)
                .where(self._own(shard_lease), shard_lease.c.shard_id > after)
                .with_hint(shard_lease, "FORCE INDEX (PRIMARY)", dialect_name="mysql")
                .order_by(shard_lease.c.shard_id)
                .limit(SHARDS_PER_PAGE)
            )
            rows = self._all(page.with_for_update() if lock else page)
            shards += SHARD.read_all(rows)
            if not rows:
                break
        return iter(shards)

    def changed_shards(self, since: int) -> Iterator[ShardLease]:
        """Read the shards whose last change of listing, state or owner has a higher generation."""
        changed = shard_lease.c.generation > since
        names = sa.select(shard_lease.c.shard_id).where(self._own(shard_lease), changed)
        hinted = names.with_hint(
            shard_lease, "FORCE INDEX (shard_lease_by_generation)", dialect_name="mysql"
        )
        return iter(
            self.shards(self._tx.all(hinted, lambda row: ShardId(row["shard_id"]))).values()
        )

    def shards(
        self, names: Collection[ShardId], *, lock: bool = False
    ) -> dict[ShardId, ShardLease]:
        """Return some shards by id; locked in that order, two transactions cannot cross."""
        return {
            row.shard: row
            for part in portions(names)
            for row in self.select(ShardLease, shard=set(part), lock=lock)
        }

    def shards_of(self, node: NodeName) -> list[ShardId]:
        """Return the shards that a node may consume or waits for."""
        own, incoming = (
            sa.select(shard_lease.c.shard_id).where(self._own(shard_lease), owner == node)
            for owner in (shard_lease.c.consumer_owner, shard_lease.c.lease_owner)
        )
        # With OR, servers read the whole group; each half of a union uses its index.
        return [
            ShardId(shard) for shard in self._tx.connection.execute(own.union(incoming)).scalars()
        ]

    def progress(self, nodes: Collection[NodeName]) -> Iterator[Progress]:
        """Read the checkpoint and tenure of each shard that one of these nodes may consume."""
        served = shard_lease.c.consumer_owner.in_(sorted(nodes))
        columns = (shard_lease.c[name] for name in PROGRESS.names)
        query = self._beside_group(served, *columns).order_by(shard_lease.c.shard_id)
        rows = self._all(query)
        if not rows:
            self.group()
        return PROGRESS.read_all(row for row in rows if row.shard_id is not None)

    def review(self, names: Collection[ShardId]) -> tuple[bool, dict[ShardId, ShardLease]]:
        """Return if the group is paused, and some of its shards, by one statement."""
        condition = shard_lease.c.shard_id.in_(sorted(names))
        rows = self._of_group(self._beside_group(condition, shard_lease, consumer_group.c.paused))
        read = map(SHARD.read, self._of_shards(rows))
        return bool(rows[0]["paused"]), {row.shard: row for row in read}

    def _beside_group(self, condition: sa.ColumnElement[bool], *selected: Any) -> sa.Select[Any]:
        """Select the group with its shards that meet a condition; one row at least."""
        same = sa.and_(
            shard_lease.c.consume_group == consumer_group.c.consume_group,
            shard_lease.c.logstream_sig == consumer_group.c.logstream_sig,
            condition,
        )
        query: sa.Select[Any] = sa.select(*selected)  # pyright: ignore[reportAssignmentType]
        joined = consumer_group.outerjoin(shard_lease, same)
        return query.select_from(joined).where(self._own(consumer_group))

    def _of_group(self, query: sa.Select[Any]) -> Sequence[Row]:
        """Read rows; a group has at least one."""
        rows = self._tx.rows(query).all()
        if not rows:
            self.group()
        return rows

    @staticmethod
    def _of_shards(rows: Iterable[Row]) -> Iterator[Row]:
        return (row for row in rows if row["shard_id"] is not None)

    def carry_out(self, steps: Sequence[Step], observer: str) -> Changed:
        """Write steps and journal them; the rows must be locked, or be as they were read.

        Steps that change their rows alike are one statement: a round trip for each shard of a node
        that is evicted would hold the group's row for as long as they all take.

        Raises:
            Raced: a row has changed since it was read.
        """
        for change, alike in _by_change(steps).items():
            for part in chunks(alike):
                self._write_alike(change, part)
        self.journal([note for step in steps for note in step.notes], observer)
        return Changed(tuple(step.after.shard for step in steps))

    def _write_alike(self, change: _Change, steps: Sequence[Step]) -> None:
        columns = shard_lease.c
        identity = (
            columns.shard_id,
            columns.lease_id,
            columns.consumer_epoch,
            columns.consumer_run,
        )
        seen = [
            (row.shard, row.lease_id, row.consumer_epoch, row.consumer_run)
            for row in (step.before for step in steps)
        ]
        counters = {
            "lease_id": columns.lease_id + change.lease_ids_more,
            "consumer_epoch": columns.consumer_epoch + change.epochs_more,
        }
        statement = (
            sa.update(shard_lease)
            .where(
                self._own(shard_lease),
                columns.shard_id.in_([shard for shard, *_ in seen]),  # finds them in the index
                sa.tuple_(*identity).in_(seen),
            )
            .values(SHARD.changed(dict(change.values)) | counters | self._numbered)
        )
        if self._tx.connection.execute(statement).rowcount != len(steps):
            raise Raced

    # -- the store and its groups ---------------------------------------------------------------

    def store_identity(self) -> str | None:
        """Return the identity of the store, or None where it has none yet."""
        return self._tx.value(sa.select(store_identity.c.identity))

    def add_store_identity(self, identity: str) -> str:
        """Give the store its identity and return it."""
        self._insert(store_identity, [{"number": _ONLY_ROW, "identity": identity}])
        return identity

    def groups(self, stream: StreamName | None, *, lock: bool = False) -> list[Group]:
        """Return all groups, or a stream's, in order of stream and name."""
        columns = consumer_group.c
        query = sa.select(consumer_group).order_by(columns.logstream_sig, columns.consume_group)
        if stream is not None:
            query = query.where(columns.logstream_sig == stream)
        return [*self._rows(query.with_for_update() if lock else query, group_from)]

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
        """Return the names that live processes have."""
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
        query = (
            sa.select(
                *NODE.selected,
                *(consumer_group.c[name].label(GROUP_PREFIX + name) for name in GROUP_NAMES),
            )
            .select_from(consumer_group.outerjoin(worker_instance, same))
            .where(self._own(consumer_group))
            .order_by(columns.worker_instance)
        )
        result = self._tx.connection.execute(query)
        rows = result.all()
        if not rows:
            self.group()
        group = joined_group(dict(zip(result.keys(), rows[0], strict=True)))
        nodes = NODE.read_all(row for row in rows if row.worker_instance is not None)
        return Pulse(group, tuple(nodes))

    def beat(self, node: NodeName, incarnation: str) -> Beaten | BeatRefused:
        """Add 1 to a node's counter and report it, in one statement."""
        own = self._own(worker_instance, worker_instance=node, incarnation=incarnation)
        member = sa.update(worker_instance).where(own, worker_instance.c.incarnation != "")
        lease_id = self._raised(member, worker_instance.c.lease_id)
        return BeatRefused() if lease_id is None else Beaten(lease_id)

    def beat_ages(self) -> dict[NodeName, float]:
        """Return the seconds since each member's last beat, by the database's own clock."""
        columns = worker_instance.c
        query: sa.Select[Any] = sa.select(
            columns.worker_instance, columns.update_time, server_time().label("now")
        )  # pyright: ignore[reportAssignmentType]
        return {
            NodeName(row["worker_instance"]): (row["now"] - row["update_time"]).total_seconds()
            for row in self._tx.rows(
                query.where(self._own(worker_instance), columns.incarnation != "")
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
                BATCH.read,
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
            rows |= {row.shard: row for row in self._rows(sa.union_all(*each), BATCH.read)}
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
        # A list of states would be sent again for each shard.
        is_held = sa.or_(*(columns.state == state for state in _HELD))
        statement = sa.update(shard_lease).where(own, is_held).values(values | totals)
        rows = [moved_values(row, commit) for row, commit in zip(moved, commits, strict=True)]
        self._must_change_all(statement, rows)

    # -- the table ------------------------------------------------------------------------------

    def publication(self) -> Publication | None:
        """Return the publication, and if there are changes that are not published."""
        left = sa.select(table_change.c.sequence).where(
            self._own(table_change), table_change.c.published.is_(False)
        )
        query = sa.select(*PUBLICATION.selected, left.exists().label("changes_pending"))
        for row in self._tx.rows(query.where(self._own(publication))):
            return PUBLICATION.read(row, changes_pending=bool(row["changes_pending"]))
        return None

    def publishers(self, table: TableName) -> Iterator[Publication]:
        """Read the publication of the group that publishes to a table, if there is one."""
        own = (publication.c[name] == each for name, each in TABLE.values(table).items())
        return self._rows(sa.select(*PUBLICATION.selected).where(*own), PUBLICATION.read)

    def waiting(self, limit: int) -> Iterator[LedgerCounters]:
        """Read the counters of the shards with something to publish, those with most first."""
        left = shard_lease.c.committed_until - shard_lease.c.published_until
        query = self._beside_group(left > 0, *COUNTERS.selected)
        ordered = query.order_by(left.desc(), shard_lease.c.shard_id).limit(limit)
        return map(COUNTERS.read, self._of_shards(self._of_group(ordered)))

    def committed_from(self, places: Mapping[ShardId, tuple[int, int]]) -> Iterator[Batch]:
        """Read committed ledger rows: for each shard, from a number on and up to a limit."""
        selected = sa.select(*BATCH.selected)
        each = (sa.select(self._first(selected, *place)) for place in places.items())
        return self._rows(sa.union_all(*each), BATCH.read)

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

    def _first(self, query: sa.Select[Any], shard: ShardId, place: tuple[int, int]) -> sa.Subquery:
        since, limit = place
        committed = self._own(batch, shard_id=shard, state=BatchState.COMMITTED.value)
        rows = query.where(committed, batch.c.sequence >= since)
        return rows.order_by(batch.c.sequence).limit(limit).subquery()

    def move_cursors(self, cursors: Mapping[ShardId, int]) -> None:
        """Set the cursors of shards, whose rows are locked.

        Raises:
            Raced: one of them was removed.
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
        query = (
            sa.select(outbox, waiting.c.waiting)
            .join(waiting, outbox.c.sequence == waiting.c.oldest)
            .order_by(outbox.c.shard_id)
        )
        return self._rows(
            query,
            lambda row: WaitingEvents(ShardId(row["shard_id"]), row["waiting"], EVENT.read(row)),
        )


def _entry_of(table: TableName) -> sa.ColumnElement[bool]:
    return sa.and_(*(iceberg_tables.c[name] == each for name, each in TABLE.values(table).items()))


class _Change(NamedTuple):
    """The difference that a step makes to its row.

    Attributes:
        lease_ids_more, epochs_more: added to these two counters.
        values: the other fields that change, by name, with their new values.
    """

    lease_ids_more: int
    epochs_more: int
    values: tuple[tuple[str, Any], ...]


_OTHER_FIELDS = [
    field.name for field in fields(ShardLease) if field.name not in ("lease_id", "consumer_epoch")
]
_others = attrgetter(*_OTHER_FIELDS)


def _by_change(steps: Sequence[Step]) -> Mapping[_Change, list[Step]]:
    alike: dict[_Change, list[Step]] = {}
    for step in steps:
        before, after = step.before, step.after
        pairs = zip(_OTHER_FIELDS, _others(before), _others(after), strict=True)
        change = _Change(
            after.lease_id - before.lease_id,
            after.consumer_epoch - before.consumer_epoch,
            tuple((name, value) for name, former, value in pairs if value != former),
        )
        alike.setdefault(change, []).append(step)
    return alike
