"""Compaction that continues where the last one ended, and ignores young files.

It reads the ledger from the first file that can still grow. So its cost depends on what was
committed since, and not on the age of the stream. It stores the end of each portion under the
claim:

1. A run swaps in the merged file of a portion, and is killed before it stores the end.
2. The next run begins at the same batch, finds the merged file there, and continues behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from dagster_leasehold.assets.output.units import Unit, each_unit, rewritable_until
from dagster_leasehold.assets.rewriting.compaction import CompactionReport, Compactor
from dagster_leasehold.assets.rewriting.merges import MERGED_ROWS_MAX, changed_rows, next_merges
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, Compacted
from dagster_leasehold.lease_store.rules.withdrawal import NUMBERS_END


def old_until(newest: Batch | None, age: timedelta) -> datetime | None:
    """Return the date before which batches of a shard are old; None without a dated batch.

    An age is the difference of two dates in one ledger: no clock of a reader is involved.
    """
    if newest is None or newest.committed_at is None:
        return None
    return newest.committed_at - age


@dataclass(frozen=True, slots=True)
class ContinuedReport:
    """The results of a compaction of some shards.

    Attributes:
        reports: by shard.
        left: for each shard that is not done, the reason as a clause.
    """

    reports: dict[ShardId, CompactionReport] = field(
        default_factory=dict[ShardId, CompactionReport]
    )
    left: dict[ShardId, str] = field(default_factory=dict[ShardId, str])


@dataclass(frozen=True, slots=True)
class ContinuedCompaction:
    """Compaction of the batches that were committed to some shards since the last compaction.

    Attributes:
        compactor: merges the files.
        age: only batches that are older than the newest batch of their shard by this are merged.
        old_until: for some shards, a number below which all batches are old enough.
        stopped: returns the reason, as a clause, to leave a shard for later; empty to continue.
    """

    compactor: Compactor
    age: timedelta
    old_until: Mapping[ShardId, int]
    stopped: Callable[[ShardId], str]

    def compact(self, shards: Sequence[ShardId]) -> ContinuedReport:
        """Compact these shards, one after the other."""
        progress = self.compactor.store.compacted(self.compactor.key)
        whole = ContinuedReport()
        for shard in dict.fromkeys(shards):
            if reason := self.stopped(shard):
                whole.left[shard] = reason
                continue
            whole.reports[shard] = self._compact(shard, progress.get(shard, Compacted()), whole)
        return whole

    def _compact(
        self, shard: ShardId, progress: Compacted, whole: ContinuedReport
    ) -> CompactionReport:
        report = CompactionReport(shard)
        try:
            with self.compactor.claimed(shard):
                more = True
                while more:
                    report, progress, more = self._portion(report, progress)
                    if more and (reason := self.stopped(shard)):
                        whole.left[shard] = reason
                        break
        except LeaseholdError as error:
            return replace(report, error=str(error))
        return report

    def _portion(
        self, report: CompactionReport, progress: Compacted
    ) -> tuple[CompactionReport, Compacted, bool]:
        """Merge one portion; return report and progress, and True if old batches remain."""
        shard = report.shard
        units, more = self._old_units(shard, progress.until)
        if not units:
            return report, progress, False
        columns = self.compactor.columns
        plan = next_merges(units, target_bytes=self.compactor.target_bytes, columns=columns)
        # The portion before has counted the other units.
        new = [unit for unit in units if unit[0].sequence >= progress.looked_until]
        files = sum(len(batch.files) for unit in new for batch in unit)
        report = replace(
            report, files_before=report.files_before + files, files_after=report.files_after + files
        )
        for merge in plan.merges:
            report = self.compactor.merged(report, merge)
        looked_until = units[-1][-1].last + 1
        # Later runs must not read a portion without a merge again and again.
        until = looked_until if more and not plan.merges else plan.until
        noted = Compacted(until, looked_until)
        self.compactor.store.note_compacted(self.compactor.key, shard, self.compactor.run, noted)
        return report, noted, more

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
    """Yield rows until one has at least a number and was committed after a moment."""
    for row in rows:
        if row.sequence >= number and (row.committed_at is None or row.committed_at > moment):
            return
        yield row


def _whole(unit: Unit) -> bool:
    """Return True if all rows of a unit's batches were read."""
    together = max((file.batches for batch in unit for file in batch.files), default=1)
    return sum(batch.batches for batch in unit) >= together
