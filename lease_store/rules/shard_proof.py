"""Proof of one shard's history: its journal, then its ledger, row by row from iterators."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState
from dagster_leasehold.lease_store.rules.journal_proof import (
    NOTHING_PROVEN,
    JournalProof,
    Proven,
    Violation,
)
from dagster_leasehold.lease_store.rules.ledger_proof import LedgerProof, skipped_ends
from dagster_leasehold.lease_store.shard_rows import ShardLease


@dataclass(slots=True)
class ShardHistory:
    """The rows of one shard that are to be proven.

    Attributes:
        lease: its row, if it has one.
        journal: its entries in order.
        batches: its committed and withdrawn batches in order; read after the journal.
        gaps: its gaps.
        proven: what came before these rows.
        settled: the checkpoint belongs to the ledger's end, and can be compared with it.
    """

    shard: ShardId
    lease: ShardLease | None = None
    journal: Iterable[JournalEntry] = ()
    batches: Iterable[Batch] = ()
    gaps: Iterable[Gap] = ()
    proven: Proven = NOTHING_PROVEN
    settled: bool = True


@dataclass(slots=True)
class ShardProof:
    """The outcome of one shard.

    Attributes:
        violations: in the order of the rules.
        tenures: openings that were looked at.
        batches: committed batches that were looked at.
    """

    violations: list[Violation] = field(default_factory=list[Violation])
    tenures: int = 0
    batches: int = 0


def prove_shard(history: ShardHistory, seen: Callable[[Batch], None] | None = None) -> ShardProof:
    """Check every rule that concerns a shard alone; `seen` gets each committed batch."""
    journal = JournalProof(history.shard, history.proven)
    for entry in history.journal:
        journal.take(entry)
    journal.end(history.lease)
    skipped = skipped_ends(history.gaps, history.proven.skipped)
    ledger = LedgerProof(history.shard, history.proven, journal, skipped)
    for batch in history.batches:
        if batch.state is BatchState.COMMITTED:
            ledger.take(batch)
            if seen is not None:
                seen(batch)
        elif batch.state is BatchState.WITHDRAWN:
            ledger.take_withdrawn(batch)
    ledger.end(history.lease if history.settled else None)
    before = [Violation(rule, history.shard, how) for rule, how in history.proven.violations]
    return ShardProof(
        before + journal.violations + ledger.violations,
        tenures=journal.opened,
        batches=ledger.committed,
    )
