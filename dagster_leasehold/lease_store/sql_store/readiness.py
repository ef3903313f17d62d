"""A database that is ready for the verbs: its schema checked or upgraded before the first one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from threading import Lock

from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from dagster_leasehold.lease_store import schema
from dagster_leasehold.lease_store.errors import StoreReadOnly
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.release import HEAD, StoredSchema
from dagster_leasehold.lease_store.sql_store.rows_in_sql import RowsInSql
from dagster_leasehold.lease_store.stored_rows import NO_GROUP
from dagster_leasehold.lease_store.transactions import (
    Outcome,
    Transaction,
    Transactions,
    sqlite_path,
)


class SqlReadiness:
    """The database of a SQL store, and running transactions on it once its schema is right.

    Args:
        transactions: runs each verb on the database.
        clock: the wall clock for the journal's dates; nothing is decided by it.
    """

    def __init__(self, transactions: Transactions, clock: Callable[[], datetime]) -> None:
        self._transactions = transactions
        self._clock = clock
        self._place = transactions.place
        self._ready = False
        self._readiness = Lock()
        self._dialect = transactions.engine.dialect.name
        self.statements: Counter[str] = transactions.statements
        if self._dialect != "sqlite":
            event.listen(transactions.engine, "connect", self._look_again)

    def _look_again(self, *_: object) -> None:
        """Check the schema with each new connection: a newer release might have upgraded it.

        The pool renews its connections, so that a process which continues for months finds out.
        """
        self._ready = False

    def close(self) -> None:
        """Let go of all connections."""
        self._transactions.engine.dispose()

    def schema_revision(self) -> str | None:
        """Return the schema revision of the database; None where it has no lease tables yet."""
        return self._stored_schema().revision

    def _stored_schema(self) -> StoredSchema:
        return self._transactions.read("schema", lambda tx: schema.stored(tx.connection))

    def upgrade(self) -> None:
        """Bring the schema to this release's version; a newer one that it can use is left alone.

        Raises:
            SchemaTooNew: a newer release has upgraded it, and this one cannot use it.
            SchemaTooOld: a version before 0.2.0 made it.
            StoreError: the database refuses, or does not answer.
        """
        try:
            stored = self._stored_schema() if self._exists() else StoredSchema(None)
            if stored.newer or stored.unsupported:
                stored.check(self._place)
                return
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
            stored = self._stored_schema()
            if embedded and stored.revision != HEAD and not stored.newer:
                self.upgrade()
            else:
                stored.check(self._place)
            self._ready = True

    def _reading(
        self, kind: str, key: GroupKey | None, work: Callable[[RowsInSql], Outcome]
    ) -> Outcome:
        self._make_ready()
        return self._transactions.read(kind, lambda tx: work(self._rows_of(tx, key)))

    def _writing(
        self,
        kind: str,
        key: GroupKey | None,
        work: Callable[[RowsInSql], Outcome],
        *,
        mark: Callable[[RowsInSql], bool] | None = None,
    ) -> Outcome:
        def settled(tx: Transaction) -> bool:
            return mark is not None and mark(self._rows_of(tx, key))

        self._make_ready()
        return self._transactions.write(
            kind, lambda tx: work(self._rows_of(tx, key)), mark=settled if mark else None
        )

    def _rows_of(self, tx: Transaction, key: GroupKey | None) -> RowsInSql:
        return RowsInSql(tx, key or NO_GROUP, self._clock)
