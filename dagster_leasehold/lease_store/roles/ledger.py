"""The role for readers: the ledger, the journal and the gaps, in pages by key.

Each page is a short transaction, and its rows are decoded afterwards. So the cost depends on the
rows read, not on the age of the deployment, and consumption is not disturbed.

Pages are read at different times. New batches are only appended, so read `heads` first and stop at
their numbers. Earlier rows can be swapped, withdrawn or deleted, which increments the shard's
`version`. For a consistent read, compare the heads afterwards, and read changed shards again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.journal_rows import TENURE_KINDS, Gap, JournalEntry
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchState,
    LedgerCounters,
    LedgerHead,
    ShardTotals,
    Throughput,
)
from dagster_leasehold.lease_store.roles.operations import Operations, Rows, chunks
from dagster_leasehold.lease_store.rules.withdrawal import ALL_NUMBERS, NUMBERS_END
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.shard_summary import ShardSummary
from dagster_leasehold.lease_store.stored_rows import Above, given

THROUGHPUT_BATCHES = 32
SHARDS_PER_READ = 100


class Ledger(Operations):
    """The operations that read ledger, journal and gaps.

    An iterator is returned with its first page, and each further page can raise
    `StoreUnavailable`.
    """

    def heads(
        self, key: GroupKey, shards: Collection[ShardId] | None = None
    ) -> dict[ShardId, LedgerHead]:
        """Return the ends of the ledgers of these shards or of all; unknown shards are omitted."""
        if shards is None:
            shards = self._listing("heads", key, lambda rows: rows.values(ShardLease, "shard"))
        heads: dict[ShardId, LedgerHead] = {}
        for part in chunks(sorted(shards), SHARDS_PER_READ):

            def work(rows: Rows, part: Collection[ShardId] = part) -> Iterator[LedgerHead]:
                return rows.heads(part)

            heads |= {head.shard: head for head in self._listing("heads", key, work)}
        return heads

    def each_batch(
        self,
        key: GroupKey,
        shard: ShardId | None = None,
        state: BatchState | None = BatchState.COMMITTED,
        *,
        numbers: range | None = None,
        newest_first: bool = False,
    ) -> Iterator[Batch]:
        """Return ledger rows by shard and number.

        Args:
            shard: only this shard.
            state: only rows of this state; None is all. For intents, see `heads`.
            numbers: only these numbers; its step is 1.
            newest_first: from the last number down; requires a shard.
        """
        if shard is None:
            return self._each("batches", key, Batch, **given(state=state))
        some = ALL_NUMBERS if numbers is None else numbers
        own = given(shard=shard, sequence=some, state=state)
        return self._each("batches", key, Batch, newest_first=newest_first, **own)

    def batches(
        self,
        key: GroupKey,
        shard: ShardId | None = None,
        state: BatchState | None = BatchState.COMMITTED,
    ) -> list[Batch]:
        """Return the result of `each_batch` as a list, for small ledgers."""
        return list(self.each_batch(key, shard, state))

    def batches_since(self, key: GroupKey, numbers: Mapping[ShardId, int]) -> Iterator[Batch]:
        """Yield committed batches of these shards from the given numbers on, in order.

        A folded row is included if any of its batches is.
        """
        self._reading("batches", key, lambda rows: rows.group())
        return chain.from_iterable(
            chain(self._folded_over(key, shard, number), self.each_batch(key, shard, numbers=rest))
            for shard, number in sorted(numbers.items())
            for rest in [range(number, NUMBERS_END)]
        )

    def throughput(self, key: GroupKey, *, window: int = THROUGHPUT_BATCHES) -> list[Throughput]:
        """Return the sum of the committed batches among each shard's newest `window` batches."""
        newest = {
            head.shard: head.next_number - (head.intent is None)
            for head in self.heads(key).values()
            if head.next_number or head.intent is not None
        }
        sums: list[Throughput] = []
        for part in chunks(sorted(newest), SHARDS_PER_READ):
            since = {shard: newest[shard] - window + 1 for shard in part}
            sums += self._listing(
                "throughput", key, lambda rows, since=since: rows.throughput(since)
            )
        return sums

    def totals(self, key: GroupKey) -> list[ShardTotals]:
        """Return the totals of all commits, by shard, in one statement."""
        counted = self._listing("totals", key, lambda rows: rows.select(LedgerCounters))
        return [each.totals for each in counted]

    def ledger_rows(self, key: GroupKey) -> int:
        """Return the number of ledger rows of committed batches, in one statement."""
        counted = self._listing("ledger_rows", key, lambda r: r.values(LedgerCounters, "rows"))
        return sum(counted)

    def each_entry(
        self,
        key: GroupKey,
        *,
        shard: ShardId | None = None,
        after: int = 0,
        until: int | None = None,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> Iterator[JournalEntry]:
        """Yield the journal entries in `(after, until]`, in order.

        The order of commits can differ from the order of numbers. To follow the journal's end, use
        `lease_store.journal_tail`.
        """
        above = range(after + 1, NUMBERS_END if until is None else until + 1)
        own = given(sequence=above, shard=shard)
        order = {"newest_first": newest_first, "limit": limit}
        return self._each("journal", key, JournalEntry, **order, **own)

    def journal(
        self,
        key: GroupKey,
        *,
        shard: ShardId | None = None,
        after: int = 0,
        limit: int | None = None,
        newest: bool = False,
    ) -> list[JournalEntry]:
        """Return journal entries in order: the first or the newest `limit`, or all."""
        entries = list(
            self.each_entry(key, shard=shard, after=after, newest_first=newest, limit=limit)
        )
        return entries[::-1] if newest else entries

    def touched(self, key: GroupKey, after: int) -> list[tuple[int, ShardId]]:
        """Return the number and shard of each later journal entry on tenures."""
        own = given(sequence=Above(after), kind=TENURE_KINDS)
        return self._reading(
            "touched", key, lambda rows: rows.values(JournalEntry, "sequence", "shard", **own)
        )

    def gaps(
        self,
        key: GroupKey,
        shard: ShardId | None = None,
        *,
        start: str | None = None,
        acknowledged: bool | None = None,
    ) -> list[Gap]:
        """Return gaps by shard, start and end; a condition of None selects all."""
        own = given(shard=shard, start=start, acknowledged=acknowledged)
        return list(self._each("gaps", key, Gap, **own))

    def gap_counts(self, key: GroupKey) -> dict[bool, int]:
        """Return the number of acknowledged gaps, and of the others."""
        flags = self._listing("gap_counts", key, lambda rows: rows.values(Gap, "acknowledged"))
        return {flag: flags.count(flag) for flag in (True, False)}

    def summaries(self, key: GroupKey, shard: ShardId | None = None) -> list[ShardSummary]:
        """Return the summaries of deleted history, by shard."""
        own = given(shard=shard)
        return self._listing("summaries", key, lambda rows: rows.select(ShardSummary, **own))

    def _folded_over(self, key: GroupKey, shard: ShardId, number: int) -> Iterator[Batch]:
        """Yield the earlier row into which the batch with this number was folded, if any."""
        if not number:
            return
        own = given(shard=shard, sequence=range(number), state=BatchState.COMMITTED)
        for batch in self._each("batches", key, Batch, newest_first=True, limit=1, **own):
            if batch.last >= number:
                yield batch
