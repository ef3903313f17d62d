"""Forgetting committed output that has expired, in memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState
from dagster_leasehold.lease_store.memory_store.retention import MemoryRetention
from dagster_leasehold.lease_store.memory_store.rows import GroupRows
from dagster_leasehold.lease_store.rules import expiry as rules
from dagster_leasehold.lease_store.shard_summary import Portion


class MemoryExpiry(MemoryRetention):
    """The verbs that forget output."""

    @override
    def expirable(self, key: GroupKey, shard: ShardId, *, before: datetime) -> list[Batch]:
        with self._rows("expirable", key) as rows:
            ripe = _ripe(rows, shard, before)
            return [row for row in ripe if row.state is BatchState.COMMITTED]

    @override
    def expire_batches(
        self, key: GroupKey, shard: ShardId, *, before: datetime, through: int
    ) -> Portion:
        with self._rows("expire_batches", key) as rows:
            rows.shard(shard)
            ripe = _ripe(rows, shard, before, through)
            if not ripe:
                return Portion()
            summary = rows.summary(shard)
            outcome = rules.expire(
                summary,
                ripe,
                journal=rows.journal.of(shard),
                gaps=[gap for gap in rows.gaps if gap.shard == shard],
            )
            rows.summaries[shard] = replace(outcome.summary, version=summary.version + 1)
            for number in outcome.gone:
                del rows.batches[shard, number]
            rows.versions[shard] += 1
            return Portion(len(outcome.gone), more=True)


def _ripe(
    rows: GroupRows, shard: ShardId, before: datetime, through: int | None = None
) -> list[Batch]:
    ledger = rows.batches.of(shard)
    committed = [row.sequence for row in ledger if row.state is BatchState.COMMITTED]
    if not committed or shard in rows.rewrites:
        return []
    below = committed[-1] if through is None else min(committed[-1], through + 1)
    return rules.expirable(
        [row for row in ledger if row.sequence < below],
        before=before,
        undelivered={event.batch_id for event in rows.outbox.values()},
    )
