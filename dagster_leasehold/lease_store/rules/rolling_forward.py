"""Pure rules that bring a ledger up to its table, after a restore from a backup.

The table has batches that the ledger lost, or that were consumed again afterwards. The ledger's own
rows for them are withdrawn, and committed rows with the table's files replace them. They are
committed under a new tenure, which fences a run that has the shard open and keeps the history
provable.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchState,
    BatchStatistics,
    DataFile,
    LedgerCounters,
)
from dagster_leasehold.lease_store.publication_rows import Publication, ShardAhead
from dagster_leasehold.lease_store.rules.cursors import in_order
from dagster_leasehold.lease_store.rules.transitions import Step, closed, forced, opened
from dagster_leasehold.lease_store.shard_rows import ShardLease

HOLDER = NodeName("roll-forward")
"""The holder of the new tenure in the journal and the ledger; it is not a node."""
FILES_PER_ROW = 1_000
"""The most files of a ledger row; the size of a statement is limited."""
UNSETTLED = "rolling-forward"
"""The prefix of the newest publication's id until all shards are done."""


@dataclass(frozen=True, slots=True)
class RolledForward:
    """The shard's new row, and the new ledger rows in order, that roll it forward."""

    step: Step
    batches: tuple[Batch, ...]

    @property
    def next_number(self) -> int:
        """The number of the shard's next batch."""
        return self.batches[-1].sequence + 1

    def counters(self, before: LedgerCounters) -> LedgerCounters:
        """Return the counters of the shard's ledger with the new batches."""
        after = replace(
            before, version=before.version + 1, published_until=self.next_number, hold=None
        )
        for batch in self.batches:
            after = after.after(batch.sequence, batch.statistics)
        return after


def may_roll_forward(row: ShardLease, version: int, ahead: ShardAhead) -> bool:
    """Return True if the ledger is unchanged since the comparison, and not ahead of its table."""
    return version == ahead.version and may_follow(row.check_point, ahead.end)


def may_follow(check_point: str | None, end: str) -> bool:
    """Return True if a checkpoint is not after the end of the table."""
    return check_point is None or in_order(check_point, end)


def roll_forward(
    row: ShardLease,
    ahead: ShardAhead,
    members: Collection[NodeName],
    *,
    next_number: int,
    at: datetime,
) -> RolledForward:
    """Return the rows that bring a shard's ledger up to its table.

    Args:
        ahead: the table's batches that the ledger lacks.
        members: the nodes of the group, for a shard in transfer.
        next_number: the number of the shard's next batch, after abandoning an intent.
        at: the time of the commit; for people only.
    """
    run = f"{HOLDER}-{ahead.publication}"
    reason = f"the table is ahead of the ledger since a backup was restored: {ahead}"
    fenced = forced(row, ahead.start, members, reason)
    epoch = max(fenced.after.consumer_epoch, ahead.epoch)
    opening = opened(replace(fenced.after, consumer_epoch=epoch), run)
    moved = replace(opening.after, check_point=ahead.end)
    closing = closed(moved, (), reason)
    facts = {"rolled_forward": ahead.publication, "first": ahead.first}
    open_note = replace(opening.notes[-1], reason=reason, to_owner=HOLDER, facts=facts)
    step = Step(row, closing.after, (*fenced.notes, open_note, *closing.notes))
    return RolledForward(step, _batches(moved, ahead, next_number, at))


def _batches(
    row: ShardLease, ahead: ShardAhead, next_number: int, at: datetime
) -> tuple[Batch, ...]:
    """Return the rows of one range: the last row spans it, and the others are empty.

    Each row has a part of the files. All rows start at the range's start, so a checkpoint forced
    there withdraws all of them.
    """
    parts = [
        ahead.files[first : first + FILES_PER_ROW]
        for first in range(0, max(len(ahead.files), 1), FILES_PER_ROW)
    ]
    end = max(next_number + len(parts), ahead.next_number)
    return tuple(
        Batch(
            shard=row.shard,
            sequence=end - remaining,
            start=ahead.start,
            end=ahead.end if remaining == 1 else ahead.start,
            state=BatchState.COMMITTED,
            epoch=row.consumer_epoch,
            run=row.consumer_run,
            holder=HOLDER,
            files=files,
            statistics=_statistics(files),
            committed_at=at,
        )
        for remaining, files in zip(range(len(parts), 0, -1), parts, strict=True)
    )


def _statistics(files: Collection[DataFile]) -> BatchStatistics:
    firsts = [file.first_event_time for file in files if file.first_event_time is not None]
    lasts = [file.last_event_time for file in files if file.last_event_time is not None]
    return BatchStatistics(
        records=None,
        bytes=None,
        written=sum(file.records for file in files if not file.quarantine),
        quarantined=sum(file.records for file in files if file.quarantine),
        first_event_time=min(firsts, default=None),
        last_event_time=max(lasts, default=None),
    )


def unsettled(publication: Publication, ahead: ShardAhead) -> Publication:
    """Return the publication to store until all shards are done; no table matches its id."""
    number = max(publication.number, ahead.publications)
    return replace(publication, last=unsettled_id(ahead.publication), number=number)


def unsettled_id(publication: str) -> str:
    """Return the id of the newest publication until the table is adopted."""
    return f"{UNSETTLED}-{publication}"
