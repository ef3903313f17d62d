"""Rows of one group in one transaction of a database: by kind, key and condition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.journal_rows import JournalEntry, Note
from dagster_leasehold.lease_store.rules.refusals import unknown_group
from dagster_leasehold.lease_store.sql_store.field_columns import COLUMNS, Columns, Row, key_values
from dagster_leasehold.lease_store.sql_store.mapping import group_from, note_row
from dagster_leasehold.lease_store.stored_rows import NUMBERED
from dagster_leasehold.lease_store.tables import consumer_group, lease_journal
from dagster_leasehold.lease_store.transactions import Outcome, Raced, Transaction

Value = TypeVar("Value")
Key = TypeVar("Key", ShardId, int)
KEYS_PER_STATEMENT = 500


class TableRows:
    """The rows of one group.

    Args:
        tx: the transaction that reads and writes them.
        key: the group.
        clock: the wall clock for the journal's dates; nothing is decided by it.
    """

    def __init__(self, tx: Transaction, key: GroupKey, clock: Callable[[], datetime]) -> None:
        self.key = key
        self._tx = tx
        self._clock = clock

    def abandon(self, outcome: Outcome) -> Outcome:
        """Undo what was written so far; `outcome` is the operation's."""
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
        chosen = self._chosen(kind, columns.selected, conditions, newest_first=newest_first)
        if after is None:
            chosen = chosen.limit(limit)
            return self._rows(chosen.with_for_update() if lock else chosen, columns.read)
        rows: list[Row] = []
        # Each is one range of the index; asked for together, MySQL and SQLite would read and sort
        # what lies between them as well.
        for beyond in columns.beyond(after, newest_first=newest_first):
            left = None if limit is None else limit - len(rows)
            if left != 0:
                rows += self._tx.rows(chosen.where(beyond).limit(left))
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
        chosen = self._chosen(
            kind, map(COLUMNS[kind].column, fields), conditions, newest_first=newest_first
        )
        read = self._tx.connection.execute(chosen.offset(offset).limit(limit))
        return list(read.scalars()) if len(fields) == 1 else [tuple(row) for row in read]

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
        self._insert(columns.table, rows)

    def write(self, *values: Any, **seen: Any) -> None:
        """Replace the rows, of one kind, that have the keys of these values.

        Raises:
            Raced: a row of such a key has not the values seen in these fields any more.
        """
        if not values:
            return
        columns = COLUMNS[type(values[0])]
        of_key = (columns.column(name) == sa.bindparam(f"seen_{name}") for name in columns.order)
        statement = sa.update(columns.table).where(columns.where(self.key, seen), *of_key)
        rows = [
            {f"seen_{name}": each for name, each in columns.place(value).items()}
            | columns.values(value)
            for value in values
        ]
        named = {name: sa.bindparam(name) for name in columns.values(values[0])}
        self._must_change_all(statement.values(named), rows)

    def change(self, kind: type, changes: Mapping[str, Any], /, **conditions: Any) -> int:
        """Change fields of the rows that meet the conditions; return their number."""
        columns = COLUMNS[kind]
        changed = sa.update(columns.table).where(columns.where(self.key, conditions))
        return self._tx.connection.execute(changed.values(columns.changed(changes))).rowcount

    def delete(self, kind: type, /, **conditions: Any) -> int:
        """Delete the rows that meet the conditions; return their number."""
        columns = COLUMNS[kind]
        gone = sa.delete(columns.table).where(columns.where(self.key, conditions))
        return self._tx.connection.execute(gone).rowcount

    # -- the group ------------------------------------------------------------------------------

    def group(self, *, lock: bool = False) -> Group:
        """Return the group.

        Raises:
            UnknownGroup: there is none.
        """
        chosen = sa.select(consumer_group).where(self._own(consumer_group))
        for row in self._tx.rows(chosen.with_for_update() if lock else chosen):
            return group_from(row)
        raise unknown_group(self.key)

    def bump(self) -> None:
        """Raise the generation; the group's row is then locked until the transaction ends."""
        raised = {"generation": consumer_group.c.generation + 1}
        bumped = sa.update(consumer_group).where(self._own(consumer_group)).values(raised)
        if self._tx.connection.execute(bumped).rowcount != 1:
            raise unknown_group(self.key)

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
        chosen = sa.select(*selected).where(columns.where(self.key, conditions))
        if kind is JournalEntry:
            # MySQL would rather read the whole journal backwards until it has met entries enough
            # of this group or shard.
            index = "lease_journal_by_shard" if "shard" in conditions else "lease_journal_by_group"
            hint = f"FORCE INDEX ({index})"
            chosen = chosen.with_hint(lease_journal, hint, dialect_name="mysql")
        order = [columns.column(name) for name in columns.order]
        return chosen.order_by(*(each.desc() for each in order) if newest_first else order)

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
            Raced: one of them is not there any more.
        """
        try:
            changed = self._tx.connection.execute(statement, rows).rowcount if rows else 0
        except IntegrityError:
            raise Raced from None
        if changed != len(rows):
            raise Raced


def portions(keys: Iterable[Key], size: int = KEYS_PER_STATEMENT) -> Iterator[Sequence[Key]]:
    """Pieces of some keys, in order, that one statement can ask for."""
    ordered = sorted(keys)
    for start in range(0, len(ordered), size):
        yield ordered[start : start + size]
