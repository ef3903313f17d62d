"""Writing the ledger in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from dagster_leasehold.lease_store import tables
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchCommit, Intent
from dagster_leasehold.lease_store.outcomes import Changed, Stale
from dagster_leasehold.lease_store.roles.tenures import Tenures
from dagster_leasehold.lease_store.rules import ledger as rules
from dagster_leasehold.lease_store.rules.lineage import PARENTS_OVER, freed_to_start
from dagster_leasehold.lease_store.rules.transitions import FINISHED, finished, holds
from dagster_leasehold.lease_store.shard_rows import ShardLease, Tenure
from dagster_leasehold.lease_store.sql_store import history_statements as history
from dagster_leasehold.lease_store.sql_store import ledger_statements, mapping, shard_statements
from dagster_leasehold.lease_store.sql_store.group_statements import insert_into
from dagster_leasehold.lease_store.sql_store.rows_in_sql import ROWS_PER_STATEMENT
from dagster_leasehold.lease_store.sql_store.table_rows import portions
from dagster_leasehold.lease_store.sql_store.verbs import SqlVerbs
from dagster_leasehold.lease_store.transactions import Raced, Transaction


class SqlBatches(SqlVerbs, Tenures):
    """The verbs that write batches."""

    @override
    def record_intents(self, intents: Sequence[Intent]) -> dict[ShardId, Changed | Stale]:
        """Record intents; recording the same ones again is harmless."""
        if not intents:
            return {}
        key = rules.group_of([intent.tenure for intent in intents])
        wanted = {intent.tenure.shard: intent for intent in intents}

        def work(tx: Transaction) -> dict[ShardId, Changed | Stale]:
            self._group(tx, key)
            rows = self._lock_shards(tx, key, wanted)
            newest = self._newest(tx, key, list(wanted))
            outcomes: dict[ShardId, Changed | Stale] = {}
            new: list[Batch] = []
            adopted: list[Batch] = []
            for shard, intent in wanted.items():
                row = rows.get(shard)
                if row is None or not holds(row, intent.tenure):
                    outcomes[shard] = Stale()
                    continue
                next_sequence, open_intent = rules.next_in_line(newest.get(shard))
                rules.check_next_in_line(
                    intent,
                    intended=open_intent,
                    next_sequence=next_sequence,
                    check_point=row.check_point,
                )
                (adopted if open_intent else new).append(rules.intended_batch(intent))
                outcomes[shard] = Changed((shard,))
            self._insert_batches(tx, key, new)
            self._write_intended(tx, key, adopted)
            return outcomes

        return self._write("record_intents", work)

    def _insert_batches(self, tx: Transaction, key: GroupKey, batches: Sequence[Batch]) -> None:
        if batches:
            rows = [mapping.batch_row(key, batch) for batch in batches]
            tx.connection.execute(insert_into(tables.batch), rows)

    def _write_intended(self, tx: Transaction, key: GroupKey, batches: Sequence[Batch]) -> None:
        if batches:
            rows: list[dict[str, Any]] = [
                {
                    "seen_shard": batch.shard,
                    "seen_sequence": batch.sequence,
                    **mapping.batch_values(batch),
                }
                for batch in batches
            ]
            names = mapping.batch_values(batches[0])
            result = tx.connection.execute(ledger_statements.update_intended(key, names), rows)
            if result.rowcount != len(rows):
                raise Raced

    @override
    def commit(self, commits: Sequence[BatchCommit]) -> dict[ShardId, Changed | Stale]:
        if not commits:
            return {}
        key = rules.group_of([commit.tenure for commit in commits])
        wanted = {commit.tenure.shard: commit for commit in commits}
        finishing = any(commit.finished for commit in commits)
        last_accepted: set[ShardId] = set()

        def work(tx: Transaction) -> dict[ShardId, Changed | Stale]:
            if finishing:
                self._bump(tx, key)
            else:
                self._group(tx, key)
            outcomes: dict[ShardId, Changed | Stale] = dict.fromkeys(wanted, Stale())
            rows = self._lock_shards(tx, key, wanted)
            batches = self._numbered(tx, key, commits)
            accepted: list[BatchCommit] = []
            for shard, commit in wanted.items():
                batch = batches.get(shard)
                row = rows.get(shard)
                if rules.already_committed(batch, commit):
                    outcomes[shard] = Changed()
                elif row is not None and holds(row, commit.tenure):
                    rules.check_intended(batch, commit)
                    if rules.may_advance(row.check_point, commit.start):
                        accepted.append(commit)
            if not accepted:
                return tx.abandon(outcomes)
            last_accepted.clear()
            last_accepted.update(commit.tenure.shard for commit in accepted)
            return outcomes | self._commit(tx, key, accepted, rows)

        def mark(tx: Transaction) -> bool:
            # A batch that an earlier transaction committed says nothing about this one.
            self._lock_shards(tx, key, wanted)
            batches = self._numbered(tx, key, commits)
            return all(
                rules.already_committed(batches.get(shard), wanted[shard])
                for shard in last_accepted
            )

        return self._write("commit", work, mark=mark)

    def _commit(
        self,
        tx: Transaction,
        key: GroupKey,
        commits: Sequence[BatchCommit],
        rows: dict[ShardId, ShardLease],
    ) -> dict[ShardId, Changed | Stale]:
        at = self._clock()
        batches = [replace(rules.committed_batch(commit), committed_at=at) for commit in commits]
        self._write_intended(tx, key, batches)
        moved: list[dict[str, Any]] = []
        for commit in commits:
            row = rows[commit.tenure.shard]
            watermark = rules.raised(row.watermark, commit.watermark)
            row = rows[row.shard] = replace(
                row,
                check_point=commit.end,
                watermark=watermark,
                tries=1,
                suspicion=commit.suspicion,
            )
            moved.append(mapping.moved_values(row, commit))
        result = tx.connection.execute(shard_statements.move_checkpoints(key), moved)
        if result.rowcount != len(moved):
            raise Raced
        outcomes: dict[ShardId, Changed | Stale] = {
            commit.tenure.shard: Changed() for commit in commits
        }
        events = [
            mapping.event_row(key, event, at)
            for batch, commit in zip(batches, commits, strict=True)
            for event in rules.events_of(batch, commit)
        ]
        tx.connection.execute(insert_into(tables.outbox), events)
        for commit in commits:
            if commit.finished:
                row = rows[commit.tenure.shard]
                outcomes[row.shard] = self._finish(tx, row, commit.tenure, commit.end)
        return outcomes

    def _numbered(
        self, tx: Transaction, key: GroupKey, commits: Sequence[BatchCommit]
    ) -> dict[ShardId, Batch]:
        numbers = {commit.tenure.shard: commit.sequence for commit in commits}
        batches: dict[ShardId, Batch] = {}
        for part in portions(numbers, ROWS_PER_STATEMENT):
            wanted = [(shard, numbers[shard]) for shard in part]
            rows = tx.rows(history.select_numbered(key, wanted))
            batches |= {batch.shard: batch for batch in map(mapping.batch_from, rows)}
        return batches

    @override
    def finish_empty(self, tenure: Tenure, cursor: str) -> Changed | Stale:
        key = tenure.key

        def work(tx: Transaction) -> Changed | Stale:
            row = self._lock_shards(tx, key, [tenure.shard]).get(tenure.shard)
            if (
                row is None
                or not holds(row, tenure)
                or not rules.may_advance(row.check_point, cursor)
            ):
                return tx.abandon(Stale())
            rules.check_place(key, tenure.shard, cursor)
            self._abandon_intent(tx, key, tenure.shard)
            return self._finish(tx, row, tenure, cursor)

        return self._change("finish_empty", key, work)

    def _finish(self, tx: Transaction, row: ShardLease, tenure: Tenure, cursor: str) -> Changed:
        """Finish a shard (edge 8) and free its children (edge 2); the group's row is locked."""
        observer = str(tenure.holder)
        self._carry_out(tx, tenure.key, [finished(row, cursor, FINISHED)], observer)
        freed = freed_to_start(
            self._all_shards(tx, tenure.key),
            ordered=self._group(tx, tenure.key).ordered,
            reason=f"{PARENTS_OVER}, {tenure.shard} last",
        )
        return self._carry_out(tx, tenure.key, freed, observer)
