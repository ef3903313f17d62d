"""Reading ledger, journal and gaps in SQL: page by page, each decoded after its transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from sqlalchemy import RowMapping
from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchState,
    LedgerHead,
    ShardTotals,
    Throughput,
)
from dagster_leasehold.lease_store.roles.ledger import THROUGHPUT_BATCHES, Ledger
from dagster_leasehold.lease_store.rules.withdrawal import ALL_NUMBERS, NUMBERS_END
from dagster_leasehold.lease_store.shard_summary import ShardSummary
from dagster_leasehold.lease_store.sql_store import history_statements as statements
from dagster_leasehold.lease_store.sql_store import ledger_statements, mapping
from dagster_leasehold.lease_store.sql_store.history_statements import Listing, page_sizes
from dagster_leasehold.lease_store.sql_store.table_rows import portions
from dagster_leasehold.lease_store.sql_store.verbs import SELECTS_PER_STATEMENT, SqlVerbs, Value
from dagster_leasehold.lease_store.transactions import Transaction


class SqlLedger(SqlVerbs, Ledger):
    """The verbs of `Ledger`."""

    @override
    def heads(
        self, key: GroupKey, shards: Collection[ShardId] | None = None
    ) -> dict[ShardId, LedgerHead]:
        if shards is None:
            shards = self._all("heads", key, statements.select_shards(key), itemgetter("shard_id"))
        heads: dict[ShardId, LedgerHead] = {}
        for part in portions(shards, SELECTS_PER_STATEMENT):
            some = self._all("heads", key, statements.select_heads(key, part), mapping.head_from)
            heads |= {head.shard: head for head in some}
        return heads

    @override
    def totals(self, key: GroupKey) -> list[ShardTotals]:
        return self._all("totals", key, statements.select_totals(key), mapping.TOTALS.read)

    @override
    def ledger_rows(self, key: GroupKey) -> int:
        (rows,) = self._all("ledger_rows", key, statements.count_ledger_rows(key), _rows_counted)
        return rows

    @override
    def throughput(self, key: GroupKey, *, window: int = THROUGHPUT_BATCHES) -> list[Throughput]:
        newest = {
            head.shard: head.next_number - (head.intent is None)
            for head in self.heads(key).values()
            if head.next_number or head.intent is not None
        }
        sums: list[Throughput] = []
        for part in portions(newest, SELECTS_PER_STATEMENT):
            statement = statements.throughput(key, window, {each: newest[each] for each in part})
            sums += self._all("throughput", key, statement, mapping.THROUGHPUT.read)
        return sums

    @override
    def each_batch(
        self,
        key: GroupKey,
        shard: ShardId | None = None,
        state: BatchState | None = BatchState.COMMITTED,
        *,
        numbers: range | None = None,
        newest_first: bool = False,
    ) -> Iterator[Batch]:
        if shard is None:
            listing = statements.all_batches(key, state)
        else:
            listing = statements.batches_of(
                key, shard, state, numbers or ALL_NUMBERS, newest_first=newest_first
            )
        return self._each(key, listing, mapping.batch_from)

    @override
    def batches_since(self, key: GroupKey, numbers: Mapping[ShardId, int]) -> Iterator[Batch]:
        self._read("batches", lambda tx: self._group(tx, key))
        return chain.from_iterable(
            chain(self._folded_over(key, shard, number), self.each_batch(key, shard, numbers=rest))
            for shard, number in sorted(numbers.items())
            for rest in [range(number, NUMBERS_END)]
        )

    def _folded_over(self, key: GroupKey, shard: ShardId, number: int) -> Iterator[Batch]:
        """Return the row before a number, if it stands for the batch of that number as well."""
        before = statements.batches_of(
            key, shard, BatchState.COMMITTED, range(number), newest_first=True
        )
        rows = self._each(key, before, mapping.batch_from, limit=1) if number else iter(())
        return (batch for batch in rows if batch.last >= number)

    @override
    def each_entry(
        self,
        key: GroupKey,
        *,
        shard: ShardId | None = None,
        after: int = 0,
        until: int | None = None,
        newest_first: bool = False,
    ) -> Iterator[JournalEntry]:
        listing = statements.entries(
            key, shard=shard, after=after, until=until, newest_first=newest_first
        )
        return self._each(key, listing, mapping.ENTRY.read)

    @override
    def gaps(
        self,
        key: GroupKey,
        shard: ShardId | None = None,
        *,
        start: str | None = None,
        acknowledged: bool | None = None,
    ) -> list[Gap]:
        return list(
            self._each(key, statements.all_gaps(key, shard, start, acknowledged), mapping.GAP.read)
        )

    @override
    def gap_counts(self, key: GroupKey) -> dict[bool, int]:
        rows = self._all("gap_counts", key, statements.count_gaps(key), dict[str, Any])
        return {True: 0, False: 0} | {bool(row["acknowledged"]): row["gaps"] for row in rows}

    @override
    def summaries(self, key: GroupKey, shard: ShardId | None = None) -> list[ShardSummary]:
        statement = ledger_statements.select_summaries(key, shard)
        return self._all("summaries", key, statement, mapping.summary_from)

    def _each(
        self,
        key: GroupKey,
        listing: Listing,
        value_from: Callable[[RowMapping], Value],
        *,
        limit: int | None = None,
    ) -> Iterator[Value]:
        """Return the values of a listing, page by page; the first page is read now."""
        pages = self._pages(key, listing, limit)
        first = next(pages)
        return map(value_from, chain.from_iterable(chain([first], pages)))

    def _pages(
        self, key: GroupKey, listing: Listing, limit: int | None
    ) -> Iterator[Sequence[RowMapping]]:
        last: Sequence[Any] | None = None
        left = NUMBERS_END if limit is None else limit
        for size in page_sizes():
            wanted = min(size, left)

            def work(tx: Transaction, wanted: int = wanted, last: Any = last) -> list[RowMapping]:
                if last is None:
                    self._group(tx, key)
                rows: list[RowMapping] = []
                for run in listing.after(last):
                    rows += tx.rows(run.limit(wanted - len(rows)))
                    if len(rows) == wanted:
                        break
                return rows

            rows = self._read(listing.kind, work)
            yield rows
            left -= len(rows)
            if len(rows) < wanted or not left:
                return
            last = [rows[-1][column.name] for column in listing.place]


def _rows_counted(row: RowMapping) -> int:
    # MySQL adds integers up to a decimal.
    return int(row["ledger_rows"])
