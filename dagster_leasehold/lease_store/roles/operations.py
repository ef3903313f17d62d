"""The base of all roles: operations over the rows of one group, each in one transaction.

An operation locks what it decides upon, asks the pure rules, and writes under conditions that
repeat what it saw. Changes of ownership lock the group's row first and shards by id, so that all
transactions agree on one order; beats lock nothing but their own node's row.

`Rows` reads and writes rows by key or condition. It reads them at once and decodes them as they
are taken: an operation that only reads takes them after its transaction has ended, because a
server ends a transaction that stands still while its process decodes ten thousand rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId

if TYPE_CHECKING:
    from dagster_leasehold.lease_store.memory_store.rows_in_memory import RowsInMemory
    from dagster_leasehold.lease_store.sql_store.rows_in_sql import RowsInSql

    Rows = RowsInMemory | RowsInSql
else:
    Rows = object

Outcome = TypeVar("Outcome")
Value = TypeVar("Value")


class Operations(ABC):
    """The transactions of a store."""

    statements: Counter[str]
    _clock: Callable[[], datetime]

    @abstractmethod
    def _reading(self, kind: str, key: GroupKey | None, work: Callable[[Rows], Outcome]) -> Outcome:
        """Run an operation that changes nothing; without a key it concerns no group."""

    @abstractmethod
    def _writing(
        self,
        kind: str,
        key: GroupKey | None,
        work: Callable[[Rows], Outcome],
        *,
        mark: Callable[[Rows], bool] | None = None,
    ) -> Outcome:
        """Run an operation in one transaction; `work` runs again whenever that must.

        `mark` tells in a new transaction whether this one took effect, after the reply to its
        COMMIT was lost; None where running the work again is harmless.
        """

    def _changing(self, kind: str, key: GroupKey, work: Callable[[Rows], Outcome]) -> Outcome:
        """Run a change of ownership: the group's row first, so that all of them have one order."""

        def ordered(rows: Rows) -> Outcome:
            rows.bump()
            return work(rows)

        return self._writing(kind, key, ordered, mark=journalled())

    def _listing(
        self, kind: str, key: GroupKey, query: Callable[[Rows], Iterable[Value]]
    ) -> list[Value]:
        """Return the values of a bounded query; the group is looked for only if there is none."""

        def work(rows: Rows) -> Iterator[Value]:
            values = iter(query(rows))
            for first in values:
                return chain([first], values)
            rows.group()
            return values

        return list(self._reading(kind, key, work))


def journalled(shard: ShardId | None = None) -> Callable[[Rows], bool]:
    """Return the mark that looks for a transaction's journal entries, behind its first lock."""

    def mark(rows: Rows) -> bool:
        if shard is None:
            rows.group(lock=True)
        else:
            rows.shards([shard], lock=True)
        return rows.journalled()

    return mark
