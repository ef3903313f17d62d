"""What all verbs of the SQL store share: readiness, locks, writing steps with their journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from threading import Lock
from typing import NamedTuple

from sqlalchemy import Update
from sqlalchemy.exc import SQLAlchemyError

from dagster_leasehold.lease_store import schema
from dagster_leasehold.lease_store.engine import sqlite_path
from dagster_leasehold.lease_store.errors import StoreReadOnly
from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.rules.refusals import unknown_group
from dagster_leasehold.lease_store.rules.transitions import Note, Step
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.sql_store import history_statements as history
from dagster_leasehold.lease_store.sql_store import statements
from dagster_leasehold.lease_store.sql_store.rows import (
    batch_from,
    group_from,
    key_values,
    note_values,
    shard_from,
    shard_values,
)
from dagster_leasehold.lease_store.transactions import (
    Mark,
    Outcome,
    Raced,
    Transaction,
    Transactions,
    Work,
)

SHARDS_PER_STATEMENT = 500
SELECTS_PER_STATEMENT = 100


class SqlVerbs:
    """The base of the SQL store.

    Args:
        transactions: runs each verb on the database.
        clock: the wall clock for the journal's dates; nothing is decided by it.
        place: how messages name the database; no secrets.
        groups_per_stream_max: the most groups one stream may have.
    """

    def __init__(
        self,
        transactions: Transactions,
        *,
        clock: Callable[[], datetime],
        place: str,
        groups_per_stream_max: int,
    ) -> None:
        self._transactions = transactions
        self._clock = clock
        self._place = place
        self._groups_per_stream_max = groups_per_stream_max
        self._ready = False
        self._readiness = Lock()
        self._dialect = transactions.engine.dialect.name
        self.statements: Counter[str] = transactions.statements

    # -- life ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of all connections."""
        self._transactions.engine.dispose()

    def schema_revision(self) -> str | None:
        """The database's schema revision; None where it has no lease tables yet."""
        return self._transactions.read("schema", lambda tx: schema.revision(tx.connection))

    def upgrade(self) -> None:
        """Bring the schema to this release's version.

        Raises:
            SchemaTooNew: a newer release has upgraded it.
            StoreError: the database refuses, or does not answer.
        """
        try:
            found = self.schema_revision() if self._exists() else None
            if found is not None and found not in schema.REVISIONS:
                schema.check(found, self._place)
            with self._transactions.patient_engine() as engine:
                schema.upgrade(engine)
        except SQLAlchemyError as error:
            raise self._transactions.translated(error) from error
        except OSError as error:
            raise StoreReadOnly(
                f"The lease store at {self._place} cannot be created ({error.strerror}): make its "
                "folder writable, or choose another."
            ) from None

    def _exists(self) -> bool:
        path = sqlite_path(self._transactions.engine.url)
        return path is None or path.exists()

    def _make_ready(self) -> None:
        """Check the schema before the first statement; the embedded default upgrades itself."""
        if self._ready:
            return
        with self._readiness:
            if self._ready:
                return
            embedded = self._dialect == "sqlite"
            if embedded and not self._exists():
                self.upgrade()
            found = self.schema_revision()
            if embedded and found != schema.HEAD:
                self.upgrade()
            else:
                schema.check(found, self._place)
            self._ready = True

    # -- running ------------------------------------------------------------------------------

    def _read(self, kind: str, work: Work[Outcome]) -> Outcome:
        self._make_ready()
        return self._transactions.read(kind, work)

    def _write(self, kind: str, work: Work[Outcome], *, mark: Mark | None = None) -> Outcome:
        self._make_ready()
        return self._transactions.write(kind, work, mark=mark)

    def _change(self, kind: str, key: GroupKey, work: Work[Outcome]) -> Outcome:
        """A change of ownership: the group's row first, so that all of them are in one order."""

        def ordered(tx: Transaction) -> Outcome:
            self._bump(tx, key)
            return work(tx)

        return self._write(kind, ordered, mark=self._journalled(key))

    def _journalled(self, key: GroupKey) -> Mark:
        """Whether a transaction's journal entries are there, now that its locks are gone."""

        def mark(tx: Transaction) -> bool:
            tx.connection.execute(statements.select_group(key, lock=True)).all()
            return tx.connection.execute(statements.journalled(tx.id)).first() is not None

        return mark

    # -- pieces of transactions -----------------------------------------------------------------

    def _bump(self, tx: Transaction, key: GroupKey) -> None:
        if tx.connection.execute(statements.bump_generation(key)).rowcount != 1:
            raise unknown_group(key)

    def _group(self, tx: Transaction, key: GroupKey, *, lock: bool = False) -> Group:
        row = tx.connection.execute(statements.select_group(key, lock=lock)).mappings().first()
        if row is None:
            raise unknown_group(key)
        return group_from(row)

    def _members(self, tx: Transaction, key: GroupKey) -> set[NodeName]:
        return {
            NodeName(name)
            for name in tx.connection.execute(statements.select_members(key)).scalars()
        }

    def _all_shards(self, tx: Transaction, key: GroupKey) -> list[ShardLease]:
        rows = tx.connection.execute(statements.select_shards(key)).mappings()
        return [shard_from(row) for row in rows]

    def _lock_shards(
        self, tx: Transaction, key: GroupKey, shards: Collection[ShardId]
    ) -> dict[ShardId, ShardLease]:
        found: dict[ShardId, ShardLease] = {}
        for chunk in chunks(sorted(shards)):
            rows = tx.connection.execute(statements.lock_shards(key, chunk)).mappings()
            found.update((row.shard, row) for row in map(shard_from, rows))
        return found

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
        after = shard_values(steps[0].after)
        for start in range(0, len(steps), SHARDS_PER_STATEMENT):
            rows = [step.before for step in steps[start : start + SHARDS_PER_STATEMENT]]
            statement = statements.update_shards(
                key,
                [(row.shard, row.lease_id, row.consumer_epoch, row.consumer_run) for row in rows],
                {name: after[name] for name, _ in change.values},
                lease_ids_more=change.lease_ids_more,
                epochs_more=change.epochs_more,
            )
            if tx.connection.execute(statement).rowcount != len(rows):
                raise Raced

    def _change_row(self, tx: Transaction, change: Update) -> None:
        """Change one row that was read in this transaction, under a lock that covers it.

        Raises:
            Raced: it is not there any more.
        """
        if tx.connection.execute(change).rowcount != 1:
            raise Raced

    def _journal(
        self, tx: Transaction, key: GroupKey, notes: Iterable[Note], observer: str
    ) -> None:
        rows = [
            note_values(key, note, observer=observer, at=self._clock(), transaction_id=tx.id)
            for note in notes
        ]
        if rows:
            tx.connection.execute(statements.insert_journal(), rows)

    def _newest(
        self, tx: Transaction, key: GroupKey, shards: Sequence[ShardId]
    ) -> dict[ShardId, Batch]:
        found: dict[ShardId, Batch] = {}
        for part in portions(shards):
            rows = tx.connection.execute(history.select_newest(key, part)).mappings()
            found |= {batch.shard: batch for batch in map(batch_from, rows)}
        return found

    def _abandon_intent(self, tx: Transaction, key: GroupKey, shard: ShardId) -> None:
        newest = self._newest(tx, key, [shard]).get(shard)
        if newest is not None and newest.state is BatchState.INTENT:
            tx.connection.execute(statements.abandon_intent(key, shard, newest.sequence))

    def _insert_shards(self, tx: Transaction, key: GroupKey, shards: list[ShardLease]) -> None:
        rows = [key_values(key) | {"shard_id": row.shard} | shard_values(row) for row in shards]
        if rows:
            tx.connection.execute(statements.insert_shards(), rows)


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
    found: dict[_Change, list[Step]] = {}
    for step in steps:
        before, after = shard_values(step.before), shard_values(step.after)
        change = _Change(
            after.pop("lease_id") - before["lease_id"],
            after.pop("consumer_epoch") - before["consumer_epoch"],
            tuple((name, repr(value)) for name, value in after.items() if value != before[name]),
        )
        found.setdefault(change, []).append(step)
    return found


def portions(shards: Collection[ShardId]) -> Iterable[Sequence[ShardId]]:
    """Pieces of some shards, by id, that one statement can ask for one by one."""
    ordered = sorted(shards)
    for start in range(0, len(ordered), SELECTS_PER_STATEMENT):
        yield ordered[start : start + SELECTS_PER_STATEMENT]


def chunks(shards: Sequence[ShardId]) -> Iterable[Sequence[ShardId]]:
    """Pieces that one statement can name."""
    for start in range(0, len(shards), SHARDS_PER_STATEMENT):
        yield shards[start : start + SHARDS_PER_STATEMENT]
