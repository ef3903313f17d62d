"""Deleting history in SQL: each verb is one transaction of bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.journal_rows import EventKind, JournalEntry
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState
from dagster_leasehold.lease_store.roles.retention import Retention
from dagster_leasehold.lease_store.rules import deletable_history as rules
from dagster_leasehold.lease_store.rules.journal_proof import Force
from dagster_leasehold.lease_store.rules.order_proof import check_order
from dagster_leasehold.lease_store.shard_summary import (
    BATCHES_KEPT,
    ENTRIES_KEPT,
    EVENTS_KEPT,
    PORTION_ROWS,
    Portion,
    ShardSummary,
)
from dagster_leasehold.lease_store.sql_store import retention_statements as statements
from dagster_leasehold.lease_store.sql_store import shard_statements
from dagster_leasehold.lease_store.sql_store.group_statements import lock_rows
from dagster_leasehold.lease_store.sql_store.mapping import (
    ENTRY,
    GAP,
    batch_from,
    batch_values,
    key_values,
    summary_from,
    summary_values,
)
from dagster_leasehold.lease_store.sql_store.verbs import SqlVerbs
from dagster_leasehold.lease_store.tables import shard_summary
from dagster_leasehold.lease_store.transactions import Raced, Transaction

BATCH_ROWS = 200
"""The most ledger rows that one transaction proves or folds: their lists of files are long."""


class SqlRetention(SqlVerbs, Retention):
    """The verbs that delete history. Shards' rows are locked first, then their summaries."""

    @override
    def newest_times(self, key: GroupKey, number: int) -> list[datetime]:
        def work(tx: Transaction) -> list[datetime]:
            self._group(tx, key)
            return list(tx.connection.execute(statements.newest_times(key, number)).scalars())

        return self._read("newest_times", work)

    @override
    def prune_journal(
        self, key: GroupKey, shard: ShardId | None, *, before: datetime, keep: int = ENTRIES_KEPT
    ) -> Portion:
        def work(tx: Transaction) -> Portion:
            self._group(tx, key)
            below = tx.connection.execute(statements.first_kept_entry(key, shard, keep)).scalar()
            if below is None:
                return tx.abandon(Portion())
            summary = self._locked_summary(tx, key, shard)
            after = summary.journal_until
            statement = statements.select_entries(
                key, shard, after=after, below=below, limit=PORTION_ROWS
            )
            read = [ENTRY.read(row) for row in tx.rows(statement)]
            unproven = None
            if shard is not None:
                looked = statements.first_unproven_epoch(key, shard, summary.proven_until)
                unproven = tx.connection.execute(looked).scalar()
            entries = rules.old_entries(read, before=before, unproven_epoch=unproven)
            if not entries:
                return tx.abandon(Portion())
            too_early = self._too_early(tx, key, shard, entries) if shard is not None else ""
            outcome, gone = rules.summarised(summary, entries, too_early=too_early)
            self._write_summary(tx, key, summary, outcome)
            if gone:
                tx.connection.execute(statements.delete_entries(gone))
            return Portion(len(gone), len(entries) == PORTION_ROWS)

        return self._write("prune_journal", work)

    def _too_early(
        self, tx: Transaction, key: GroupKey, shard: ShardId, entries: Sequence[JournalEntry]
    ) -> str:
        """Return how a shard started before its parents were over, if these entries show that."""
        names = tx.connection.execute(statements.select_parents(key, shard)).scalar()
        if not names:
            return ""
        parents = [ShardId(parent) for parent in names]
        statement = statements.select_lineage(key, [shard, *parents])
        lineage = [ENTRY.read(row) for row in tx.rows(statement)]
        together = {entry.sequence: entry for entry in (*lineage, *entries)}
        last = entries[-1].sequence
        journal = [
            entry for entry in together.values() if entry.shard != shard or entry.sequence <= last
        ]
        ordered = self._group(tx, key).ordered
        return dict(check_order({shard: parents}, journal, ordered=ordered)).get(shard, "")

    @override
    def prune_batches(
        self, key: GroupKey, shard: ShardId, *, before: datetime, keep: int = BATCHES_KEPT
    ) -> Portion:
        def work(tx: Transaction) -> Portion:
            self._group(tx, key)
            below = tx.connection.execute(statements.first_kept_batch(key, shard, keep)).scalar()
            if below is None:
                return tx.abandon(Portion())
            self._lock_shard(tx, key, shard)
            summary = self._locked_summary(tx, key, shard)
            return self._prove(tx, key, summary, before=before, below=below) or self._fold(
                tx, key, summary, before=before, below=below
            )

        return self._write("prune_batches", work)

    def _prove(
        self, tx: Transaction, key: GroupKey, summary: ShardSummary, *, before: datetime, below: int
    ) -> Portion | None:
        """Prove the next old rows; None where there is none."""
        assert summary.shard is not None
        statement = statements.select_rows(
            key,
            summary.shard,
            since=summary.proven_until,
            below=below,
            state=BatchState.COMMITTED,
            limit=BATCH_ROWS,
        )
        batches = rules.provable(self._batches_in(tx, statement), before=before)
        if not batches:
            return None
        epochs = {batch.epoch for batch in batches}
        opened = tx.connection.execute(statements.select_openings(key, summary.shard, epochs))
        tenures = rules.tenures_of(map(ENTRY.read, opened.mappings()), summary)
        self._write_summary(tx, key, summary, rules.proven(summary, batches, tenures))
        return Portion(0, more=True)

    def _fold(
        self, tx: Transaction, key: GroupKey, summary: ShardSummary, *, before: datetime, below: int
    ) -> Portion:
        """Fold the next rows."""
        shard = summary.shard
        assert shard is not None
        claim = tx.connection.execute(statements.select_open_claim(key, shard)).first()
        statement = statements.select_rows(
            key, shard, since=summary.folded_until, below=below, state=None, limit=BATCH_ROWS
        )
        rows = [] if claim is not None else self._batches_in(tx, statement)
        if not rows:
            return tx.abandon(Portion())
        ids = [row.batch_id for row in rows]
        undelivered = set(tx.connection.execute(statements.select_undelivered(key, ids)).scalars())
        forced: list[Force] = []
        if any(row.state is BatchState.WITHDRAWN for row in rows):
            looked = tx.rows(statements.select_forced(key, shard))
            forced = rules.forces_of(map(ENTRY.read, looked))
        outcome = rules.folding(
            summary, rows, before=before, undelivered=undelivered, forced=forced
        )
        if outcome.summary == summary and not outcome.gone:
            return tx.abandon(Portion())
        self._write_summary(tx, key, summary, outcome.summary)
        if outcome.grown:
            values = [{"seen_sequence": row.sequence, **batch_values(row)} for row in outcome.grown]
            names = batch_values(outcome.grown[0])
            growing = statements.grow_batches(key, shard, names)
            if tx.connection.execute(growing, values).rowcount != len(values):
                raise Raced
        if outcome.gone:
            tx.connection.execute(statements.delete_batches(key, shard, outcome.gone))
            tx.connection.execute(shard_statements.raise_version(key, shard))
        return Portion(len(outcome.gone), len(rows) == BATCH_ROWS)

    @override
    def prune_outbox(self, key: GroupKey, *, before: datetime, keep: int = EVENTS_KEPT) -> Portion:
        def work(tx: Transaction) -> Portion:
            self._group(tx, key)
            for kind in EventKind:
                first = statements.first_kept_event(key, kind, keep)
                below = tx.connection.execute(first).scalar()
                if below is None:
                    continue
                chosen = statements.select_delivered(key, kind, below=below, limit=PORTION_ROWS)
                old = [number for number, at in tx.connection.execute(chosen).all() if at < before]
                if old:
                    gone = tx.connection.execute(statements.delete_events(old)).rowcount
                    return Portion(gone, more=True)
            return tx.abandon(Portion())

        return self._write("prune_outbox", work)

    @override
    def prune_gaps(self, key: GroupKey, *, before: datetime) -> Portion:
        def work(tx: Transaction) -> Portion:
            self._group(tx, key)
            statement = statements.select_old_gaps(key, before=before, limit=PORTION_ROWS)
            old = [GAP.read(row) for row in tx.rows(statement)]
            for shard in dict.fromkeys(gap.shard for gap in old):
                self._lock_shard(tx, key, shard)
                summary = self._locked_summary(tx, key, shard)
                own = [gap for gap in old if gap.shard == shard][: rules.skips_left(summary)]
                if not own:
                    continue
                self._write_summary(tx, key, summary, rules.skipping(summary, own))
                ranges = [(gap.start, gap.end) for gap in own]
                tx.connection.execute(statements.delete_gaps(key, shard, ranges))
                return Portion(len(own), more=len(old) > len(own))
            return tx.abandon(Portion())

        return self._write("prune_gaps", work)

    # -- pieces -------------------------------------------------------------------------------

    def _batches_in(self, tx: Transaction, statement: Any) -> list[Batch]:
        return [batch_from(row) for row in tx.rows(statement)]

    def _locked_summary(
        self, tx: Transaction, key: GroupKey, shard: ShardId | None
    ) -> ShardSummary:
        row = tx.rows(lock_rows(shard_summary, key, shard_id=shard or "")).first()
        return ShardSummary(shard) if row is None else summary_from(row)

    def _write_summary(
        self, tx: Transaction, key: GroupKey, before: ShardSummary, after: ShardSummary
    ) -> None:
        values = summary_values(after) | {"version": before.version + 1}
        own = {"shard_id": before.shard or ""}
        if before.version:
            self._change_row(tx, shard_summary, key, values, version=before.version, **own)
        else:
            self._add_row(tx, shard_summary, key_values(key) | own | values)
