"""The role for readers: the ledger, the journal and the gaps, in pages by key.

A page is one short transaction, and its rows are decoded after that has ended: a deployment of
any age can be read beside live consumption, and a reader costs what it takes, not what was ever
written. Nothing but an audit takes everything.

What several pages show was not there at one moment. New batches join at a shard's end alone, so
that a reader who asks for `heads` first and stops at their numbers sees no batch half. What is
changed further back (a swap by replay or compaction, a batch that is withdrawn or removed) raises
the shard's `version`: who needs one moment reads the heads again afterwards, and the shards whose
version has moved once more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Protocol

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchState,
    LedgerHead,
    ShardTotals,
    Throughput,
)
from dagster_leasehold.lease_store.shard_summary import ShardSummary

THROUGHPUT_BATCHES = 32


class Ledger(Protocol):
    """The verbs that read ledger, journal and gaps; they change nothing.

    An iterator has read its first page when it is returned, and reads the next when it is asked
    for more; each page may raise `StoreUnavailable`.
    """

    def heads(
        self, key: GroupKey, shards: Collection[ShardId] | None = None
    ) -> dict[ShardId, LedgerHead]:
        """Return where the ledger of these shards or of all ends; each as it is at one moment.

        One row per shard is read, and its newest batch; a shard that the group has not is left
        out.
        """
        ...

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
            state: only rows of this state; None is all. Intents are found by `heads`.
            numbers: only these numbers; its step is 1.
            newest_first: from the last number down; needs a shard.
        """
        ...

    def batches(
        self,
        key: GroupKey,
        shard: ShardId | None = None,
        state: BatchState | None = BatchState.COMMITTED,
    ) -> list[Batch]:
        """Return all that `each_batch` gives, at once: for a ledger that is known to be small."""
        return list(self.each_batch(key, shard, state))

    def batches_since(self, key: GroupKey, numbers: Mapping[ShardId, int]) -> Iterator[Batch]:
        """Return committed batches of these shards from the given numbers on, in order.

        A row that stands for several batches is given if it stands for any of these.
        """
        ...

    def throughput(self, key: GroupKey, *, window: int = THROUGHPUT_BATCHES) -> list[Throughput]:
        """Return the sums of late commits, for every shard with a ledger, by shard.

        Counted are the committed batches among the newest `window` of a shard.
        """
        ...

    def totals(self, key: GroupKey) -> list[ShardTotals]:
        """Return all that was ever committed, for every shard, by shard; one statement."""
        ...

    def ledger_rows(self, key: GroupKey) -> int:
        """Return the number of ledger rows of batches that were ever committed; one statement.

        Shards count their rows at each commit, folding and expiry, so that no look at the ledger
        is needed.
        """
        ...

    def each_entry(
        self,
        key: GroupKey,
        *,
        shard: ShardId | None = None,
        after: int = 0,
        until: int | None = None,
        newest_first: bool = False,
    ) -> Iterator[JournalEntry]:
        """Return journal entries in order of their sequence, those in `(after, until]`.

        Transactions that overlap may take effect in another order than that of their numbers:
        whoever follows the journal's end does so through `lease_store.journal_tail`.
        """
        ...

    def journal(
        self,
        key: GroupKey,
        *,
        shard: ShardId | None = None,
        after: int = 0,
        limit: int | None = None,
        newest: bool = False,
    ) -> list[JournalEntry]:
        """Return journal entries in order of their sequence: the first `limit`, or the newest.

        Without a limit it is all that `each_entry` gives: for a journal that is known to be small.
        """
        each = self.each_entry(key, shard=shard, after=after, newest_first=newest)
        entries = list(islice(each, limit))
        return entries[::-1] if newest else entries

    def gaps(
        self,
        key: GroupKey,
        shard: ShardId | None = None,
        *,
        start: str | None = None,
        acknowledged: bool | None = None,
    ) -> list[Gap]:
        """Return gaps by shard, start and end: of one shard or all, acknowledged or not or both.

        With `start`, those that begin at this cursor.
        """
        ...

    def gap_counts(self, key: GroupKey) -> dict[bool, int]:
        """Return the number of gaps that somebody has acknowledged, and of those nobody has."""
        ...

    def summaries(self, key: GroupKey, shard: ShardId | None = None) -> list[ShardSummary]:
        """Return the summaries of deleted history, of one shard or by shard; that of none first."""
        ...
