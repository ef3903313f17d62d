"""Pure rules for committed output that expires: which ledger rows go, and what stays of them.

Output expires from a shard's start on, row by row, so that what is left is one contiguous range:

1. A committed row is old, its events are delivered, and a later committed row follows it.
2. It is proven as any old row is: its tenure was opened, and it joins the row before it. What is
   broken goes into the summary, where it stays.
3. It goes together with all rows that share a file with it, and with what was abandoned or
   withdrawn between them. The summary says where committed output begins from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState
from dagster_leasehold.lease_store.rules.deletable_history import proven, tenures_of, with_findings
from dagster_leasehold.lease_store.rules.journal_proof import JournalProof
from dagster_leasehold.lease_store.rules.ledger_proof import LedgerProof
from dagster_leasehold.lease_store.shard_summary import Expired, ShardSummary

PORTION_ROWS = 200
"""The rows that expire in one transaction: more only if they share the first merged file."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """Ledger rows to delete.

    Attributes:
        summary: of the shard afterwards.
        gone: the numbers of rows that go.
    """

    summary: ShardSummary
    gone: tuple[int, ...]


def expirable(rows: Iterable[tuple[Batch, bool]], *, before: datetime) -> list[Batch]:
    """Return the rows, from a shard's start on, that may go together: one portion.

    A merged file is never divided: the first one goes at once, however many rows share it.

    Args:
        rows: the oldest of the shard in every state, in order, without its newest committed one,
            each with True if an event of it was not delivered yet; no more are taken than needed.
        before: rows committed from here on stay, and all that follow them.
    """
    portion: list[Batch] = []
    following: list[Batch] = []
    left = {False: 0, True: 0}
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
        for quarantine, batches in left.items():
            own = (file.batches for file in row.files if file.quarantine == quarantine)
            left[quarantine] = max(max(batches, *own, 0) - row.batches, 0)
        if not any(left.values()):
            portion += following
            following = []
    return portion


def expire(
    summary: ShardSummary,
    rows: Sequence[Batch],
    *,
    journal: Iterable[JournalEntry],
    gaps: Iterable[Gap],
) -> Expiry:
    """Prove the rows that go, and add them to what the shard's summary says of expired output.

    Args:
        summary: of the shard.
        rows: the rows that go, from the shard's start on; the last one is committed.
        journal: the openings of tenures of those that were not proven yet, and the forced
            checkpoints of the shard, in order.
        gaps: of the shard.
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
    return Expiry(
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
    """Return between which event times the records of a row's files lie.

    Times later than the commit are cut: one record from the year 2099 must not make every hour
    until then look as if it had lost output.
    """
    assert batch.committed_at is not None
    files = [file for file in batch.files if not file.quarantine]
    firsts = [file.first_event_time for file in files]
    lasts = [file.last_event_time or batch.committed_at for file in files]
    first = None if None in firsts else min(time for time in firsts if time is not None)
    return first, min(max(lasts), batch.committed_at)
