"""Writing the ledger in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchCommit, Intent, ShardTotals
from dagster_leasehold.lease_store.memory_store.memory_transactions import MemoryRows
from dagster_leasehold.lease_store.memory_store.rows import GroupRows
from dagster_leasehold.lease_store.outcomes import Changed, Stale
from dagster_leasehold.lease_store.roles.tenures import Tenures
from dagster_leasehold.lease_store.rules import ledger as rules
from dagster_leasehold.lease_store.rules.lineage import PARENTS_OVER, freed_to_start
from dagster_leasehold.lease_store.rules.transitions import FINISHED, finished
from dagster_leasehold.lease_store.shard_rows import Tenure


class MemoryBatches(MemoryRows, Tenures):
    """The verbs that write batches."""

    @override
    def record_intents(self, intents: Sequence[Intent]) -> dict[ShardId, Changed | Stale]:
        if not intents:
            return {}
        key = rules.group_of([intent.tenure for intent in intents])
        with self._rows("record_intents", key) as rows:
            outcomes: dict[ShardId, Changed | Stale] = {}
            recorded: dict[tuple[ShardId, int], Batch] = {}
            for intent in intents:
                shard = intent.tenure.shard
                row = rows.current(intent.tenure)
                if row is None:
                    outcomes[shard] = Stale()
                    continue
                rules.check_next_in_line(
                    intent,
                    intended=rows.batches.get((shard, intent.sequence)),
                    next_sequence=rows.next_sequence(shard),
                    check_point=row.check_point,
                )
                recorded[shard, intent.sequence] = rules.intended_batch(intent)
                outcomes[shard] = Changed((shard,))
            rows.batches.update(recorded)
            return outcomes

    @override
    def commit(self, commits: Sequence[BatchCommit]) -> dict[ShardId, Changed | Stale]:
        if not commits:
            return {}
        key = rules.group_of([commit.tenure for commit in commits])
        with self._rows("commit", key) as rows:
            # A contradiction of the ledger is found before anything is written.
            for commit in commits:
                batch = rows.batches.get((commit.tenure.shard, commit.sequence))
                if rows.current(commit.tenure) and not rules.already_committed(batch, commit):
                    rules.check_intended(batch, commit)
            before = self._all.sequence
            outcomes = {commit.tenure.shard: self._commit(rows, commit) for commit in commits}
            if self._all.sequence != before and any(commit.finished for commit in commits):
                rows.bump()
            return outcomes

    def _commit(self, rows: GroupRows, commit: BatchCommit) -> Changed | Stale:
        shard = commit.tenure.shard
        if rules.already_committed(rows.batches.get((shard, commit.sequence)), commit):
            return Changed()
        row = rows.current(commit.tenure)
        if row is None or not rules.may_advance(row.check_point, commit.start):
            return Stale()
        batch = replace(rules.committed_batch(commit), committed_at=self._clock())
        rows.batches[shard, commit.sequence] = batch
        for event in rules.events_of(batch, commit):
            sequence = self._next_sequence()
            rows.outbox[sequence] = replace(event, sequence=sequence)
        rows.totals[shard] = rows.totals.get(shard, ShardTotals(shard)).after(commit.statistics)
        watermark = rules.raised(row.watermark, commit.watermark)
        rows.shards[shard] = replace(
            row, check_point=commit.end, watermark=watermark, tries=1, suspicion=commit.suspicion
        )
        return self._finish(rows, commit.tenure, commit.end) if commit.finished else Changed()

    @override
    def finish_empty(self, tenure: Tenure, cursor: str) -> Changed | Stale:
        with self._rows("finish_empty", tenure.key) as rows:
            row = rows.current(tenure)
            if row is None or not rules.may_advance(row.check_point, cursor):
                return Stale()
            rules.check_place(tenure.key, tenure.shard, cursor)
            rows.abandon_intents(tenure.shard)
            rows.bump()
            return self._finish(rows, tenure, cursor)

    def _finish(self, rows: GroupRows, tenure: Tenure, cursor: str) -> Changed:
        observer = str(tenure.holder)
        self._write(rows, [finished(rows.shards[tenure.shard], cursor, FINISHED)], observer)
        freed = freed_to_start(
            (rows.shards[shard] for shard in sorted(rows.shards)),
            ordered=rows.group.ordered,
            reason=f"{PARENTS_OVER}, {tenure.shard} last",
        )
        return Changed(self._write(rows, freed, observer))
