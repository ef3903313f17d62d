"""The base of all roles: operations on the rows of one group, each in one transaction.

An operation locks the rows for its decision, applies the pure rules, and writes under the condition
that the rows are unchanged. Changes of ownership lock the group's row first and then shards by id,
so that transactions do not deadlock. A heartbeat locks only its node's row.

`Rows` reads and writes rows by key or condition, and decodes them lazily. An operation that only
reads decodes them after its transaction, because the server ends a stalled transaction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import DeliveryClaim
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState, LedgerCounters
from dagster_leasehold.lease_store.outcomes import LockOver, LockTaken, Settled
from dagster_leasehold.lease_store.publication_rows import ChangeKind, Publication, PublishLock
from dagster_leasehold.lease_store.rules.publishing import Border, border_of, changes_of_removal
from dagster_leasehold.lease_store.rules.refusals import lease_lost, unknown_shard
from dagster_leasehold.lease_store.rules.transitions import holds
from dagster_leasehold.lease_store.shard_rows import ShardLease, Tenure
from dagster_leasehold.lease_store.stored_rows import Above, DeliveryLock

if TYPE_CHECKING:
    from dagster_leasehold.lease_store.memory_store.rows_in_memory import RowsInMemory
    from dagster_leasehold.lease_store.sql_store.rows_in_sql import RowsInSql

    Rows = RowsInMemory | RowsInSql
else:
    Rows = object

ROWS_PER_TRANSACTION = 500
PAGE_FIRST_ROWS = 64
PAGE_ROWS_MAX = 2_048
_PAGE_GROWTH = 4
Outcome = TypeVar("Outcome")
Value = TypeVar("Value")
Lock = DeliveryLock | Publication
LockKind = TypeVar("LockKind", bound=Lock)


class Operations(ABC):
    """The transactions of a store."""

    statements: Counter[str]
    _page_rows: tuple[int, int] = (PAGE_FIRST_ROWS, PAGE_ROWS_MAX)
    _clock: Callable[[], datetime]

    @abstractmethod
    def _reading(self, kind: str, key: GroupKey | None, work: Callable[[Rows], Outcome]) -> Outcome:
        """Run an operation that only reads; without a key, it does not belong to a group."""

    @abstractmethod
    def _writing(
        self,
        kind: str,
        key: GroupKey | None,
        work: Callable[[Rows], Outcome],
        *,
        mark: Callable[[Rows], bool] | None = None,
    ) -> Outcome:
        """Run an operation in one transaction; `work` runs again after a conflict.

        After a lost reply to COMMIT, `mark` checks in a new transaction if this one took effect;
        None if running `work` again is harmless.
        """

    def _changing(self, kind: str, key: GroupKey, work: Callable[[Rows], Outcome]) -> Outcome:
        """Run a change of ownership, with the group's row locked."""

        def ordered(rows: Rows) -> Outcome:
            rows.bump()
            return work(rows)

        return self._writing(kind, key, ordered, mark=journalled())

    def _listing(
        self, kind: str, key: GroupKey, query: Callable[[Rows], Iterable[Value]]
    ) -> list[Value]:
        """Return the values of a query; raise UnknownGroup instead of returning none."""

        def work(rows: Rows) -> Iterator[Value]:
            values = iter(query(rows))
            for first in values:
                return chain([first], values)
            rows.group()
            return values

        return list(self._reading(kind, key, work))

    def _each(
        self,
        name: str,
        key: GroupKey,
        kind: type[Value],
        *,
        newest_first: bool = False,
        limit: int | None = None,
        **conditions: Any,
    ) -> Iterator[Value]:
        """Yield rows page by page, each in its own transaction; the first page is read now."""

        def pages() -> Iterator[list[Value]]:
            remaining = limit
            last: Value | None = None
            first, most = self._page_rows
            for size in page_sizes(first if limit is None else min(limit, most), most):
                number = size if remaining is None else min(size, remaining)

                def work(rows: Rows, number: int = number, last: Any = last) -> Iterator[Value]:
                    if last is None:
                        rows.group()
                    order = {"after": last, "newest_first": newest_first}
                    return rows.select(kind, limit=number, **order, **conditions)

                page = list(self._reading(name, key, work))
                yield page
                remaining = None if remaining is None else remaining - len(page)
                if len(page) < number or remaining == 0:
                    return
                last = page[-1]

        each = pages()
        return chain.from_iterable(chain([next(each)], each))


def chunks(values: Sequence[Value], size: int) -> Iterator[Sequence[Value]]:
    """Divide values into pieces of a size."""
    return (values[start : start + size] for start in range(0, len(values), size))


def page_sizes(first: int = PAGE_FIRST_ROWS, most: int = PAGE_ROWS_MAX) -> Iterator[int]:
    """Yield the size of each page: small at first, for readers that stop early."""
    size = first
    while True:
        yield size
        size = min(size * _PAGE_GROWTH, most)


def journalled(shard: ShardId | None = None) -> Callable[[Rows], bool]:
    """Return a mark that searches the transaction's journal entries, under its first lock."""

    def mark(rows: Rows) -> bool:
        if shard is None:
            rows.group(lock=True)
        else:
            rows.shards([shard], lock=True)
        return rows.journalled()

    return mark


def locked_shard(rows: Rows, shard: ShardId) -> ShardLease:
    """Lock and return a shard's row; raise UnknownShard if the group lacks the shard."""
    row = rows.shards([shard], lock=True).get(shard)
    if row is None:
        rows.group()
        raise unknown_shard(rows.key, shard)
    return row


def current_row(rows: Rows, tenure: Tenure) -> ShardLease:
    """Lock and return the shard row of a tenure; raise LeaseLost if the tenure is over."""
    row = rows.shards([tenure.shard], lock=True).get(tenure.shard)
    if row is None or not holds(row, tenure):
        raise loss_of(rows, tenure)
    return row


def loss_of(rows: Rows, tenure: Tenure) -> Exception:
    """Return the error of a tenure that is over."""
    rows.group()
    return lease_lost(tenure)


def abandon_intent(rows: Rows, shard: ShardId) -> None:
    """Abandon a shard's intent, if its newest row is one."""
    newest = rows.newest([shard]).get(shard)
    if newest is not None and newest.state is BatchState.INTENT:
        own = {"shard": shard, "sequence": newest.sequence, "state": BatchState.INTENT}
        rows.change(Batch, {"state": BatchState.ABANDONED}, **own)


# -- publish and delivery locks, and the border of the table -------------------------------


def border_in(rows: Rows, shard: ShardId) -> Border | None:
    """Return the border of a locked shard; None if the group has no table."""
    publication = rows.first(Publication, epoch=Above(0))
    if publication is None:
        return None
    (cursor,) = rows.values(LedgerCounters, "published_until", shard=shard)
    return border_of(shard, cursor, publication.pending)


def record_removal(
    rows: Rows, shard: ShardId, kind: ChangeKind, removed: Callable[[int], Iterable[Batch]]
) -> None:
    """Record that batches of a locked shard leave the table.

    `removed` returns the removed batches before a number.
    """
    border = border_in(rows, shard)
    if border is not None:
        changes = changes_of_removal(kind, shard, removed(border.reached), border.published)
        rows.add(*changes)


class Locks(Operations):
    """The base of the roles with a lock that has an epoch: publish and delivery."""

    def _release(
        self, name: str, kind: type[Lock], lock: DeliveryClaim | PublishLock
    ) -> Settled | LockOver:
        earlier_attempt = False

        def work(rows: Rows) -> Settled | LockOver:
            nonlocal earlier_attempt
            if held_lock(rows, kind, lock) is None:
                # An epoch is used once, so an earlier attempt at this call released it.
                return rows.abandon(Settled() if earlier_attempt else LockOver())
            earlier_attempt = True
            rows.change(kind, {"node": None, "incarnation": ""}, epoch=lock.epoch)
            return Settled()

        return self._writing(name, lock.key, work)


def next_epoch(
    rows: Rows, lock: Lock | None, node: NodeName | None, incarnation: str
) -> int | LockTaken:
    """Return the epoch of the lock that a node, or None, takes; the group's row is locked."""
    holder = lock.node if lock is not None else None
    names = {name for name in (node, holder) if name is not None}
    alive = {row.name: row.incarnation for row in rows.select(Node, name=names) if row.member}
    if node is not None and alive.get(node) != incarnation:
        return LockTaken(None)
    if lock is not None and holder not in (None, node) and alive.get(holder) == lock.incarnation:
        return LockTaken(holder)
    return (lock.epoch if lock is not None else 0) + 1


def held_lock(
    rows: Rows, kind: type[LockKind], lock: DeliveryClaim | PublishLock
) -> LockKind | None:
    """Lock and return the row of a lock; None if another node has taken it."""
    rows.group()
    return rows.first(kind, lock=True, node=lock.node, epoch=lock.epoch)
