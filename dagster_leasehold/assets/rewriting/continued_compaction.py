"""Compaction that continues where the last compaction ended, and skips young files.

It reads the ledger from the first file that can still grow. So its cost depends on the batches
committed since then, and not on the age of the stream. It stores the end of each portion under the
claim:

1. A run swaps in the merged file of a portion, and is killed before it stores the end.
2. The next run begins at the same batch, finds the merged file, and continues after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from dagster_leasehold.assets.output.units import Unit, each_unit, rewritable_until
from dagster_leasehold.assets.rewriting.compaction import CompactionReport, Compactor
from dagster_leasehold.assets.rewriting.merges import MERGED_ROWS_MAX, changed_rows, next_merges
from dagster_leasehold.assets.table_settings import sort_text
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, Compacted
from dagster_leasehold.lease_store.rules.withdrawal import NUMBERS_END


def old_until(newest: Batch | None, age: timedelta) -> datetime | None:
    """Return the time before which batches of a shard are old; None without a dated batch.

    An age is the difference between two times in one ledger, independent of the reader's clock.
    """
    if newest is None or newest.committed_at is None:
        return None
    return newest.committed_at - age


@dataclass(frozen=True, slots=True)
class ContinuedReport:
    """The results of a compaction of some shards.

    Attributes:
        postponed: for each postponed shard, the reason as a clause.
    """

    reports: dict[ShardId, CompactionReport] = field(
        default_factory=dict[ShardId, CompactionReport]
    )
    postponed: dict[ShardId, str] = field(default_factory=dict[ShardId, str])


@dataclass(frozen=True, slots=True)
class ContinuedCompaction:
    """Compacts the batches that were committed since the last compaction.

    Attributes:
        age: the smallest age of a batch to merge, relative to the newest batch of its shard.
        old_until: for some shards, a number below which all batches are old enough.
        stopped: returns the reason to postpone a shard, as a clause; empty to continue.
    """

    compactor: Compactor
    age: timedelta
    old_until: Mapping[ShardId, int]
    stopped: Callable[[ShardId], str]

    def compact(self, shards: Sequence[ShardId]) -> ContinuedReport:
        """Compact these shards, one after the other."""
        progress = self.compactor.store.compacted(self.compactor.key)
        total = ContinuedReport()
        for shard in dict.fromkeys(shards):
            if reason := self.stopped(shard):
                total.postponed[shard] = reason
                continue
            total.reports[shard] = self._compact(shard, progress.get(shard, Compacted()), total)
        return total

    def _compact(
        self, shard: ShardId, progress: Compacted, total: ContinuedReport
    ) -> CompactionReport:
        report = CompactionReport(shard)
        try:
            with self.compactor.claim(shard):
                more = True
                while more:
                    report, progress, more = self._portion(report, progress)
                    if more and (reason := self.stopped(shard)):
                        total.postponed[shard] = reason
                        break
        except LeaseholdError as error:
            return replace(report, error=str(error))
        return report

    def _portion(
        self, report: CompactionReport, progress: Compacted
    ) -> tuple[CompactionReport, Compacted, bool]:
        """Merge one portion; return the report, the progress, and True if old batches remain."""
        shard = report.shard
        units, more = self._old_units(shard, progress.until)
        if not units:
            return report, progress, False
        columns = self.compactor.columns
        plan = next_merges(
            units,
            target_bytes=self.compactor.target_bytes,
            columns=columns,
            sorted_by=sort_text(self.compactor.sort_order),
        )
        # The other units were counted with the previous portion.
        new = [unit for unit in units if unit[0].sequence >= progress.examined_until]
        files = sum(len(batch.files) for unit in new for batch in unit)
        report = replace(
            report, files_before=report.files_before + files, files_after=report.files_after + files
        )
        for merge in plan.merges:
            report = self.compactor.merge(report, merge)
        end = units[-1][-1].last + 1
        # Later runs must not read a portion without a merge repeatedly.
        until = end if more and not plan.merges else plan.until
        progress = Compacted(until, end)
        self.compactor.store.note_compacted(self.compactor.key, shard, self.compactor.run, progress)
        return report, progress, more

    def _old_units(self, shard: ShardId, first: int) -> tuple[list[Unit], bool]:
        """Return complete units that are old enough, and True if more follow."""
        store, key = self.compactor.store, self.compactor.key
        newest = next(store.each_batch(key, shard, newest_first=True), None)
        moment, number = old_until(newest, self.age), self.old_until.get(shard, 0)
        if moment is None:
            return [], False
        units: list[Unit] = []
        changed = 0
        end = rewritable_until(store, key, shard, NUMBERS_END)
        rows = store.each_batch(key, shard, numbers=range(first, max(first, end)))
        for unit in each_unit(_until(rows, moment, number)):
            changed += len(changed_rows(unit))
            if units and changed > MERGED_ROWS_MAX:
                return units, True
            if not _whole(unit):
                break
            units.append(unit)
        return units, False


def _until(rows: Iterator[Batch], moment: datetime, number: int) -> Iterator[Batch]:
    """Yield rows up to the first row from `number` on that was committed after `moment`."""
    for row in rows:
        if row.sequence >= number and (row.committed_at is None or row.committed_at > moment):
            return
        yield row


def _whole(unit: Unit) -> bool:
    """Return True if all rows of a unit's batches were read."""
    batches = max((file.batches for batch in unit for file in batch.files), default=1)
    return sum(batch.batches for batch in unit) >= batches
