"""Deleting history and expired output in memory."""

from __future__ import annotations

import heapq
from dataclasses import replace
from datetime import datetime

from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.journal_rows import JournalEntry
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState
from dagster_leasehold.lease_store.memory_store.rows import GroupRows
from dagster_leasehold.lease_store.memory_store.table_changes import MemoryTableChanges
from dagster_leasehold.lease_store.publication_rows import ChangeKind
from dagster_leasehold.lease_store.roles.retention import Retention
from dagster_leasehold.lease_store.rules import deletable_history as rules
from dagster_leasehold.lease_store.rules import expiry
from dagster_leasehold.lease_store.rules.order_proof import check_order
from dagster_leasehold.lease_store.shard_summary import (
    BATCHES_KEPT,
    ENTRIES_KEPT,
    EVENTS_KEPT,
    PORTION_ROWS,
    Portion,
)


class MemoryRetention(MemoryTableChanges, Retention):
    """The verbs of `Retention`."""

    @override
    def newest_times(self, key: GroupKey, number: int) -> list[datetime]:
        with self._rows("newest_times", key) as rows:
            newest = heapq.nlargest(number, rows.journal.values(), key=_sequence)
            return [entry.at for entry in newest]

    @override
    def prune_journal(
        self, key: GroupKey, shard: ShardId | None, *, before: datetime, keep: int = ENTRIES_KEPT
    ) -> Portion:
        with self._rows("prune_journal", key) as rows:
            summary = rows.summary(shard)
            own = rows.journal.of(shard)[:-keep]
            following = [entry for entry in own if entry.sequence > summary.journal_until]
            unproven = [
                batch.epoch
                for batch in (rows.batches.of(shard) if shard is not None else ())
                if batch.sequence >= summary.proven_until and batch.state is BatchState.COMMITTED
            ]
            entries = rules.old_entries(
                following[:PORTION_ROWS],
                before=before,
                unproven_epoch=unproven[0] if unproven else None,
            )
            if not entries:
                return Portion()
            too_early = _too_early(rows, shard, entries[-1].sequence) if shard else ""
            outcome, gone = rules.summarised(summary, entries, too_early=too_early)
            rows.summaries[shard] = replace(outcome, version=summary.version + 1)
            for sequence in gone:
                del rows.journal[shard, sequence]
            return Portion(len(gone), len(entries) == PORTION_ROWS)

    @override
    def prune_batches(
        self, key: GroupKey, shard: ShardId, *, before: datetime, keep: int = BATCHES_KEPT
    ) -> Portion:
        with self._rows("prune_batches", key) as rows:
            rows.shard(shard)
            summary = rows.summary(shard)
            old = rows.batches.of(shard)[:-keep]
            border = self._border(rows, shard)
            if border is not None:
                old = [batch for batch in old if batch.sequence < border.published]
            batches = rules.provable(
                (
                    batch
                    for batch in old
                    if batch.state is BatchState.COMMITTED
                    and batch.sequence >= summary.proven_until
                ),
                before=before,
            )
            if batches:
                tenures = rules.tenures_of(rows.journal.of(shard), summary)
                outcome = rules.proven(summary, batches, tenures)
                rows.summaries[shard] = replace(outcome, version=summary.version + 1)
                return Portion(0, more=True)
            if shard in rows.rewrites:
                return Portion()
            folding = rules.folding(
                summary,
                [batch for batch in old if batch.sequence >= summary.folded_until],
                before=before,
                undelivered={event.batch_id for event in rows.outbox.values()},
                forced=rules.forces_of(rows.journal.of(shard)),
            )
            if folding.summary != summary or folding.gone:
                rows.summaries[shard] = replace(folding.summary, version=summary.version + 1)
            rows.batches.update({(shard, row.sequence): row for row in folding.grown})
            for number in folding.gone:
                del rows.batches[shard, number]
            rows.versions[shard] += bool(folding.gone)
            return Portion(len(folding.gone))

    @override
    def prune_outbox(self, key: GroupKey, *, before: datetime, keep: int = EVENTS_KEPT) -> Portion:
        """Do nothing: a delivered event is gone here at once."""
        del before, keep
        with self._rows("prune_outbox", key):
            return Portion()

    @override
    def prune_gaps(self, key: GroupKey, *, before: datetime) -> Portion:
        with self._rows("prune_gaps", key) as rows:
            old = [gap for gap in rows.gaps.values() if rules.may_forget(gap, before=before)]
            old.sort(key=lambda gap: (gap.shard, gap.start, gap.end))
            for shard in dict.fromkeys(gap.shard for gap in old):
                summary = rows.summary(shard)
                own = [gap for gap in old if gap.shard == shard][: rules.skips_left(summary)]
                if own:
                    skipping = rules.skipping(summary, own)
                    rows.summaries[shard] = replace(skipping, version=summary.version + 1)
                    rows.gaps = {place: gap for place, gap in rows.gaps.items() if gap not in own}
                    return Portion(len(own), more=len(old) > len(own))
            return Portion()

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
            outcome = expiry.expire(
                summary,
                ripe,
                journal=rows.journal.of(shard),
                gaps=[gap for gap in rows.gaps.values() if gap.shard == shard],
            )
            rows.summaries[shard] = replace(outcome.summary, version=summary.version + 1)
            self._record_removal(rows, shard, ChangeKind.EXPIRY, ripe)
            for number in outcome.gone:
                del rows.batches[shard, number]
            rows.versions[shard] += 1
            return Portion(len(outcome.gone), more=True)


def _sequence(entry: JournalEntry) -> int:
    return entry.sequence


def _too_early(rows: GroupRows, shard: ShardId, last: int) -> str:
    """Return how a shard started before its parents were over, if its entries show that."""
    parents = {shard: rows.shard(shard).parents}
    journal = [entry for entry in rows.journal.of(shard) if entry.sequence <= last]
    # Beside its own entries, the proof reads its parents' and those on the group's setting alone.
    for other in (*parents[shard], None):
        journal += rows.journal.of(other)
    return dict(check_order(parents, journal, ordered=rows.group.ordered)).get(shard, "")


def _ripe(
    rows: GroupRows, shard: ShardId, before: datetime, through: int | None = None
) -> list[Batch]:
    ledger = rows.batches.of(shard)
    committed = [row.sequence for row in ledger if row.state is BatchState.COMMITTED]
    if not committed or shard in rows.rewrites:
        return []
    below = committed[-1] if through is None else min(committed[-1], through + 1)
    undelivered = {event.batch_id for event in rows.outbox.values()}
    old = ((row, row.batch_id in undelivered) for row in ledger if row.sequence < below)
    return expiry.expirable(old, before=before)
