"""Gaps in memory."""

from __future__ import annotations

from dataclasses import replace

from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.journal_rows import Gap
from dagster_leasehold.lease_store.memory_store.rows import MemoryRows
from dagster_leasehold.lease_store.memory_store.tenures import held
from dagster_leasehold.lease_store.outcomes import Changed, Stale
from dagster_leasehold.lease_store.rules.gap_policy import acknowledgement, gap_note, gap_write
from dagster_leasehold.lease_store.rules.refusals import gap_refused
from dagster_leasehold.lease_store.shard_rows import Tenure


class MemoryGaps(MemoryRows):
    """The verbs on gaps."""

    def record_gap(
        self, tenure: Tenure, *, start: str, end: str, reason: str, skip: bool = True
    ) -> None:
        """See `LeaseStore.record_gap`."""
        with self._rows("record_gap", tenure.key) as rows:
            row = held(rows, tenure)
            gap = Gap(tenure.shard, start, end, reason, self._clock())
            known = [each for each in rows.gaps if (each.shard, each.start) == (gap.shard, start)]
            write = gap_write(gap, known, check_point=row.check_point, accepted=skip)
            if write is None:
                return
            if row.check_point not in (None, start):
                raise gap_refused(tenure, start, row.check_point)
            if write.replaces is not None:
                rows.gaps.remove(write.replaces)
            rows.gaps.append(write.gap)
            self._note(rows, gap_note(write.gap, tenure), str(tenure.holder))
            if write.moves:
                rows.abandon_intents(tenure.shard)
                rows.shards[tenure.shard] = replace(row, check_point=end)

    def acknowledge_gap(self, key: GroupKey, gap: Gap, *, observer: str) -> Changed | Stale:
        """See `LeaseStore.acknowledge_gap`."""
        with self._rows("acknowledge_gap", key) as rows:
            rows.shard(gap.shard)
            for number, known in enumerate(rows.gaps):
                same = (known.shard, known.start, known.end) == (gap.shard, gap.start, gap.end)
                if same and not known.acknowledged:
                    rows.gaps[number] = replace(known, acknowledged=True)
                    self._note(rows, acknowledgement(gap), observer)
                    return Changed((gap.shard,))
            return Stale()
