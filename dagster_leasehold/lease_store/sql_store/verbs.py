"""The pieces that the verbs of the SQL store are made of: locks, looks, steps and journal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

from sqlalchemy import Executable, RowMapping, Table
from sqlalchemy.exc import IntegrityError

from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Note
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.roles.operations import journalled
from dagster_leasehold.lease_store.rules.refusals import unknown_shard
from dagster_leasehold.lease_store.rules.transitions import Step
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.sql_store import ledger_statements
from dagster_leasehold.lease_store.sql_store.group_statements import insert_into, update_rows
from dagster_leasehold.lease_store.sql_store.mapping import SHARD
from dagster_leasehold.lease_store.sql_store.readiness import SqlReadiness
from dagster_leasehold.lease_store.tables import shard_lease
from dagster_leasehold.lease_store.transactions import Mark, Outcome, Raced, Transaction, Work

SHARDS_PER_STATEMENT = 500
SELECTS_PER_STATEMENT = 100
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
        mark = journalled(shard)
        return lambda tx: mark(self._rows_of(tx, key))

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
        self._rows_of(tx, key).bump()

    def _group(self, tx: Transaction, key: GroupKey, *, lock: bool = False) -> Group:
        return self._rows_of(tx, key).group(lock=lock)

    def _members(self, tx: Transaction, key: GroupKey) -> set[NodeName]:
        return self._rows_of(tx, key).members()

    def _shards(
        self, tx: Transaction, key: GroupKey, shards: Collection[ShardId]
    ) -> list[ShardLease]:
        return list(self._rows_of(tx, key).shards(shards).values())

    def _lock_shards(
        self, tx: Transaction, key: GroupKey, shards: Collection[ShardId]
    ) -> dict[ShardId, ShardLease]:
        return self._rows_of(tx, key).shards(shards, lock=True)

    def _carry_out(
        self, tx: Transaction, key: GroupKey, steps: Sequence[Step], observer: str
    ) -> Changed:
        return self._rows_of(tx, key).carry_out(steps, observer)

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
        self._rows_of(tx, key).journal(notes, observer)

    def _newest(
        self, tx: Transaction, key: GroupKey, shards: Sequence[ShardId]
    ) -> dict[ShardId, Batch]:
        return self._rows_of(tx, key).newest(shards)

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


def chunks(shards: Sequence[ShardId]) -> Iterable[Sequence[ShardId]]:
    """Pieces that one statement can name."""
    for start in range(0, len(shards), SHARDS_PER_STATEMENT):
        yield shards[start : start + SHARDS_PER_STATEMENT]
