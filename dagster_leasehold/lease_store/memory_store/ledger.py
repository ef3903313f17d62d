"""Reading ledger, journal and gaps in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

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
from dagster_leasehold.lease_store.memory_store.memory_transactions import MemoryRows
from dagster_leasehold.lease_store.roles.ledger import THROUGHPUT_BATCHES, Ledger
from dagster_leasehold.lease_store.rules.ledger import next_in_line
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.shard_summary import ShardSummary


class MemoryLedger(MemoryRows, Ledger):
    """The verbs of `Ledger`; each reads all rows at one moment."""

    @override
    def heads(
        self, key: GroupKey, shards: Collection[ShardId] | None = None
    ) -> dict[ShardId, LedgerHead]:
        with self._rows("heads", key) as rows:
            return {
                shard: _head(rows.shards[shard], rows.batches.of(shard), rows.versions[shard])
                for shard in sorted(rows.shards)
                if shards is None or shard in shards
            }

    @override
    def ledger_rows(self, key: GroupKey) -> int:
        counted = (BatchState.COMMITTED, BatchState.WITHDRAWN)
        with self._rows("ledger_rows", key) as rows:
            return sum(batch.state in counted for batch in rows.batches.values())

    @override
    def totals(self, key: GroupKey) -> list[ShardTotals]:
        with self._rows("totals", key) as rows:
            return [rows.totals.get(shard, ShardTotals(shard)) for shard in sorted(rows.shards)]

    @override
    def throughput(self, key: GroupKey, *, window: int = THROUGHPUT_BATCHES) -> list[Throughput]:
        with self._rows("throughput", key) as rows:
            newest = dict(sorted(rows.batches))
            sums: dict[ShardId, Throughput] = {}
            for (shard, number), batch in sorted(rows.batches.items(), key=lambda item: item[0]):
                late = number > newest[shard] - window
                if not late or batch.state is not BatchState.COMMITTED or not batch.committed_at:
                    continue
                at, statistics = batch.committed_at, batch.statistics
                read = statistics.written if statistics.records is None else statistics.records
                total = sums.get(shard, Throughput(shard, 0, 0, at, at))
                sums[shard] = Throughput(
                    shard,
                    total.batches + 1,
                    total.records + read,
                    min(total.first_at, at),
                    max(total.last_at, at),
                )
            return list(sums.values())

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
        with self._rows("batches", key) as rows:
            owned = rows.batches.all() if shard is None else rows.batches.of(shard)
            wanted = [
                batch
                for batch in owned
                if (state is None or batch.state is state)
                and (shard is None or numbers is None or batch.sequence in numbers)
            ]
        wanted.sort(key=lambda batch: batch.shard)
        return reversed(wanted) if newest_first else iter(wanted)

    @override
    def batches_since(self, key: GroupKey, numbers: Mapping[ShardId, int]) -> Iterator[Batch]:
        return (
            batch
            for shard, number in sorted(numbers.items())
            for batch in self.each_batch(key, shard)
            if batch.last >= number
        )

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
        with self._rows("journal", key) as rows:
            owned = rows.journal.all() if shard is None else rows.journal.of(shard)
            wanted = [
                entry
                for entry in owned
                if entry.sequence > after and (until is None or entry.sequence <= until)
            ]
        wanted.sort(key=lambda entry: entry.sequence)
        return reversed(wanted) if newest_first else iter(wanted)

    @override
    def gaps(
        self,
        key: GroupKey,
        shard: ShardId | None = None,
        *,
        start: str | None = None,
        acknowledged: bool | None = None,
    ) -> list[Gap]:
        with self._rows("gaps", key) as rows:
            gaps = [
                gap
                for gap in rows.gaps
                if (shard is None or gap.shard == shard)
                and (start is None or gap.start == start)
                and (acknowledged is None or gap.acknowledged == acknowledged)
            ]
            return sorted(gaps, key=lambda gap: (gap.shard, gap.start, gap.end))

    @override
    def gap_counts(self, key: GroupKey) -> dict[bool, int]:
        acknowledged = [gap.acknowledged for gap in self.gaps(key)]
        return {value: acknowledged.count(value) for value in (True, False)}

    @override
    def summaries(self, key: GroupKey, shard: ShardId | None = None) -> list[ShardSummary]:
        with self._rows("summaries", key) as rows:
            named = sorted(rows.summaries, key=lambda each: each or "")
            return [rows.summaries[each] for each in named if shard in (None, each)]


def _head(lease: ShardLease, batches: Sequence[Batch], version: int) -> LedgerHead:
    number, intent = next_in_line(batches[-1] if batches else None)
    run = intent.run if intent else None
    return LedgerHead(lease.shard, lease.check_point, number, run, version)
