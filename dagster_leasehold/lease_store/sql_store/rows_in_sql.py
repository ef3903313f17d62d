"""Rows of one group in one transaction of a database, and the transactions of a SQL store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

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
from dagster_leasehold.lease_store.schema import SchemaCheck
from dagster_leasehold.lease_store.shard_rows import Progress, ShardLease
from dagster_leasehold.lease_store.sql_store.mapping import (
    BATCH,
    COLUMNS,
    COUNTERS,
    EVENT,
    GROUP,
    NODE,
    PROGRESS,
    PUBLICATION,
    SHARD,
    TABLE,
    THROUGHPUT,
    Columns,
    Row,
    head_from,
    key_values,
    moved_values,
    note_row,
    of_group,
)
from dagster_leasehold.lease_store.stored_rows import NO_GROUP, NUMBERED
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
from dagster_leasehold.lease_store.transactions import Outcome, Raced, Transaction, Transactions

Value = TypeVar("Value")
SHARDS_PER_PAGE = 10_000
KEYS_PER_STATEMENT = 500
TABLE_TYPE = "TABLE"
_ONLY_ROW = 1
_TOTALS = (
    "committed_batches",
    "committed_records",
    "committed_bytes",
    "quarantined_records",
    "ledger_rows",
)
_COUNTERS = ("lease_id", "consumer_epoch")
_OTHER_FIELDS = [field.name for field in fields(ShardLease) if field.name not in _COUNTERS]
_others = attrgetter(*_OTHER_FIELDS)
_MOVED = ("check_point", "watermark", "committed_until", "tries", "suspicion")
_HELD = (ShardState.ALREADY_ALLOC.value, ShardState.TRANSFER.value)
ROWS_PER_STATEMENT = 16
"""The most ledger rows of one union; a union is compiled once for each number of rows."""


class SqlTransactions:
    """The transactions of a SQL store, each on the rows of one group.

    `clock` is the wall clock for the journal's dates.
    """

    def __init__(self, transactions: Transactions, clock: Callable[[], datetime]) -> None:
        self._transactions = transactions
        self._clock = clock
        self._schema = SchemaCheck(transactions)
        self.statements: Counter[str] = transactions.statements

    def close(self) -> None:
        """Close all connections."""
        self._transactions.engine.dispose()

    def schema_revision(self) -> str | None:
        """Return the schema revision of the database; None if it has no lease tables yet."""
        return self._schema.stored().revision

    def upgrade(self) -> None:
        """Upgrade the schema; see `SchemaCheck.upgrade`."""
        self._schema.upgrade()

    def _reading(
        self, kind: str, key: GroupKey | None, work: Callable[[RowsInSql], Outcome]
    ) -> Outcome:
        if not self._schema.passed:
            self._schema.require()
        key, clock = key or NO_GROUP, self._clock
        return self._transactions.read(kind, lambda tx: work(RowsInSql(tx, key, clock)))

    def _writing(
        self,
        kind: str,
        key: GroupKey | None,
        work: Callable[[RowsInSql], Outcome],
        *,
        mark: Callable[[RowsInSql], bool] | None = None,
    ) -> Outcome:
        if not self._schema.passed:
            self._schema.require()
        key, clock = key or NO_GROUP, self._clock
        return self._transactions.write(
            kind,
            lambda tx: work(RowsInSql(tx, key, clock)),
            mark=mark and (lambda tx: mark(RowsInSql(tx, key, clock))),
        )


class RowsInSql:
    """The rows of one group in one transaction; see `lease_store.roles.operations`."""

    def __init__(self, tx: Transaction, key: GroupKey, clock: Callable[[], datetime]) -> None:
        self.key = key
        self._tx = tx
        self._clock = clock
        # The generation of changed shards, after `bump`.
        self._numbered = dict[str, int]()

    def abandon(self, outcome: Outcome) -> Outcome:
        """Roll back all writes; the operation returns `outcome`."""
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
        """Read rows in the order of their keys, optionally after a row; decoded lazily."""
        if parts := _parts(conditions):
            order: dict[str, Any] = {"newest_first": newest_first, "limit": limit, "lock": lock}
            pages = [self.select(kind, **order, **part) for part in parts]
            return chain.from_iterable(pages)
        columns: Columns[Value] = COLUMNS[kind]
        query = self._query(kind, columns.selected, conditions, newest_first=newest_first)
        if after is None:
            query = query.limit(limit)
            return columns.read_all(self._all(query.with_for_update() if lock else query))
        rows: list[Row] = []
        # Each condition is one range of the index. In one statement, MySQL and SQLite would also
        # read and sort the rows in between.
        for beyond in columns.beyond(after, newest_first=newest_first):
            remaining = None if limit is None else limit - len(rows)
            if remaining != 0:
                rows += self._tx.rows(query.where(beyond).limit(remaining))
        return map(columns.read, rows)

    def first(self, kind: type[Value], /, *, lock: bool = False, **conditions: Any) -> Value | None:
        """Return the first row that meets the conditions, or None."""
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
        query = self._query(kind, selected, conditions, newest_first=newest_first)
        rows = self._tx.connection.execute(query.offset(offset).limit(limit))
        read = (tuple(map(columns.field, fields, row)) for row in rows)
        return [values[0] if len(fields) == 1 else values for values in read]

    def add(self, *values: Any) -> None:
        """Add rows of one kind; raise Raced if another process has added such a row."""
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
        """Replace the rows with these keys, of one kind; raise Raced if `seen` values changed."""
        if not values:
            return
        columns = COLUMNS[type(values[0])]
        written = [columns.values(value) for value in values]
        conditions = {name: columns.bound(name, each) for name, each in seen.items()}
        rows = [
            _seen(key_values(self.key) | conditions | columns.place(value)) | own
            for value, own in zip(values, written, strict=True)
        ]
        self._must_change_all(_replacement(type(values[0]), *seen), rows)

    def change(self, kind: type, changes: Mapping[str, Any], /, **conditions: Any) -> int:
        """Change fields of the rows that meet the conditions; return their number."""
        if parts := _parts(conditions):
            return sum(self.change(kind, changes, **part) for part in parts)
        columns = COLUMNS[kind]
        changed = sa.update(columns.table).where(columns.where(self.key, conditions))
        values = columns.changed(changes) | (self._numbered if kind is ShardLease else {})
        return self._tx.connection.execute(changed.values(values)).rowcount

    def delete(self, kind: type, /, **conditions: Any) -> int:
        """Delete the rows that meet the conditions; return their number."""
        if parts := _parts(conditions):
            return sum(self.delete(kind, **part) for part in parts)
        columns = COLUMNS[kind]
        statement = sa.delete(columns.table).where(columns.where(self.key, conditions))
        return self._tx.connection.execute(statement).rowcount

    # -- the group ------------------------------------------------------------------------------

    def group(self, *, lock: bool = False) -> Group:
        """Return the group, or raise UnknownGroup."""
        query = sa.select(consumer_group).where(self._own(consumer_group))
        for row in self._tx.rows(query.with_for_update() if lock else query):
            return GROUP.read(row)
        raise unknown_group(self.key)

    def bump(self) -> None:
        """Increment the generation, and store it in the shards that this transaction changes.

        The group's row is locked until the transaction ends, so generations become visible in
        order, and a reader that has read one needs no lower ones:

        1. Transaction A increments the generation to 8. B waits for the group's row.
        2. A stores 8 in its shards and commits. B increments the generation to 9, and continues.
        3. A reader reads 9. All shards with generation 8 are visible. The journal's numbers, which
           no lock orders, can appear after higher ones: see `lease_store.journal_tail`.
        """
        own = sa.update(consumer_group).where(self._own(consumer_group))
        generation = self._raised(own, consumer_group.c.generation)
        if generation is None:
            raise unknown_group(self.key)
        self._numbered = {"generation": generation}

    def _raised(self, own: sa.Update, counter: sa.Column[int]) -> int | None:
        """Increment a counter of one row; return it, or None if there is no such row."""
        if self._tx.connection.dialect.name == "mysql":
            # MariaDB's UPDATE returns no rows, but the reply contains LAST_INSERT_ID(x).
            raised = own.values({counter: sa.func.last_insert_id(counter + 1)})
            result = self._tx.connection.execute(raised)
            return result.lastrowid if result.rowcount == 1 else None
        raised = own.values({counter: counter + 1}).returning(counter)
        return self._tx.connection.execute(raised).scalar()

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
        """Return True if the transaction with this id has written to the journal."""
        entries = sa.select(sa.literal(1)).where(lease_journal.c.transaction_id == self._tx.id)
        return self._tx.value(entries.limit(1)) is not None

    # -- statements -----------------------------------------------------------------------------

    def _query(
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
            # Otherwise MySQL reads the journal backwards until it has enough entries.
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
        other = (table.c[name] == value for name, value in same.items())
        return sa.and_(of_group(table, self.key), *other)

    def _insert(self, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
        if rows:
            try:
                self._tx.connection.execute(sa.insert(table), rows)
            except IntegrityError:
                raise Raced from None

    def _must_change_all(self, statement: sa.Update, rows: Sequence[dict[str, Any]]) -> None:
        """Send an update for each row; raise Raced if a row does not meet its condition."""
        try:
            changed = self._tx.connection.execute(statement, rows).rowcount if rows else 0
        except IntegrityError:
            raise Raced from None
        if changed != len(rows):
            raise Raced

    # -- shards ----------------------------------------------------------------------------------

    def each_shard(self, *, lock: bool = False) -> Iterator[ShardLease]:
        """Read all shards by id, page by page.

        Decoding a hundred thousand rows at once takes seconds, and the server ends a stalled
        transaction. The driver's rows are ten times as large as the values, so each page is decoded
        before the next one is read.
        """
        shards: list[ShardLease] = []
        while len(shards) % SHARDS_PER_PAGE == 0:
            after = shards[-1].shard if shards else ""
            # Otherwise MySQL uses the index of owners, and sorts all shards for each page.
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
        index = "FORCE INDEX (shard_lease_by_generation)"
        names = names.with_hint(shard_lease, index, dialect_name="mysql")
        shards = self._tx.connection.execute(names).scalars()
        return iter(self.shards([ShardId(shard) for shard in shards]).values())

    def shards(
        self, names: Collection[ShardId], *, lock: bool = False
    ) -> dict[ShardId, ShardLease]:
        """Return some shards, read or locked in the order of their ids."""
        return {row.shard: row for row in self.select(ShardLease, shard=set(names), lock=lock)}

    def shards_of(self, node: NodeName) -> list[ShardId]:
        """Return the shards that a node owns or waits for."""
        own, incoming = (
            sa.select(shard_lease.c.shard_id).where(self._own(shard_lease), owner == node)
            for owner in (shard_lease.c.consumer_owner, shard_lease.c.lease_owner)
        )
        # With OR, servers read the whole group. Each half of the union uses its index.
        return [
            ShardId(shard) for shard in self._tx.connection.execute(own.union(incoming)).scalars()
        ]

    def progress(self, nodes: Collection[NodeName]) -> Iterator[Progress]:
        """Read the checkpoint and tenure of each shard that one of these nodes can consume."""
        served = shard_lease.c.consumer_owner.in_(sorted(nodes))
        columns = (shard_lease.c[name] for name in PROGRESS.names)
        query = self._beside_group(served, *columns).order_by(shard_lease.c.shard_id)
        rows = self._all(query)
        if not rows:
            self.group()
        return PROGRESS.read_all(row for row in rows if row.shard_id is not None)

    def review(self, names: Collection[ShardId]) -> tuple[bool, dict[ShardId, ShardLease]]:
        """Return True if the group is paused, and some of its shards, in one statement."""
        condition = shard_lease.c.shard_id.in_(sorted(names))
        rows = self._of_group(self._beside_group(condition, shard_lease, consumer_group.c.paused))
        read = map(SHARD.read, self._of_shards(rows))
        return bool(rows[0]["paused"]), {row.shard: row for row in read}

    def _beside_group(self, condition: sa.ColumnElement[bool], *selected: Any) -> sa.Select[Any]:
        """Select the group with its shards that meet a condition, or alone if none does."""
        same = sa.and_(
            shard_lease.c.consume_group == consumer_group.c.consume_group,
            shard_lease.c.logstream_sig == consumer_group.c.logstream_sig,
            condition,
        )
        query: sa.Select[Any] = sa.select(*selected)  # pyright: ignore[reportAssignmentType]
        joined = consumer_group.outerjoin(shard_lease, same)
        return query.select_from(joined).where(self._own(consumer_group))

    def _of_group(self, query: sa.Select[Any]) -> Sequence[Row]:
        """Read rows; raise UnknownGroup if there are none."""
        rows = self._tx.rows(query).all()
        if not rows:
            self.group()
        return rows

    @staticmethod
    def _of_shards(rows: Iterable[Row]) -> Iterator[Row]:
        return (row for row in rows if row["shard_id"] is not None)

    def carry_out(self, steps: Sequence[Step], observer: str) -> Changed:
        """Write steps and their journal entries; raise Raced if a row has changed.

        Equal changes are one statement, so that evicting a node with many shards takes few round
        trips while the group's row is locked.
        """
        equal: dict[tuple[Any, ...], list[Step]] = {}
        for step in steps:
            before, after = step.before, step.after
            raised = [(name, getattr(after, name) - getattr(before, name)) for name in _COUNTERS]
            pairs = zip(_OTHER_FIELDS, _others(before), _others(after), strict=True)
            changed = [(name, value) for name, former, value in pairs if value != former]
            equal.setdefault((*raised, *changed), []).append(step)
        for change, alike in equal.items():
            for start in range(0, len(alike), KEYS_PER_STATEMENT):
                self._write_equal(dict(change), alike[start : start + KEYS_PER_STATEMENT])
        self.journal([note for step in steps for note in step.notes], observer)
        return Changed(tuple(step.after.shard for step in steps))

    def _write_equal(self, change: dict[str, Any], steps: Sequence[Step]) -> None:
        columns, names = shard_lease.c, ("shard_id", *_COUNTERS, "consumer_run")
        seen = [
            (row.shard, row.lease_id, row.consumer_epoch, row.consumer_run)
            for row in (step.before for step in steps)
        ]
        counters = {name: columns[name] + change.pop(name) for name in _COUNTERS}
        statement = sa.update(shard_lease).where(
            self._own(shard_lease),
            columns.shard_id.in_([shard for shard, *_ in seen]),  # for the index
            sa.tuple_(*(columns[name] for name in names)).in_(seen),
        )
        values = SHARD.changed(change) | counters | self._numbered
        if self._tx.connection.execute(statement.values(values)).rowcount != len(steps):
            raise Raced

    # -- the store and its groups ---------------------------------------------------------------

    def store_identity(self) -> str | None:
        """Return the identity of the store, or None."""
        return self._tx.value(sa.select(store_identity.c.identity))

    def add_store_identity(self, identity: str) -> str:
        """Add the identity of the store, and return it."""
        self._insert(store_identity, [{"number": _ONLY_ROW, "identity": identity}])
        return identity

    def groups(self, stream: StreamName | None, *, lock: bool = False) -> list[Group]:
        """Return all groups, or a stream's, by stream and name."""
        columns = consumer_group.c
        query = sa.select(consumer_group).order_by(columns.logstream_sig, columns.consume_group)
        if stream is not None:
            query = query.where(columns.logstream_sig == stream)
        return [*self._rows(query.with_for_update() if lock else query, GROUP.read)]

    def add_group(self, group: Group) -> None:
        """Add a group."""
        self._insert(consumer_group, [GROUP.row(group.key, group)])

    def change_group(self, group: Group) -> None:
        """Replace the group's settings; its row is locked."""
        own = sa.update(consumer_group).where(self._own(consumer_group))
        self._tx.connection.execute(own.values(GROUP.values(group)))

    def delete_group(self) -> None:
        """Delete the group with all its rows."""
        for table in GROUP_TABLES:
            self._tx.connection.execute(sa.delete(table).where(self._own(table)))

    # -- nodes ----------------------------------------------------------------------------------

    def members(self) -> set[NodeName]:
        """Return the names of all members."""
        own = sa.and_(self._own(worker_instance), worker_instance.c.incarnation != "")
        names = sa.select(worker_instance.c.worker_instance).where(own)
        return {NodeName(name) for name in self._tx.connection.execute(names).scalars()}

    def pulse(self, node: NodeName | None) -> Pulse:
        """Return the group and its nodes, or one node, in one statement."""
        columns = worker_instance.c
        same = sa.and_(
            sa.true() if node is None else columns.worker_instance == node,
            columns.consume_group == consumer_group.c.consume_group,
            columns.logstream_sig == consumer_group.c.logstream_sig,
        )
        query = (
            sa.select(
                *NODE.selected,
                *(consumer_group.c[name].label(f"group_{name}") for name in GROUP.names),
            )
            .select_from(consumer_group.outerjoin(worker_instance, same))
            .where(self._own(consumer_group))
            .order_by(columns.worker_instance)
        )
        rows = self._all(query)
        if not rows:
            self.group()
        group = GROUP.read(dict(zip(GROUP.names, rows[0][len(NODE.names) :], strict=True)))
        nodes = NODE.read_all(row for row in rows if row.worker_instance is not None)
        return Pulse(group, tuple(nodes))

    def beat(self, node: NodeName, incarnation: str) -> Beaten | BeatRefused:
        """Increment a node's counter and return it, in one statement."""
        own = self._own(worker_instance, worker_instance=node, incarnation=incarnation)
        member = sa.update(worker_instance).where(own, worker_instance.c.incarnation != "")
        lease_id = self._raised(member, worker_instance.c.lease_id)
        return BeatRefused() if lease_id is None else Beaten(lease_id)

    def beat_ages(self) -> dict[NodeName, float]:
        """Return the seconds since each member's last heartbeat, by the database's own clock."""
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
        return self._batches([(shard, None) for shard in sorted(shards)])

    def heads(self, shards: Collection[ShardId]) -> Iterator[LedgerHead]:
        """Read the checkpoint and version of each shard, with its newest ledger row, if any."""
        columns = [shard_lease.c[name] for name in ("shard_id", "check_point", "ledger_version")]
        ends = sa.select(batch.c.sequence, batch.c.last_sequence, batch.c.state, batch.c.run)
        each = (
            sa.select(*columns, *newest.c)
            .select_from(shard_lease.outerjoin(newest, sa.true()))
            .where(self._own(shard_lease, shard_id=shard))
            for shard in shards
            for newest in [_newest(ends.where(self._own(batch, shard_id=shard)))]
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
        # One query for each shard, because SQLite would read the whole group for several.
        each = (
            added_up.where(batch.c.shard_id == shard, batch.c.sequence >= since[shard]).group_by(
                batch.c.shard_id
            )
            for shard in sorted(since)
        )
        return self._rows(sa.union_all(*each), THROUGHPUT.read)

    def numbered(self, numbers: Mapping[ShardId, int]) -> dict[ShardId, Batch]:
        """Return the ledger rows with these shards and numbers."""
        return self._batches(sorted(numbers.items()))

    def _batches(self, named: Sequence[tuple[ShardId, int | None]]) -> dict[ShardId, Batch]:
        """Return the ledger rows of these shards and numbers, by shard; None is the newest."""
        batches: dict[ShardId, Batch] = {}
        for start in range(0, len(named), ROWS_PER_STATEMENT):
            part = named[start : start + ROWS_PER_STATEMENT]
            values = _seen(key_values(self.key))
            for place, (shard, number) in enumerate(part):
                values |= {f"shard_{place}": shard, f"number_{place}": number}
            query = _ledger_rows(len(part), newest=part[0][1] is None)
            rows = self._tx.connection.execute(query, values).mappings()
            batches |= {row.shard: row for row in map(BATCH.read, rows)}
        return batches

    def move_checkpoints(self, moved: Sequence[ShardLease], commits: Sequence[BatchCommit]) -> None:
        """Move the checkpoints of shards by a batch each, or raise Raced if a tenure is over.

        This is the fence of commits.
        """
        own = _seen(key_values(self.key))
        rows = [own | moved_values(row, commit) for row, commit in zip(moved, commits, strict=True)]
        self._must_change_all(_checkpoint_move(), rows)

    # -- the table ------------------------------------------------------------------------------

    def publication(self) -> Publication | None:
        """Return the publication, with True if a change is not published."""
        pending = sa.select(table_change.c.sequence).where(
            self._own(table_change), table_change.c.published.is_(False)
        )
        query = sa.select(*PUBLICATION.selected, pending.exists().label("changes_pending"))
        for row in self._tx.rows(query.where(self._own(publication))):
            return PUBLICATION.read(row, changes_pending=bool(row["changes_pending"]))
        return None

    def publishers(self, table: TableName) -> Iterator[Publication]:
        """Read the publication of the group that publishes to a table."""
        own = (publication.c[name] == each for name, each in TABLE.values(table).items())
        return self._rows(sa.select(*PUBLICATION.selected).where(*own), PUBLICATION.read)

    def waiting(self, limit: int) -> Iterator[LedgerCounters]:
        """Read the counters of the shards with batches to publish, the most first."""
        until = sa.func.coalesce(shard_lease.c.held_from, shard_lease.c.committed_until)
        backlog = until - shard_lease.c.published_until
        query = self._beside_group(backlog > 0, *COUNTERS.selected)
        ordered = query.order_by(backlog.desc(), shard_lease.c.shard_id).limit(limit)
        return map(COUNTERS.read, self._of_shards(self._of_group(ordered)))

    def held(self) -> Iterator[LedgerCounters]:
        """Read the counters of the shards whose publication is held, by shard."""
        query = self._beside_group(shard_lease.c.held_from.is_not(None), *COUNTERS.selected)
        ordered = query.order_by(shard_lease.c.shard_id)
        return map(COUNTERS.read, self._of_shards(self._of_group(ordered)))

    def committed_from(self, places: Mapping[ShardId, tuple[int, int]]) -> Iterator[Batch]:
        """Read each shard's committed ledger rows from a number on, up to a limit."""
        selected = sa.select(*BATCH.selected)
        each = (sa.select(self._first(selected, *place)) for place in places.items())
        return self._rows(sa.union_all(*each), BATCH.read)

    def lags(self, places: Mapping[ShardId, tuple[int, int]]) -> Iterator[ShardLag]:
        """Add up the rows of `committed_from`."""
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
            # MariaDB's sum of integers is a decimal.
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
        """Set the cursors of locked shards, or raise Raced if one was removed."""
        published, shard = shard_lease.c.published_until, shard_lease.c.shard_id
        names = sorted(cursors)
        for start in range(0, len(names), KEYS_PER_STATEMENT):
            part = names[start : start + KEYS_PER_STATEMENT]
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
        """Add a table to the default catalog, and its namespace if that is new."""
        table, columns = pointer.table, iceberg_namespace_properties.c
        own = {columns.catalog_name: table.catalog, columns.namespace: table.namespace}
        named = (column == value for column, value in own.items())
        if self._tx.value(sa.select(columns.property_key).where(*named).limit(1)) is None:
            exists = {"property_key": "exists", "property_value": "true"}
            row = {column.name: value for column, value in own.items()} | exists
            self._insert(iceberg_namespace_properties, [row])
        entry = {"metadata_location": pointer.location, "iceberg_type": TABLE_TYPE}
        self._insert(iceberg_tables, [TABLE.values(table) | entry])

    def remove_pointer(self, table: TableName) -> None:
        """Remove a table from the default catalog; its files stay."""
        self._tx.connection.execute(sa.delete(iceberg_tables).where(_entry_of(table)))

    def move_pointer(self, table: TableName, move: PointerMove) -> bool:
        """Point to the next metadata file of a table; False if the pointer has moved."""
        location = iceberg_tables.c.metadata_location
        update = sa.update(iceberg_tables).where(_entry_of(table), location == move.before)
        moved = update.values(metadata_location=move.after, previous_metadata_location=move.before)
        return self._tx.connection.execute(moved).rowcount == 1

    # -- the outbox -----------------------------------------------------------------------------

    def waiting_events(self, kind: EventKind) -> Iterator[WaitingEvents]:
        """Read each shard's oldest undelivered event of a kind, and the number of these events."""
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


def _parts(conditions: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Split conditions with a set that is too large for one statement; empty if none is."""
    for name, keys in conditions.items():
        if isinstance(keys, set | frozenset) and len(keys) > KEYS_PER_STATEMENT:
            ordered = sorted(keys)
            starts = range(0, len(ordered), KEYS_PER_STATEMENT)
            pieces = (ordered[start : start + KEYS_PER_STATEMENT] for start in starts)
            return [{**conditions, name: set(piece)} for piece in pieces]
    return []


def _seen(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of conditions; new values have the columns' own names."""
    return {f"seen_{name}": value for name, value in values.items()}


def _of_bound_group(table: sa.Table) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == sa.bindparam(f"seen_{name}") for name in key_values(NO_GROUP)]


# Building a statement takes longer than sending it, so each of the following is built once. They
# take the group and all values as parameters, so there are few of them.
@cache
def _replacement(kind: type, *seen: str) -> sa.Update:
    """Return the update of all columns of a row whose `seen` fields have not changed."""
    columns = COLUMNS[kind]
    own_row = [
        columns.column(name) == sa.bindparam(f"seen_{name}") for name in (*columns.order, *seen)
    ]
    named = {name: sa.bindparam(name) for name in columns.names if name not in columns.key_names}
    own_group = _of_bound_group(columns.table)
    return sa.update(columns.table).where(*own_group, *own_row).values(named)


@cache
def _checkpoint_move() -> sa.Update:
    """Return the update of a shard's checkpoint and totals, if its tenure is current."""
    columns = shard_lease.c
    tenure = (
        columns.shard_id == sa.bindparam("seen_shard"),
        columns.consumer_owner == sa.bindparam("seen_owner"),
        columns.consumer_epoch == sa.bindparam("seen_epoch"),
        columns.consumer_run == sa.bindparam("seen_run"),
    )
    totals = {name: columns[name] + sa.bindparam(f"more_{name}") for name in _TOTALS}
    values = {name: sa.bindparam(name) for name in _MOVED}
    # A list would be expanded again for each row.
    is_held = sa.or_(*(columns.state == state for state in _HELD))
    own_row = sa.and_(*_of_bound_group(shard_lease), *tenure, is_held)
    return sa.update(shard_lease).where(own_row).values(values | totals)


@cache
def _ledger_rows(count: int, *, newest: bool) -> sa.CompoundSelect[Any]:
    """Return the query for the ledger rows of shards by number, or for the newest row of each.

    It is a union, because SQLite would read the whole group for several rows.
    """
    queries: list[sa.Select[Any]] = []
    for place in range(count):
        own = batch.c.shard_id == sa.bindparam(f"shard_{place}")
        query = sa.select(batch).where(*_of_bound_group(batch), own)
        if newest:
            query = sa.select(_newest(query))
        else:
            query = query.where(batch.c.sequence == sa.bindparam(f"number_{place}"))
        queries.append(query)
    return sa.union_all(*queries)


def _newest(rows_of_shard: sa.Select[*tuple[Any, ...]]) -> sa.Subquery:
    """Return the query for a shard's newest ledger row.

    MySQL uses the end of an index range only for literal conditions. With a join or a grouped
    maximum it would read all rows of the shard.
    """
    return rows_of_shard.order_by(batch.c.sequence.desc()).limit(1).subquery()


def _entry_of(table: TableName) -> sa.ColumnElement[bool]:
    return sa.and_(*(iceberg_tables.c[name] == each for name, each in TABLE.values(table).items()))
