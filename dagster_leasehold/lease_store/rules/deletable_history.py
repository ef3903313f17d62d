"""Pure rules for deleting history: the deletable rows, and their summary.

History stays provable, because each row is checked before it is deleted:

1. An old committed row is compared with the tenures of the journal, and `proven_until` passes it.
   The summary keeps a violation.
2. The journal entries of its tenure can be deleted: no row needs them for a proof.
3. A row without files is folded into the adjacent row before it. Abandoned and withdrawn rows are
   deleted.

Committed output that expires is deleted from the shard's start on, whole files at a time, so that
the rest is one contiguous range. The summary has its first cursor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile

from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState, BatchStatistics
from dagster_leasehold.lease_store.rules import history_proof
from dagster_leasehold.lease_store.rules.cursors import in_order
from dagster_leasehold.lease_store.rules.history_proof import (
    Force,
    JournalProof,
    LedgerProof,
    Tenures,
)
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_summary import (
    SKIPS_KEPT,
    VIOLATIONS_KEPT,
    Expired,
    Finding,
    ShardSummary,
)

PORTION_ROWS = 200
"""The most rows that expire in one transaction, unless more share the first merged file."""

KINDS_KEPT = ("group", "force", "accept")
STATES_KEPT = (ShardState.WAIT, ShardState.OVER)


@dataclass(frozen=True, slots=True)
class Deletion:
    """Ledger rows to delete.

    Attributes:
        summary: the shard's summary afterwards.
        grown: the rows into which others were folded.
    """

    summary: ShardSummary
    numbers: tuple[int, ...]
    grown: tuple[Batch, ...] = ()


def expirable(rows: Iterable[tuple[Batch, bool]], *, before: datetime) -> list[Batch]:
    """Return the oldest rows of a shard that expire together; rows of a merged file always do.

    Args:
        rows: the oldest rows of the shard in every state, in order, without its newest committed
            one, each with True if it has an undelivered event. Only as many as needed are read.
        before: rows that were committed later stay, and so do all rows after them.
    """
    portion: list[Batch] = []
    following: list[Batch] = []
    remaining = {False: 0, True: 0}
    for row, undelivered in rows:
        if portion and len(portion) + len(following) >= PORTION_ROWS:
            break
        following.append(row)
        if row.state is BatchState.INTENT:
            break
        if row.state is not BatchState.COMMITTED:
            continue
        old = row.committed_at is not None and row.committed_at < before
        if not old or undelivered:
            break
        for quarantine, batches in remaining.items():
            own = (file.batches for file in row.files if file.quarantine == quarantine)
            remaining[quarantine] = max(max(batches, *own, 0) - row.batches, 0)
        if not any(remaining.values()):
            portion += following
            following = []
    return portion


def expire(
    summary: ShardSummary,
    rows: Sequence[Batch],
    *,
    journal: Iterable[JournalEntry],
    gaps: Iterable[Gap],
) -> Deletion:
    """Check the rows that expire, and add them to the shard's summary.

    Args:
        rows: the expiring rows, from the shard's start on; the last one is committed.
        journal: the openings of their tenures and the forced checkpoints, in order.
    """
    entries = list(journal)
    committed = [row for row in rows if row.state is BatchState.COMMITTED]
    unproven = [row for row in committed if row.sequence >= summary.proven_until]
    if unproven:
        summary = proven(summary, unproven, tenures_of(entries, summary))
    forces = JournalProof(summary)
    for entry in entries:
        if entry.kind == "force":
            forces.take(entry)
    ledger = LedgerProof(summary, forces, gaps)
    for row in rows:
        if row.state is BatchState.COMMITTED:
            ledger.take(row)
        elif row.state is BatchState.WITHDRAWN:
            ledger.take_withdrawn(row)
    findings = [(violation.rule, violation.detail) for violation in ledger.violations]
    after = with_findings(summary, findings)
    return Deletion(
        replace(after, expired=_with(summary.expired, ledger, committed)),
        tuple(row.sequence for row in rows),
    )


def _with(former: Expired | None, ledger: LedgerProof, committed: Sequence[Batch]) -> Expired:
    last = ledger.last
    assert last is not None
    bounds = [_event_bounds(row) for row in committed if _has_output(row)]
    if former is not None and former.events_until is not None:
        bounds.append((former.events_since, former.events_until))
    firsts = [first for first, _ in bounds]
    return Expired(
        last,
        (former.batches if former else 0) + sum(row.batches for row in committed),
        (former.records if former else 0) + sum(row.statistics.written for row in committed),
        None if None in firsts else min((time for time in firsts if time), default=None),
        max((until for _, until in bounds), default=None),
    )


def _has_output(batch: Batch) -> bool:
    return any(not file.quarantine for file in batch.files)


def _event_bounds(batch: Batch) -> tuple[datetime | None, datetime]:
    """Return the range of event times in a row's files, up to its commit.

    Otherwise, after a record from the year 2099, every hour until then would count as an hour with
    expired output.
    """
    assert batch.committed_at is not None
    files = [file for file in batch.files if not file.quarantine]
    firsts = [file.first_event_time for file in files]
    lasts = [file.last_event_time or batch.committed_at for file in files]
    first = None if None in firsts else min(time for time in firsts if time is not None)
    return first, min(max(lasts), batch.committed_at)


def kept_for_good(entry: JournalEntry) -> bool:
    """Return True for the rare entries that proofs always require."""
    if entry.kind in KINDS_KEPT:
        return True
    ends = entry.from_state in (None, *STATES_KEPT) or entry.to_state in STATES_KEPT
    return entry.kind == "edge" and ends


def old_entries(
    entries: Iterable[JournalEntry], *, before: datetime, unproven_epoch: int | None
) -> list[JournalEntry]:
    """Return the entries, oldest first, that can be summarized.

    Args:
        entries: the shard's oldest entries that are not in its summary, in order.
        before: later entries stay, and so do all entries after them.
        unproven_epoch: the epoch of the first unproven committed batch; its tenure stays.
    """

    def is_old(entry: JournalEntry) -> bool:
        needed = unproven_epoch is not None and entry.epoch >= unproven_epoch
        return entry.at < before and not (entry.kind == "open" and needed)

    return list(takewhile(is_old, entries))


def summarised(
    summary: ShardSummary, entries: Sequence[JournalEntry], *, too_early: str = ""
) -> tuple[ShardSummary, list[int]]:
    """Return the summary with these entries, and the numbers of the entries to delete.

    `too_early` is the violation if the shard started before its parents were over.
    """
    proof = JournalProof(summary)
    counts = Counter(summary.entries)
    numbers: list[int] = []
    for entry in entries:
        proof.take(entry)
        if not kept_for_good(entry):
            numbers.append(entry.sequence)
            counts[entry.kind if entry.edge is None else f"edge {entry.edge}"] += 1
    findings = [(violation.rule, violation.detail) for violation in proof.violations]
    findings += [("order", too_early)] if too_early else []
    after = replace(
        with_findings(summary, findings),
        journal_until=entries[-1].sequence if entries else summary.journal_until,
        entries=dict(counts),
        epoch=proof.epoch,
        opening=proof.newest,
        open=proof.current is not None,
    )
    return after, numbers


def with_findings(summary: ShardSummary, findings: Iterable[Finding]) -> ShardSummary:
    """Return the summary with these violations, each once, up to the limit."""
    new = [finding for finding in findings if finding not in summary.violations]
    return replace(summary, violations=(*summary.violations, *new)[:VIOLATIONS_KEPT])


def provable(batches: Iterable[Batch], *, before: datetime) -> list[Batch]:
    """Return the oldest committed rows, as far as they are old enough to be proven."""
    return list(takewhile(lambda batch: _is_old(batch, before), batches))


def _is_old(batch: Batch, before: datetime) -> bool:
    return batch.committed_at is not None and batch.committed_at < before


def proven(summary: ShardSummary, batches: Sequence[Batch], opened: Tenures) -> ShardSummary:
    """Compare committed rows with their tenures; return the new summary."""
    epoch = summary.proven_epoch
    findings: list[Finding] = []
    for batch in batches:
        findings += [
            ("fence", detail) for detail in history_proof.fence_details(batch, opened, epoch)
        ]
        epoch = max(epoch, history_proof.until_epoch(batch))
    return replace(
        with_findings(summary, findings),
        proven_until=batches[-1].last + 1 if batches else summary.proven_until,
        proven_epoch=epoch,
    )


def folding(
    summary: ShardSummary,
    rows: Sequence[Batch],
    *,
    before: datetime,
    undelivered: Collection[str],
    forced: Sequence[Force],
) -> Deletion:
    """Fold or delete the shard's oldest unexamined rows.

    Args:
        rows: the rows of every state, from `summary.folded_until` on, in order.
        before: rows that were committed later stay, and so do all rows after them.
        undelivered: the batches with an undelivered event.
    """
    considered = _old_rows(rows, before=before, proven_until=summary.proven_until)
    grown: dict[int, Batch] = {}
    numbers: list[int] = []
    findings: list[Finding] = []
    carrier: Batch | None = None
    for row in considered:
        if row.state is not BatchState.COMMITTED:
            numbers.append(row.sequence)
            if row.state is BatchState.WITHDRAWN:
                detail = history_proof.withdrawal_detail(row, forced)
                findings += [("withdrawn", detail)] if detail else []
        elif carrier and _may_fold(carrier, row) and row.batch_id not in undelivered:
            carrier = folded(carrier, row)
            grown[carrier.sequence] = carrier
            numbers.append(row.sequence)
        else:
            carrier = row
    until = carrier.sequence if carrier else summary.folded_until
    after = replace(with_findings(summary, findings), folded_until=until)
    return Deletion(after, tuple(numbers), tuple(grown.values()))


def _old_rows(rows: Sequence[Batch], *, before: datetime, proven_until: int) -> list[Batch]:
    """Return the rows up to the last committed one that is old and proven."""
    end = 0
    for place, row in enumerate(rows):
        if row.state is BatchState.INTENT:
            break
        if row.state is BatchState.COMMITTED:
            if not _is_old(row, before) or row.last >= proven_until:
                break
            end = place + 1
    return list(rows[:end])


def _may_fold(carrier: Batch, row: Batch) -> bool:
    return not row.files and carrier.end == row.start and in_order(row.start, row.end)


def folded(carrier: Batch, row: Batch) -> Batch:
    """Return a ledger row that includes the next row."""
    return replace(
        carrier,
        end=row.end,
        statistics=_together(carrier.statistics, row.statistics),
        finished=carrier.finished or row.finished,
        committed_at=row.committed_at,
        last_sequence=row.last,
        last_epoch=history_proof.until_epoch(row),
        batches=carrier.batches + row.batches,
    )


def _together(one: BatchStatistics, other: BatchStatistics) -> BatchStatistics:
    firsts = [time for time in (one.first_event_time, other.first_event_time) if time]
    lasts = [time for time in (one.last_event_time, other.last_event_time) if time]
    return BatchStatistics(
        records=_sum(one.records, other.records),
        bytes=_sum(one.bytes, other.bytes),
        written=one.written + other.written,
        quarantined=one.quarantined + other.quarantined,
        first_event_time=min(firsts, default=None),
        last_event_time=max(lasts, default=None),
    )


def _sum(one: int | None, other: int | None) -> int | None:
    # An unknown total is added to a known one as 0, so that totals never decrease.
    return None if one is None and other is None else (one or 0) + (other or 0)


def skips_left(summary: ShardSummary) -> int:
    """Return the number of gaps that a summary has room for."""
    return max(SKIPS_KEPT - len(summary.skips), 0)


def skipping(summary: ShardSummary, gaps: Iterable[Gap]) -> ShardSummary:
    """Return the summary with deleted gaps."""
    return replace(summary, skips=(*summary.skips, *((gap.start, gap.end) for gap in gaps)))


def tenures_of(entries: Iterable[JournalEntry], summary: ShardSummary) -> Tenures:
    """Return the tenures that these entries opened, and the summary's newest one."""
    opening = summary.opening
    earlier = {(opening.epoch, opening.run): opening.owner} if opening else {}
    return earlier | {
        (entry.epoch, entry.run): entry.to_owner for entry in entries if entry.kind == "open"
    }


def forces_of(entries: Iterable[JournalEntry]) -> list[Force]:
    """Return the forced checkpoints among these entries."""
    return [Force(entry.epoch, entry.check_point) for entry in entries if entry.kind == "force"]
