"""The verbs that keep history bounded, and what they leave of the rows that they delete.

Journal entries, delivered events, accepted gaps and ledger rows without files of their own are
deleted once they are old, in portions of a bounded number of rows, each in a short transaction.
The transaction that deletes a portion adds to the shard's summary what `verify` needs to go on
from there, and every broken promise that the portion shows: deleting changes no verdict.

What is rare stays in the journal for good, since proofs look back to it from any distance:
changes of a group's settings, forced checkpoints, accepted reopenings, and the first sight, the
end and the reopening of a shard.

Ages are judged by the dates in the rows, relative to the newest rows of the group, never by the
clock of the process that deletes; and the newest rows of each shard stay whatever their dates
say. So a clock that jumps a year ahead can shorten a history, and cannot remove it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.rules.shard_proof import Finding, Opening, Proven

PORTION_ROWS = 500
"""The most rows that one transaction deletes."""
ENTRIES_KEPT = 100
"""How many of the newest journal entries of each shard stay, however old their dates look."""
BATCHES_KEPT = 100
"""How many of the newest ledger rows of each shard stay as they are."""
EVENTS_KEPT = 1_000
"""How many of the newest delivered events of each kind stay in each group."""
SKIPS_KEPT = 1_000
"""How many deleted gaps of each shard are remembered; those beyond stay as they are."""
VIOLATIONS_KEPT = 20
"""How many broken promises of each shard's deleted history are remembered."""


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """What stays of a shard's deleted history: row of `shard_summary`.

    Attributes:
        shard: None for the entries of the group that concern no shard.
        version: +1 at every write.
        journal_until: entries up to this number are part of the summary, those that stay too.
        entries: the number of deleted entries by kind; those of an edge as `edge 3`.
        epoch: the highest fencing number in the summarised entries.
        opening: the newest tenure that was opened in them, or None.
        open: that tenure was not closed in them.
        proven_until: committed batches before this number were found under opened tenures.
        proven_epoch: the highest epoch of those.
        folded_until: rows before this number were looked at for folding since they were written.
        skips: deleted gaps that the checkpoint has moved past, from and to which cursor.
        violations: the broken promises that deleted rows showed, as rule and sentence.
    """

    shard: ShardId | None
    version: int = 0
    journal_until: int = 0
    entries: Mapping[str, int] = field(default_factory=dict[str, int])
    epoch: int = 0
    opening: Opening | None = None
    open: bool = False
    proven_until: int = 0
    proven_epoch: int = 0
    folded_until: int = 0
    skips: tuple[tuple[str, str], ...] = ()
    violations: tuple[Finding, ...] = ()

    @property
    def proven(self) -> Proven:
        """Where a proof begins that goes on from the summary."""
        return Proven(
            epoch=self.epoch,
            open=self.opening if self.open else None,
            tenures=(self.opening,) if self.opening else (),
            entries_until=self.journal_until,
            fenced_until=self.proven_until,
            fenced_epoch=self.proven_epoch,
            skipped=self.skips,
            violations=self.violations,
        )

    @property
    def deleted_entries(self) -> int:
        """How many journal entries were deleted."""
        return sum(self.entries.values())


@dataclass(frozen=True, slots=True)
class Portion:
    """One step of deleting.

    Attributes:
        rows: how many rows went.
        more: the next step may find more.
    """

    rows: int = 0
    more: bool = False


class Retention(Protocol):
    """The verbs of a lease store that delete history; part of every `LeaseStore`.

    Each is one transaction of bounded size. Losing a race with another process that deletes the
    same is harmless: every step looks again.
    """

    def summaries(self, key: GroupKey, shard: ShardId | None = None) -> list[ShardSummary]:
        """What was deleted, of one shard or by shard; that of no shard comes first."""
        ...

    def newest_times(self, key: GroupKey, number: int) -> list[datetime]:
        """The dates of a group's newest journal entries, newest entry first."""
        ...

    def prune_journal(
        self, key: GroupKey, shard: ShardId | None, *, before: datetime, keep: int = ENTRIES_KEPT
    ) -> Portion:
        """Delete the oldest entries of a shard, or of none, that are dated before a moment.

        An entry stays while a committed batch refers to it that was not proven yet.
        """
        ...

    def prune_batches(
        self, key: GroupKey, shard: ShardId, *, before: datetime, keep: int = BATCHES_KEPT
    ) -> Portion:
        """Prove old committed rows of a shard, then fold and delete what needs no row any more.

        A committed row without files goes into the row before it, if that ends where it starts
        and its events are delivered; a row that was abandoned or withdrawn goes. Nothing is
        folded while a run holds the claim to rewrite the shard's output.
        """
        ...

    def prune_outbox(self, key: GroupKey, *, before: datetime, keep: int = EVENTS_KEPT) -> Portion:
        """Delete the oldest delivered events; one that is undelivered never goes."""
        ...

    def prune_gaps(self, key: GroupKey, *, before: datetime) -> Portion:
        """Delete gaps of one shard that are accepted, skipped and old; its summary has them."""
        ...
