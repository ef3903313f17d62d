"""The pieces that the verbs of the SQL store are made of: locks, looks, steps and journal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Executable, RowMapping, Table
from sqlalchemy.exc import IntegrityError

from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Note
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.rules.refusals import lease_lost, unknown_group, unknown_shard
from dagster_leasehold.lease_store.rules.transitions import Step, holds
from dagster_leasehold.lease_store.shard_rows import ShardLease, Tenure
from dagster_leasehold.lease_store.sql_store import (
    group_statements,
    ledger_statements,
    shard_statements,
)
from dagster_leasehold.lease_store.sql_store import history_statements as history
from dagster_leasehold.lease_store.sql_store.group_statements import (
    insert_into,
    lock_rows,
    rows_of,
    update_rows,
)
from dagster_leasehold.lease_store.sql_store.mapping import SHARD, batch_from, group_from, note_row
from dagster_leasehold.lease_store.sql_store.readiness import SqlReadiness
from dagster_leasehold.lease_store.tables import consumer_group, lease_journal, shard_lease
from dagster_leasehold.lease_store.transactions import Mark, Outcome, Raced, Transaction, Work

SHARDS_PER_STATEMENT = 500
SHARDS_PER_PAGE = 10_000
SELECTS_PER_STATEMENT = 100
Key = TypeVar("Key", ShardId, int)
ROWS_PER_STATEMENT = 16
"""The same for whole ledger rows: the process of a run is young, and every form of a statement must
be compiled before it is sent, which takes most of a millisecond for each of its rows."""

Value = TypeVar("Value")


class SqlVerbs(SqlReadiness):
    """The base of the SQL store: locks, looks and writes that its verbs are made of."""

    def _change(self, kind: str, key: GroupKey, work: Work[Outcome]) -> Outcome:
        """Run a change of ownership: the group's row first, so that all of them have one order."""

        def ordered(tx: Transaction) -> Outcome:
            self._bump(tx, key)
            return work(tx)

        return self._write(kind, ordered, mark=self._journalled(key))

    def _journalled(self, key: GroupKey, shard: ShardId | None = None) -> Mark:
        """Return the mark that looks for a transaction's journal entries, behind its first lock."""

        def mark(tx: Transaction) -> bool:
            if shard is None:
                tx.connection.execute(lock_rows(consumer_group, key)).all()
            else:
                self._lock_shards(tx, key, [shard])
            return tx.value(ledger_statements.journalled(tx.id)) is not None

        return mark

    def _all(
        self, kind: str, key: GroupKey, chosen: Executable, read: Callable[[RowMapping], Value]
    ) -> list[Value]:
        """Return what `read` makes of the rows of a statement that reads a bounded number."""

        def work(tx: Transaction) -> Sequence[RowMapping]:
            rows = tx.rows(chosen).all()
            if not rows:
                self._group(tx, key)
            return rows

        return [read(row) for row in self._read(kind, work)]

    def _bump(self, tx: Transaction, key: GroupKey) -> None:
        if tx.connection.execute(group_statements.bump_generation(key)).rowcount != 1:
            raise unknown_group(key)

    def _group(self, tx: Transaction, key: GroupKey, *, lock: bool = False) -> Group:
        row = tx.rows((lock_rows if lock else rows_of)(consumer_group, key)).first()
        if row is None:
            raise unknown_group(key)
        return group_from(row)

    def _members(self, tx: Transaction, key: GroupKey) -> set[NodeName]:
        return {
            NodeName(name)
            for name in tx.connection.execute(group_statements.select_members(key)).scalars()
        }

    def _all_shards(
        self, tx: Transaction, key: GroupKey, *, lock: bool = False
    ) -> list[ShardLease]:
        return [SHARD.read(row) for row in self._shard_rows(tx, key, lock=lock)]

    def _shard_rows(
        self, tx: Transaction, key: GroupKey, *, lock: bool = False
    ) -> list[RowMapping]:
        """Return the rows of all shards, read page by page.

        A process that takes a hundred thousand rows at once is busy for seconds, in which its
        session stands still; the server ends a transaction that does so for too long.
        """
        rows, after = list[RowMapping](), ""
        while True:
            statement = shard_statements.select_page(key, after, SHARDS_PER_PAGE, lock=lock)
            page = tx.rows(statement).all()
            rows += page
            if len(page) < SHARDS_PER_PAGE:
                return rows
            after = page[-1]["shard_id"]

    def _shards(
        self, tx: Transaction, key: GroupKey, shards: Collection[ShardId]
    ) -> list[ShardLease]:
        return [
            row
            for chunk in chunks(sorted(shards))
            for row in tx.all(shard_statements.select_named(key, chunk), SHARD.read)
        ]

    def _lock_shards(
        self, tx: Transaction, key: GroupKey, shards: Collection[ShardId]
    ) -> dict[ShardId, ShardLease]:
        locked: dict[ShardId, ShardLease] = {}
        for chunk in chunks(sorted(shards)):
            rows = tx.rows(shard_statements.select_named(key, chunk, lock=True))
            locked.update((row.shard, row) for row in map(SHARD.read, rows))
        return locked

    def _carry_out(
        self, tx: Transaction, key: GroupKey, steps: Sequence[Step], observer: str
    ) -> Changed:
        """Write steps and journal them; the rows must be locked, or be as they were read.

        Steps that change their rows alike are one statement: a round trip for each shard of a node
        that is evicted would hold the group's row for as long as they all take.

        Raises:
            Raced: a row is not as it was read any more.
        """
        if steps:
            for change, alike in _by_change(steps).items():
                self._write_alike(tx, key, change, alike)
            self._journal(tx, key, [note for step in steps for note in step.notes], observer)
        return Changed(tuple(step.after.shard for step in steps))

    def _write_alike(
        self, tx: Transaction, key: GroupKey, change: _Change, steps: Sequence[Step]
    ) -> None:
        after = SHARD.values(steps[0].after)
        for start in range(0, len(steps), SHARDS_PER_STATEMENT):
            rows = [step.before for step in steps[start : start + SHARDS_PER_STATEMENT]]
            statement = shard_statements.update_shards(
                key,
                [(row.shard, row.lease_id, row.consumer_epoch, row.consumer_run) for row in rows],
                {name: after[name] for name, _ in change.values},
                lease_ids_more=change.lease_ids_more,
                epochs_more=change.epochs_more,
            )
            if tx.connection.execute(statement).rowcount != len(rows):
                raise Raced

    def _change_row(
        self, tx: Transaction, table: Table, key: GroupKey, values: dict[str, Any], **seen: object
    ) -> None:
        """Change the one row of a group that has the values seen in these columns.

        Raises:
            Raced: it is not there any more.
        """
        if tx.connection.execute(update_rows(table, key, values, **seen)).rowcount != 1:
            raise Raced

    def _add_row(self, tx: Transaction, table: Table, values: dict[str, Any]) -> None:
        """Add a row that was not there when this transaction looked.

        Raises:
            Raced: another process was first between our look and our insert.
        """
        try:
            tx.connection.execute(insert_into(table), values)
        except IntegrityError:
            raise Raced from None

    def _journal(
        self, tx: Transaction, key: GroupKey, notes: Iterable[Note], observer: str
    ) -> None:
        rows = [
            note_row(key, note, observer=observer, at=self._clock(), transaction_id=tx.id)
            for note in notes
        ]
        if rows:
            tx.connection.execute(insert_into(lease_journal), rows)

    def _newest(
        self, tx: Transaction, key: GroupKey, shards: Sequence[ShardId]
    ) -> dict[ShardId, Batch]:
        newest: dict[ShardId, Batch] = {}
        for part in portions(shards, ROWS_PER_STATEMENT):
            rows = tx.rows(history.select_newest(key, part))
            newest |= {batch.shard: batch for batch in map(batch_from, rows)}
        return newest

    def _abandon_intent(self, tx: Transaction, key: GroupKey, shard: ShardId) -> None:
        newest = self._newest(tx, key, [shard]).get(shard)
        if newest is not None and newest.state is BatchState.INTENT:
            tx.connection.execute(ledger_statements.abandon_intent(key, shard, newest.sequence))

    def _insert_shards(self, tx: Transaction, key: GroupKey, shards: list[ShardLease]) -> None:
        if shards:
            rows = [SHARD.row(key, shard) for shard in shards]
            tx.connection.execute(insert_into(shard_lease), rows)

    def _lock_shard(self, tx: Transaction, key: GroupKey, shard: ShardId) -> ShardLease:
        row = self._lock_shards(tx, key, [shard]).get(shard)
        if row is None:
            self._group(tx, key)
            raise unknown_shard(key, shard)
        return row

    def _held(self, tx: Transaction, tenure: Tenure) -> ShardLease:
        row = self._lock_shards(tx, tenure.key, [tenure.shard]).get(tenure.shard)
        if row is None or not holds(row, tenure):
            raise self._lost(tx, tenure)
        return row

    def _write_current(self, tx: Transaction, tenure: Tenure, values: dict[str, Any]) -> None:
        if tx.connection.execute(shard_statements.update_current(tenure, values)).rowcount != 1:
            raise self._lost(tx, tenure)

    def _lost(self, tx: Transaction, tenure: Tenure) -> Exception:
        self._group(tx, tenure.key)
        return lease_lost(tenure)


class _Change(NamedTuple):
    """The difference that a step makes to its row.

    Attributes:
        lease_ids_more, epochs_more: added to these two counters.
        values: the other columns that change, by name, with their new values in writing.
    """

    lease_ids_more: int
    epochs_more: int
    values: tuple[tuple[str, str], ...]


def _by_change(steps: Sequence[Step]) -> dict[_Change, list[Step]]:
    alike: dict[_Change, list[Step]] = {}
    for step in steps:
        before, after = SHARD.values(step.before), SHARD.values(step.after)
        change = _Change(
            after.pop("lease_id") - before["lease_id"],
            after.pop("consumer_epoch") - before["consumer_epoch"],
            tuple((name, repr(value)) for name, value in after.items() if value != before[name]),
        )
        alike.setdefault(change, []).append(step)
    return alike


def portions(keys: Collection[Key], size: int = SELECTS_PER_STATEMENT) -> Iterable[Sequence[Key]]:
    """Pieces of some shards or numbers, in order, that one statement can ask for."""
    ordered = sorted(keys)
    for start in range(0, len(ordered), size):
        yield ordered[start : start + size]


def chunks(shards: Sequence[ShardId]) -> Iterable[Sequence[ShardId]]:
    """Pieces that one statement can name."""
    for start in range(0, len(shards), SHARDS_PER_STATEMENT):
        yield shards[start : start + SHARDS_PER_STATEMENT]
