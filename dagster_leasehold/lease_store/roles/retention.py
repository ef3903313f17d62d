"""The role for bounding history and output: old rows are deleted, and a summary of them stays.

Old journal entries, delivered events, accepted gaps and ledger rows without files are deleted in
small transactions. Each adds to the shard's summary the state from which `verify` continues, and
all violations in its rows, so deletion changes no verdict.

Rare entries stay for good: changes of a group's settings, forced checkpoints, accepted reopenings,
and the first listing, the end and the reopening of a shard.

Committed output is deleted only if a setting limits its age.

Ages are relative to the newest rows of the group, and the newest rows of each shard stay. So a
clock that jumps a year ahead can shorten a history, but cannot remove it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import Any

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.journal_rows import EventKind, Gap, JournalEntry, OutboxEvent
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchState,
    LedgerCounters,
    RewriteClaim,
)
from dagster_leasehold.lease_store.publication_rows import ChangeKind, TableChange
from dagster_leasehold.lease_store.roles.operations import (
    Operations,
    Rows,
    border_in,
    locked_shard,
    page_sizes,
    record_removal,
)
from dagster_leasehold.lease_store.rules import deletable_history as rules
from dagster_leasehold.lease_store.rules.history_proof import Force, check_order
from dagster_leasehold.lease_store.rules.withdrawal import NUMBERS_END
from dagster_leasehold.lease_store.shard_summary import (
    BATCHES_KEPT,
    CHANGES_KEPT,
    ENTRIES_KEPT,
    EVENTS_KEPT,
    PORTION_ROWS,
    Portion,
    ShardSummary,
)
from dagster_leasehold.lease_store.stored_rows import Above, Below, Plus, given

REFERENCE_ENTRIES = 64
BATCH_ROWS = 200
"""The most ledger rows that one transaction proves or folds; they can have many files."""


class Retention(Operations):
    """The operations that delete history: one bounded transaction each.

    They lock a shard's row before its summary. Two processes can delete at once, because each
    transaction reads the remaining rows.
    """

    def reference_time(self, key: GroupKey) -> datetime | None:
        """Return the reference time for ages: the earliest date of a group's newest entries.

        A single host with a fast clock does not change it.
        """

        def work(rows: Rows) -> list[datetime]:
            return rows.values(JournalEntry, "at", newest_first=True, limit=REFERENCE_ENTRIES)

        return min(self._listing("reference_time", key, work), default=None)

    def prune_journal(
        self, key: GroupKey, shard: ShardId | None, *, before: datetime, keep: int = ENTRIES_KEPT
    ) -> Portion:
        """Delete the oldest journal entries of a shard, or entries without a shard.

        An entry stays while the proof of a batch still requires it.
        """

        def work(rows: Rows) -> Portion:
            rows.group()
            below = _first_kept(rows, JournalEntry, keep, shard=shard)
            if below is None:
                return rows.abandon(Portion())
            summary = _locked_summary(rows, shard)
            numbers = range(summary.journal_until + 1, below)
            entries = rules.old_entries(
                rows.select(JournalEntry, limit=PORTION_ROWS, shard=shard, sequence=numbers),
                before=before,
                unproven_epoch=_unproven_epoch(rows, summary),
            )
            if not entries:
                return rows.abandon(Portion())
            too_early = _too_early(rows, shard, entries) if shard is not None else ""
            outcome, numbers_to_delete = rules.summarised(summary, entries, too_early=too_early)
            _write_summary(rows, summary, outcome)
            rows.delete(JournalEntry, shard=shard, sequence=set(numbers_to_delete))
            return Portion(len(numbers_to_delete), len(entries) == PORTION_ROWS)

        return self._writing("prune_journal", key, work)

    def prune_batches(
        self, key: GroupKey, shard: ShardId, *, before: datetime, keep: int = BATCHES_KEPT
    ) -> Portion:
        """Prove old committed rows of a shard, then fold and delete rows that are not needed.

        A committed row without files is folded into the adjacent row before it, if its events are
        delivered. Abandoned and withdrawn rows are deleted. Unpublished rows stay, and so do all
        rows while a run rewrites the shard's output.
        """

        def work(rows: Rows) -> Portion:
            rows.group()
            below = _first_kept(rows, Batch, keep, shard=shard)
            if below is None:
                return rows.abandon(Portion())
            locked_shard(rows, shard)
            border = border_in(rows, shard)
            below = below if border is None else min(below, border.published)
            summary = _locked_summary(rows, shard)
            proven = _prove(rows, shard, summary, before=before, below=below)
            return proven or _fold(rows, shard, summary, before=before, below=below)

        return self._writing("prune_batches", key, work)

    def expirable(self, key: GroupKey, shard: ShardId, *, before: datetime) -> list[Batch]:
        """Return the committed rows that `expire_batches` would delete next, oldest first."""

        def work(rows: Rows) -> list[Batch]:
            rows.group()
            return _ripe(rows, shard, before)

        ripe = self._reading("expirable", key, work)
        return [row for row in ripe if row.state is BatchState.COMMITTED]

    def expire_batches(
        self, key: GroupKey, shard: ShardId, *, before: datetime, through: int
    ) -> Portion:
        """Delete the oldest ledger rows of a shard, whose output has expired.

        These are rows up to number `through` that were committed before `before`. Deletion starts
        at the shard's first row, and stops before a merged file would be divided or an undelivered
        event lost. The newest committed row stays, and so do all rows while a run rewrites the
        shard's output. Vacuum removes the files of deleted rows. The caller first renews the
        modification times of these files, because readers can still use them.
        """

        def work(rows: Rows) -> Portion:
            locked_shard(rows, shard)
            ripe = _ripe(rows, shard, before, through)
            if not ripe:
                return rows.abandon(Portion())
            summary = _locked_summary(rows, shard)
            epochs = {row.epoch for row in ripe if row.sequence >= summary.proven_until}
            opened = _openings(rows, shard, epochs)
            forced = rows.select(JournalEntry, shard=shard, kind="force")
            gaps = rows.select(Gap, shard=shard)
            outcome = rules.expire(summary, ripe, journal=[*opened, *forced], gaps=gaps)
            _write_summary(rows, summary, outcome.summary)

            def removed(until: int) -> list[Batch]:
                return [row for row in ripe if row.sequence < until]

            record_removal(rows, shard, ChangeKind.EXPIRY, removed)
            _delete_batches(rows, shard, ripe, outcome.numbers)
            return Portion(len(outcome.numbers), more=True)

        return self._writing("expire_batches", key, work)

    def prune_outbox(self, key: GroupKey, *, before: datetime, keep: int = EVENTS_KEPT) -> Portion:
        """Delete the oldest delivered events."""

        def work(rows: Rows) -> Portion:
            rows.group()
            for kind in EventKind:
                portion = _prune_done(rows, OutboxEvent, before, keep, kind=kind, delivered=True)
                if portion.rows:
                    return replace(portion, more=True)
            return rows.abandon(Portion())

        return self._writing("prune_outbox", key, work)

    def prune_changes(
        self, key: GroupKey, *, before: datetime, keep: int = CHANGES_KEPT
    ) -> Portion:
        """Delete the oldest published changes of the group's table."""

        def work(rows: Rows) -> Portion:
            rows.group()
            return _prune_done(rows, TableChange, before, keep, published=True)

        return self._writing("prune_changes", key, work)

    def prune_gaps(self, key: GroupKey, *, before: datetime) -> Portion:
        """Delete old accepted and skipped gaps of one shard; its summary keeps them."""
        done = given(acknowledged=True, skipped=True, at=Below(before))

        def work(rows: Rows) -> Portion:
            rows.group()
            old = list(rows.select(Gap, limit=PORTION_ROWS, **done))
            for shard in dict.fromkeys(each.shard for each in old):
                locked_shard(rows, shard)
                summary = _locked_summary(rows, shard)
                own = [each for each in old if each.shard == shard][: rules.skips_left(summary)]
                if own:
                    _write_summary(rows, summary, rules.skipping(summary, own))
                    for each in own:
                        rows.delete(Gap, shard=shard, start=each.start, end=each.end)
                    return Portion(len(own), more=len(old) > len(own))
            return rows.abandon(Portion())

        return self._writing("prune_gaps", key, work)


# -- the journal ----------------------------------------------------------------------------------


def _unproven_epoch(rows: Rows, summary: ShardSummary) -> int | None:
    if summary.shard is None:
        return None
    numbers = range(summary.proven_until, NUMBERS_END)
    own = given(shard=summary.shard, sequence=numbers, state=BatchState.COMMITTED)
    return next(iter(rows.values(Batch, "epoch", limit=1, **own)), None)


def _too_early(rows: Rows, shard: ShardId, entries: Sequence[JournalEntry]) -> str:
    """Return how a shard started too early, if it did in these entries."""
    parents = rows.shards([shard])[shard].parents
    if not parents:
        return ""
    shards, last = {shard, *parents}, entries[-1].sequence
    ends = set(rules.STATES_KEPT)
    selections = (
        rows.select(JournalEntry, shard=shards, kind="accept"),
        rows.select(JournalEntry, shard=shards, kind="edge", from_state=None),
        rows.select(JournalEntry, shard=shards, kind="edge", from_state=ends),
        rows.select(JournalEntry, shard=shards, kind="edge", to_state=ends),
        rows.select(JournalEntry, shard=None, kind="group"),
    )
    together = {each.sequence: each for each in chain(entries, *selections)}
    journal = [each for each in together.values() if each.shard != shard or each.sequence <= last]
    ordered = rows.group().ordered
    return dict(check_order({shard: parents}, journal, ordered=ordered)).get(shard, "")


def _openings(rows: Rows, shard: ShardId, epochs: Collection[int]) -> Iterator[JournalEntry]:
    own = given(shard=shard, kind="open", epoch=set(epochs))
    return rows.select(JournalEntry, limit=len(epochs), **own)


# -- the ledger -----------------------------------------------------------------------------------


def _prove(
    rows: Rows, shard: ShardId, summary: ShardSummary, *, before: datetime, below: int
) -> Portion | None:
    numbers = range(summary.proven_until, below)
    own = given(shard=shard, sequence=numbers, state=BatchState.COMMITTED)
    batches = rules.provable(rows.select(Batch, limit=BATCH_ROWS, **own), before=before)
    if not batches:
        return None
    opened = _openings(rows, shard, {batch.epoch for batch in batches})
    tenures = rules.tenures_of(opened, summary)
    _write_summary(rows, summary, rules.proven(summary, batches, tenures))
    return Portion(0, more=True)


def _fold(
    rows: Rows, shard: ShardId, summary: ShardSummary, *, before: datetime, below: int
) -> Portion:
    batches, undelivered = _rewritable(rows, shard, range(summary.folded_until, below), BATCH_ROWS)
    forced: list[Force] = []
    if any(row.state is BatchState.WITHDRAWN for row in batches):
        forced = rules.forces_of(rows.select(JournalEntry, shard=shard, kind="force"))
    outcome = rules.folding(summary, batches, before=before, undelivered=undelivered, forced=forced)
    if outcome.summary == summary and not outcome.numbers:
        return rows.abandon(Portion())
    _write_summary(rows, summary, outcome.summary)
    rows.write(*outcome.grown)
    if outcome.numbers:
        _delete_batches(rows, shard, batches, outcome.numbers)
    return Portion(len(outcome.numbers), len(batches) == BATCH_ROWS)


def _ripe(rows: Rows, shard: ShardId, before: datetime, through: int | None = None) -> list[Batch]:
    newest = _first_kept(rows, Batch, 1, shard=shard, state=BatchState.COMMITTED)
    if newest is None:
        return []
    below = newest if through is None else min(newest, through + 1)
    for counters in rows.select(LedgerCounters, shard=shard):
        if counters.hold is not None:
            below = min(below, counters.hold.start)
    return rules.expirable(_each_rewritable(rows, shard, below), before=before)


def _each_rewritable(rows: Rows, shard: ShardId, below: int) -> Iterator[tuple[Batch, bool]]:
    """Yield the oldest rows below a number, each with True if it has an undelivered event."""
    since = 0
    for limit in page_sizes(rules.PORTION_ROWS):
        batches, undelivered = _rewritable(rows, shard, range(since, below), limit)
        yield from ((row, row.batch_id in undelivered) for row in batches)
        if len(batches) < limit:
            return
        since = batches[-1].sequence + 1


def _rewritable(
    rows: Rows, shard: ShardId, numbers: range, limit: int
) -> tuple[list[Batch], set[str]]:
    """Return the oldest rows with these numbers, and the ids of rows with undelivered events.

    Both are empty while a run rewrites the shard's output.
    """
    if rows.first(RewriteClaim, shard=shard, run=Above("")) is not None:
        return [], set()
    batches = list(rows.select(Batch, limit=limit, shard=shard, sequence=numbers))
    ids = {row.batch_id for row in batches}
    undelivered = rows.values(OutboxEvent, "batch_id", delivered=False, batch_id=ids) if ids else ()
    return batches, set(undelivered)


def _delete_batches(
    rows: Rows, shard: ShardId, batches: Sequence[Batch], numbers: Sequence[int]
) -> None:
    counted = {row.sequence for row in batches if row.state is not BatchState.ABANDONED}
    removed = len(counted.intersection(numbers))
    rows.delete(Batch, shard=shard, sequence=set(numbers))
    rows.change(LedgerCounters, {"version": Plus(1), "rows": Plus(-removed)}, shard=shard)


# -- common parts ---------------------------------------------------------------------------------


def _first_kept(rows: Rows, rows_of: type, keep: int, **own: Any) -> int | None:
    """Return the number of the oldest row that stays; None if all stay."""
    newest = rows.values(rows_of, "sequence", newest_first=True, offset=keep - 1, limit=1, **own)
    return next(iter(newest), None)


def _prune_done(rows: Rows, rows_of: type, before: datetime, keep: int, **done: Any) -> Portion:
    """Delete the oldest of the rows that meet the conditions, except the newest ones."""
    below = _first_kept(rows, rows_of, keep, **done)
    if below is None:
        return rows.abandon(Portion())
    dated = rows.values(
        rows_of, "sequence", "at", limit=PORTION_ROWS, sequence=Below(below), **done
    )
    old = {number for number, at in dated if at < before}
    if not old:
        return rows.abandon(Portion())
    count = rows.delete(rows_of, sequence=old, **done)
    return Portion(count, more=len(old) == PORTION_ROWS)


def _locked_summary(rows: Rows, shard: ShardId | None) -> ShardSummary:
    return rows.first(ShardSummary, lock=True, shard=shard) or ShardSummary(shard)


def _write_summary(rows: Rows, before: ShardSummary, after: ShardSummary) -> None:
    after = replace(after, version=before.version + 1)
    if before.version:
        rows.write(after, version=before.version)
    else:
        rows.add(after)
