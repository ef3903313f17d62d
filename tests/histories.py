"""The rules of `leasehold verify` over rows in memory, for tests and simulations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.history_proof import check_order, doubled_files
from dagster_leasehold.lease_store.rules.verification import ShardHistory, Violation, prove_shard
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.shard_summary import ShardSummary


def check_history(
    shards: Iterable[ShardLease],
    journal: Sequence[JournalEntry],
    batches: Sequence[Batch],
    gaps: Sequence[Gap],
    *,
    ordered: bool,
) -> list[Violation]:
    """Return the promises that a history breaks, by shard; `ordered` is the group's setting now."""
    histories = _by_shard(shards, journal, batches, gaps)
    violations: list[Violation] = []
    for shard in sorted(histories, key=rank_key):
        violations += prove_shard(histories[shard]).violations
    parents = {
        shard: history.lease.parents for shard, history in histories.items() if history.lease
    }
    violations += [
        Violation("order", shard, detail)
        for shard, detail in check_order(parents, journal, ordered=ordered)
    ]
    return [*violations, *doubled_files(batches)]


def _by_shard(
    shards: Iterable[ShardLease],
    journal: Iterable[JournalEntry],
    batches: Iterable[Batch],
    gaps: Iterable[Gap],
) -> dict[ShardId, ShardHistory]:
    leases = {lease.shard: lease for lease in shards}
    entries: dict[ShardId, list[JournalEntry]] = {}
    ranges: dict[ShardId, list[Batch]] = {}
    removed: dict[ShardId, list[Gap]] = {}
    for entry in sorted(journal, key=lambda entry: entry.sequence):
        if entry.shard is not None:
            entries.setdefault(entry.shard, []).append(entry)
    for batch in sorted(batches, key=lambda batch: batch.sequence):
        ranges.setdefault(batch.shard, []).append(batch)
    for gap in gaps:
        removed.setdefault(gap.shard, []).append(gap)
    return {
        shard: ShardHistory(
            ShardSummary(shard),
            leases.get(shard),
            entries.get(shard, ()),
            ranges.get(shard, ()),
            removed.get(shard, ()),
        )
        for shard in {*leases, *entries, *ranges, *removed}
    }
