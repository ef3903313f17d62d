"""The role for bounding history and output: deleting old rows, and keeping a summary of them.

Journal entries, delivered events, accepted gaps and ledger rows without files of their own are
deleted once they are old, in portions of a bounded number of rows, each in a short transaction.
The transaction that deletes a portion adds to the shard's summary what `verify` needs to go on
from there, and every broken promise that the portion shows: deleting changes no verdict.

What is rare stays in the journal for good, since proofs look back to it from any distance:
changes of a group's settings, forced checkpoints, accepted reopenings, and the first sight, the
end and the reopening of a shard.

Committed output itself goes only where somebody has set how long it is kept, from the start of
each shard on; the summary says where output begins from then on.

Ages are judged by the dates in the rows, relative to the newest rows of the group, never by the
clock of the process that deletes; and the newest rows of each shard stay whatever their dates
say. So a clock that jumps a year ahead can shorten a history, and cannot remove it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.shard_summary import (
    BATCHES_KEPT,
    CHANGES_KEPT,
    ENTRIES_KEPT,
    EVENTS_KEPT,
    Portion,
)


class Retention(Protocol):
    """The verbs that delete history.

    Each is one transaction of bounded size. Losing a race with another process that deletes the
    same is harmless: every step looks again.
    """

    def newest_times(self, key: GroupKey, number: int) -> list[datetime]:
        """Return the dates of a group's newest journal entries, newest entry first."""
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
        folded while a run holds the claim to rewrite the shard's output, and nothing that waits
        for publication.
        """
        ...

    def expirable(self, key: GroupKey, shard: ShardId, *, before: datetime) -> list[Batch]:
        """Return the committed rows that `expire_batches` would delete next, oldest first."""
        ...

    def expire_batches(
        self, key: GroupKey, shard: ShardId, *, before: datetime, through: int
    ) -> Portion:
        """Delete the oldest ledger rows of a shard: those batches are committed output no more.

        Deleted are rows with numbers up to `through` that were committed before a moment, from
        the shard's start on, as far as no merged file is divided and all events are delivered. The
        shard's newest committed row stays; nothing goes while a run holds the claim to rewrite the
        shard's output. Their files are not named by anything afterwards, so that vacuum removes
        them: whoever calls this has made them look new before, since a reader may have listed them.
        """
        ...

    def prune_outbox(self, key: GroupKey, *, before: datetime, keep: int = EVENTS_KEPT) -> Portion:
        """Delete the oldest delivered events; one that is undelivered never goes."""
        ...

    def prune_changes(
        self, key: GroupKey, *, before: datetime, keep: int = CHANGES_KEPT
    ) -> Portion:
        """Delete the oldest published changes of the group's table; a pending one never goes."""
        ...

    def prune_gaps(self, key: GroupKey, *, before: datetime) -> Portion:
        """Delete gaps of one shard that are accepted, skipped and old; its summary has them."""
        ...
