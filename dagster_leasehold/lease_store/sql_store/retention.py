"""Deleting history and expired output in SQL: each verb is one transaction of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from operator import itemgetter

from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.journal_rows import EventKind, JournalEntry
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState
from dagster_leasehold.lease_store.publication_rows import ChangeKind
from dagster_leasehold.lease_store.roles.retention import Retention
from dagster_leasehold.lease_store.rules import deletable_history as rules
from dagster_leasehold.lease_store.rules import expiry
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
from dagster_leasehold.lease_store.sql_store import mapping, shard_statements
from dagster_leasehold.lease_store.sql_store import retention_statements as statements
from dagster_leasehold.lease_store.sql_store.group_statements import lock_rows, rows_of
from dagster_leasehold.lease_store.sql_store.history_statements import page_sizes
from dagster_leasehold.lease_store.sql_store.table_changes import SqlTableChanges
from dagster_leasehold.lease_store.sql_store.table_rows import portions
from dagster_leasehold.lease_store.tables import gap, shard_summary
from dagster_leasehold.lease_store.transactions import Raced, Transaction

BATCH_ROWS = 200
"""The most ledger rows that one transaction proves or folds: their lists of files are long."""
NUMBERS_PER_STATEMENT = 1_000


class SqlRetention(SqlTableChanges, Retention):
    """The verbs of `Retention`. Shards' rows are locked first, then their summaries."""

    @override
    def newest_times(self, key: GroupKey, number: int) -> list[datetime]:
        statement = statements.newest_times(key, number)
        return self._all("newest_times", key, statement, itemgetter("recorded_at"))

    @override
    def prune_journal(
        self, key: GroupKey, shard: ShardId | None, *, before: datetime, keep: int = ENTRIES_KEPT
    ) -> Portion:
        def work(tx: Transaction) -> Portion:
            self._group(tx, key)
            below = tx.value(statements.first_kept_entry(key, shard, keep))
            if below is None:
                return tx.abandon(Portion())
            summary = self._locked_summary(tx, key, shard)
            after = summary.journal_until
            statement = statements.select_entries(
                key, shard, after=after, below=below, limit=PORTION_ROWS
            )
            read = tx.all(statement, mapping.ENTRY.read)
            unproven = None
            if shard is not None:
                looked = statements.first_unproven_epoch(key, shard, summary.proven_until)
                unproven = tx.value(looked)
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
        names = tx.value(statements.select_parents(key, shard))
        if not names:
            return ""
        parents = [ShardId(parent) for parent in names]
        statement = statements.select_lineage(key, [shard, *parents])
        lineage = tx.all(statement, mapping.ENTRY.read)
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
            below = tx.value(statements.first_kept_batch(key, shard, keep))
            if below is None:
                return tx.abandon(Portion())
            self._lock_shard(tx, key, shard)
            border = self._border(tx, key, shard)
            below = below if border is None else min(below, border.published)
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
        batches = rules.provable(tx.all(statement, mapping.batch_from), before=before)
        if not batches:
            return None
        epochs = {batch.epoch for batch in batches}
        opened = statements.select_openings(key, summary.shard, epochs)
        tenures = rules.tenures_of(tx.all(opened, mapping.ENTRY.read), summary)
        self._write_summary(tx, key, summary, rules.proven(summary, batches, tenures))
        return Portion(0, more=True)

    def _fold(
        self, tx: Transaction, key: GroupKey, summary: ShardSummary, *, before: datetime, below: int
    ) -> Portion:
        """Fold the next rows."""
        shard = summary.shard
        assert shard is not None
        rows, undelivered = self._rewritable(
            tx, key, shard, since=summary.folded_until, below=below, limit=BATCH_ROWS
        )
        if not rows:
            return tx.abandon(Portion())
        forced: list[Force] = []
        if any(row.state is BatchState.WITHDRAWN for row in rows):
            entries = tx.all(statements.select_forced(key, shard), mapping.ENTRY.read)
            forced = rules.forces_of(entries)
        outcome = rules.folding(
            summary, rows, before=before, undelivered=undelivered, forced=forced
        )
        if outcome.summary == summary and not outcome.gone:
            return tx.abandon(Portion())
        self._write_summary(tx, key, summary, outcome.summary)
        if outcome.grown:
            names = mapping.batch_values(outcome.grown[0])
            grown = [
                {"seen_sequence": row.sequence, **mapping.batch_values(row)}
                for row in outcome.grown
            ]
            growing = statements.grow_batches(key, shard, names)
            if tx.connection.execute(growing, grown).rowcount != len(grown):
                raise Raced
        if outcome.gone:
            self._delete_batches(tx, key, shard, rows, outcome.gone)
        return Portion(len(outcome.gone), len(rows) == BATCH_ROWS)

    @override
    def prune_outbox(self, key: GroupKey, *, before: datetime, keep: int = EVENTS_KEPT) -> Portion:
        def work(tx: Transaction) -> Portion:
            self._group(tx, key)
            for kind in EventKind:
                first = statements.first_kept_event(key, kind, keep)
                below = tx.value(first)
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
            old = tx.all(statement, mapping.GAP.read)
            for shard in dict.fromkeys(each.shard for each in old):
                self._lock_shard(tx, key, shard)
                summary = self._locked_summary(tx, key, shard)
                own = [each for each in old if each.shard == shard][: rules.skips_left(summary)]
                if not own:
                    continue
                self._write_summary(tx, key, summary, rules.skipping(summary, own))
                ranges = [(each.start, each.end) for each in own]
                tx.connection.execute(statements.delete_gaps(key, shard, ranges))
                return Portion(len(own), more=len(old) > len(own))
            return tx.abandon(Portion())

        return self._write("prune_gaps", work)

    @override
    def expirable(self, key: GroupKey, shard: ShardId, *, before: datetime) -> list[Batch]:
        def work(tx: Transaction) -> list[Batch]:
            self._group(tx, key)
            return self._ripe(tx, key, shard, before)

        rows = self._read("expirable", work)
        return [row for row in rows if row.state is BatchState.COMMITTED]

    @override
    def expire_batches(
        self, key: GroupKey, shard: ShardId, *, before: datetime, through: int
    ) -> Portion:
        def work(tx: Transaction) -> Portion:
            self._group(tx, key)
            self._lock_shard(tx, key, shard)
            ripe = self._ripe(tx, key, shard, before, through)
            if not ripe:
                return tx.abandon(Portion())
            summary = self._locked_summary(tx, key, shard)
            epochs = {row.epoch for row in ripe if row.sequence >= summary.proven_until}
            journal: list[JournalEntry] = []
            for part in portions(epochs, NUMBERS_PER_STATEMENT):
                opened = statements.select_openings(key, shard, part)
                journal += tx.all(opened, mapping.ENTRY.read)
            journal += tx.all(statements.select_forced(key, shard), mapping.ENTRY.read)
            gaps = tx.all(rows_of(gap, key, shard_id=shard), mapping.GAP.read)
            outcome = expiry.expire(summary, ripe, journal=journal, gaps=gaps)
            self._write_summary(tx, key, summary, outcome.summary)

            def gone(until: int) -> list[Batch]:
                return [row for row in ripe if row.sequence < until]

            self._record_removal(tx, key, shard, ChangeKind.EXPIRY, gone)
            self._delete_batches(tx, key, shard, ripe, outcome.gone)
            return Portion(len(outcome.gone), more=True)

        return self._write("expire_batches", work)

    def _ripe(
        self,
        tx: Transaction,
        key: GroupKey,
        shard: ShardId,
        before: datetime,
        through: int | None = None,
    ) -> list[Batch]:
        """Read the rows that may go, and no page more."""
        below = tx.value(statements.newest_committed(key, shard))
        if below is None:
            return []
        below = below if through is None else min(below, through + 1)
        return expiry.expirable(self._each_rewritable(tx, key, shard, below), before=before)

    def _each_rewritable(
        self, tx: Transaction, key: GroupKey, shard: ShardId, below: int
    ) -> Iterator[tuple[Batch, bool]]:
        """Read the oldest rows below a number in pages, and if an event of each is to deliver."""
        since = 0
        for limit in page_sizes(expiry.PORTION_ROWS):
            rows, undelivered = self._rewritable(
                tx, key, shard, since=since, below=below, limit=limit
            )
            yield from ((row, row.batch_id in undelivered) for row in rows)
            if len(rows) < limit:
                return
            since = rows[-1].sequence + 1

    def _rewritable(
        self, tx: Transaction, key: GroupKey, shard: ShardId, *, since: int, below: int, limit: int
    ) -> tuple[list[Batch], set[str]]:
        """Return the oldest rows between two numbers, and which of them have events to deliver.

        None while a run holds the claim to rewrite the shard's output.
        """
        if tx.rows(statements.select_open_claim(key, shard)).first() is not None:
            return [], set()
        statement = statements.select_rows(
            key, shard, since=since, below=below, state=None, limit=limit
        )
        rows = tx.all(statement, mapping.batch_from)
        undelivered = statements.select_undelivered(key, [row.batch_id for row in rows])
        ids: list[str] = tx.all(undelivered, itemgetter("batch_id")) if rows else []
        return rows, set(ids)

    def _delete_batches(
        self,
        tx: Transaction,
        key: GroupKey,
        shard: ShardId,
        rows: Sequence[Batch],
        numbers: Sequence[int],
    ) -> None:
        counted = {row.sequence for row in rows if row.state is not BatchState.ABANDONED}
        removed = len(counted.intersection(numbers))
        for part in portions(numbers, NUMBERS_PER_STATEMENT):
            tx.connection.execute(statements.delete_batches(key, shard, part))
        tx.connection.execute(shard_statements.raise_version(key, shard, removed=removed))

    def _locked_summary(
        self, tx: Transaction, key: GroupKey, shard: ShardId | None
    ) -> ShardSummary:
        row = tx.rows(lock_rows(shard_summary, key, shard_id=shard or "")).first()
        return ShardSummary(shard) if row is None else mapping.summary_from(row)

    def _write_summary(
        self, tx: Transaction, key: GroupKey, before: ShardSummary, after: ShardSummary
    ) -> None:
        values = mapping.summary_values(after) | {"version": before.version + 1}
        own = {"shard_id": before.shard or ""}
        if before.version:
            self._change_row(tx, shard_summary, key, values, version=before.version, **own)
        else:
            self._add_row(tx, shard_summary, mapping.key_values(key) | own | values)
