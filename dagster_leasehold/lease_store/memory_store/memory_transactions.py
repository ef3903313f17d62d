"""The transactions of the in-memory store: each operation runs alone, under one lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from threading import RLock
from typing import TypeVar

from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.memory_store.rows import AllRows, GroupRows
from dagster_leasehold.lease_store.memory_store.rows_in_memory import RowsInMemory
from dagster_leasehold.lease_store.publication_rows import TableName, TablePointer
from dagster_leasehold.lease_store.stored_rows import NO_GROUP
from dagster_leasehold.lease_store.times import utc_now

Outcome = TypeVar("Outcome")


class MemoryTransactions:
    """The state of a memory store and the one lock that every verb runs under."""

    def __init__(self, clock: Callable[[], datetime] = utc_now) -> None:
        self._clock = clock
        self._lock = RLock()
        self._all = AllRows(clock)
        self.statements: Counter[str] = Counter()

    @property
    def _groups(self) -> dict[GroupKey, GroupRows]:
        return self._all.groups

    @property
    def _pointers(self) -> dict[TableName, TablePointer]:
        return self._all.pointers

    def backup(self) -> object:
        """Return all rows as they are now, for `restore`."""
        with self._lock:
            groups = {key: rows.copy() for key, rows in self._groups.items()}
            return groups, dict(self._pointers)

    def restore(self, backup: object) -> None:
        """Go back to a backup, like a database that lost its last commits."""
        assert isinstance(backup, tuple)
        groups, pointers = backup
        with self._lock:
            self._all.groups = {key: rows.copy() for key, rows in groups.items()}
            self._all.pointers = dict(pointers)

    def close(self) -> None:
        """Do nothing; here so that any store can be closed."""

    def _reading(
        self, kind: str, key: GroupKey | None, work: Callable[[RowsInMemory], Outcome]
    ) -> Outcome:
        return self._writing(kind, key, work)

    def _writing(
        self,
        kind: str,
        key: GroupKey | None,
        work: Callable[[RowsInMemory], Outcome],
        *,
        mark: Callable[[RowsInMemory], bool] | None = None,
    ) -> Outcome:
        del mark  # no reply is lost here
        with self._lock:
            self.statements[kind] += 1
            rows = RowsInMemory(self._all, key or NO_GROUP)
            try:
                outcome = work(rows)
            except BaseException:
                rows.undo()
                raise
            if rows.abandoned:
                rows.undo()
            return outcome
