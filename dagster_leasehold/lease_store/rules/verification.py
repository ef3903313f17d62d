"""Proof after the fact, from the journal and the ledger of a live deployment.

The rules are pure (`prove_shard`, and `history_proof`), so that the same check runs on a store,
on a copy of one, and at every step of a simulation. A store is read shard by shard, in
pages: memory grows with the tenures of one shard, and by eight bytes a file.

Consumption continues meanwhile, which must not look wrong:

1. A shard's row and its head are read. What is committed later has a higher number: left out.
2. Its journal is read: all tenures are in it that the batches below that number name.
3. Its ledger is read up to that number.
4. If the head has another version then, or rows were deleted, it is read all over again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from dagster_leasehold.lease_store.group_rows import Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState, LedgerHead
from dagster_leasehold.lease_store.roles.ledger import Ledger
from dagster_leasehold.lease_store.rules import history_proof
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.history_proof import OrderProof, Violation, check_order
from dagster_leasehold.lease_store.rules.progress import Report
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.shard_summary import ShardSummary
from dagster_leasehold.lease_store.store import GroupsAndLedger

__all__ = ["Audit", "Violation", "audit", "check_history", "verify"]

READINGS_MAX = 5


@dataclass(slots=True)
class ShardHistory:
    """The rows of one shard that are to be proven.

    Attributes:
        summary: of its rows that were deleted.
        lease: its row, if it has one.
        journal: its entries in order.
        batches: its committed and withdrawn batches in order; read after the journal.
        gaps: its gaps.
        settled: the checkpoint belongs to the ledger's end, and can be compared with it.
    """

    summary: ShardSummary
    lease: ShardLease | None = None
    journal: Iterable[JournalEntry] = ()
    batches: Iterable[Batch] = ()
    gaps: Iterable[Gap] = ()
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
    journal = history_proof.JournalProof(history.summary)
    for entry in history.journal:
        journal.take(entry)
    journal.end(history.lease)
    ledger = history_proof.LedgerProof(history.summary, journal, history.gaps)
    for batch in history.batches:
        if batch.state is BatchState.COMMITTED:
            ledger.take(batch)
            if seen is not None:
                seen(batch)
        elif batch.state is BatchState.WITHDRAWN:
            ledger.take_withdrawn(batch)
    ledger.end(history.lease if history.settled else None)
    summary = history.summary
    before = [Violation(rule, summary.shard, how) for rule, how in summary.violations]
    return ShardProof(
        list(dict.fromkeys(before + journal.violations + ledger.violations)),
        tenures=journal.opened,
        batches=ledger.committed,
    )


@dataclass(frozen=True, slots=True)
class Audit:
    """The outcome of reading the whole history of a group.

    Attributes:
        violations: every promise that it breaks; none is the proof.
        tenures: the number of opened tenures.
        batches: the number of committed batches.
    """

    violations: tuple[Violation, ...]
    tenures: int
    batches: int


def verify(store: GroupsAndLedger, key: GroupKey) -> list[Violation]:
    """Check the whole history of a group as the store has it now; an empty list is the proof.

    Raises:
        UnknownGroup: there is no such group.
        StoreUnavailable: the store does not answer.
    """
    return list(audit(store, key).violations)


def audit(store: GroupsAndLedger, key: GroupKey, *, progress: Report = lambda *_: None) -> Audit:
    """Read the history of a group from the summary of deleted rows on, and check it.

    A shard whose committed rows are changed each time that it is read, five times in a row, is
    checked by its journal alone.

    Args:
        progress: called with the number of ledger rows that were read, and that of all.

    Raises:
        UnknownGroup: there is no such group.
        StoreUnavailable: the store does not answer.
    """
    snapshot = store.snapshot(key)
    violations: list[Violation] = []
    paths = history_proof.PathLedger()
    tenures = batches = rows = 0
    total = store.ledger_rows(key)

    def read() -> None:
        nonlocal rows
        rows += 1
        progress(rows, max(rows, total))

    for lease in sorted(snapshot.shards, key=lambda lease: rank_key(lease.shard)):
        proof, own = _read_shard(store, key, lease, read)
        violations += proof.violations
        paths.join(own)
        tenures += proof.tenures
        batches += proof.batches
    # Of each shard the first start that came too early counts; a summary may have it already.
    summed = {violation.shard for violation in violations if violation.rule == "order"}
    violations += [each for each in _read_order(store, key, snapshot) if each.shard not in summed]
    if suspects := paths.doubled():
        violations += history_proof.doubled_files(store.each_batch(key), suspects)
    return Audit(tuple(violations), tenures, batches)


def _read_shard(
    store: Ledger, key: GroupKey, lease: ShardLease, read: Callable[[], None]
) -> tuple[ShardProof, history_proof.PathLedger]:
    for _ in range(READINGS_MAX):
        paths = history_proof.PathLedger()
        head = _head(store, key, lease)
        summary = _summary(store, key, lease.shard)
        proof = prove_shard(
            ShardHistory(
                summary,
                replace(lease, check_point=head.check_point),
                store.each_entry(key, shard=lease.shard),
                _noted(
                    store.each_batch(key, lease.shard, None, numbers=range(head.next_number)), read
                ),
                store.gaps(key, lease.shard),
            ),
            paths.take,
        )
        pruned = _summary(store, key, lease.shard) != summary
        if not pruned and _head(store, key, lease).version == head.version:
            return proof, paths
    alone = ShardHistory(
        _summary(store, key, lease.shard),
        lease,
        store.each_entry(key, shard=lease.shard),
        settled=False,
    )
    return prove_shard(alone), history_proof.PathLedger()


def _noted(batches: Iterable[Batch], read: Callable[[], None]) -> Iterator[Batch]:
    for batch in batches:
        read()
        yield batch


def _summary(store: Ledger, key: GroupKey, shard: ShardId) -> ShardSummary:
    return next(iter(store.summaries(key, shard)), ShardSummary(shard))


def _head(store: Ledger, key: GroupKey, lease: ShardLease) -> LedgerHead:
    return store.heads(key, [lease.shard])[lease.shard]


def _read_order(store: Ledger, key: GroupKey, snapshot: Snapshot) -> list[Violation]:
    """Check the order of shards by the whole journal, which is read only where it can matter.

    Entries of transactions that overlap are numbered in another order than they appear in, so
    that a page can lack one that the next page's entries follow from. What looks wrong is read
    once more up to the same entry: by then, all of those transactions are over.
    """
    parents = {lease.shard: lease.parents for lease in snapshot.shards}
    if not any(parents.values()):
        return []
    newest = store.journal(key, limit=1, newest=True)
    until = newest[0].sequence if newest else 0
    early: list[tuple[ShardId, str]] = []
    for _ in range(2):
        proof = OrderProof(parents)
        for entry in store.each_entry(key, until=until):
            proof.take(entry)
        early = proof.violations(ordered=snapshot.group.ordered)
        if not early:
            break
    return [Violation("order", shard, detail) for shard, detail in early]


def check_history(
    shards: Iterable[ShardLease],
    journal: Sequence[JournalEntry],
    batches: Sequence[Batch],
    gaps: Sequence[Gap],
    *,
    ordered: bool,
) -> list[Violation]:
    """List every promise that a history of a group breaks, by shard.

    `ordered` is the group's setting now; earlier ones are read from the journal.
    """
    histories = _by_shard(shards, journal, batches, gaps)
    violations: list[Violation] = []
    for shard in sorted(histories, key=rank_key):
        violations += prove_shard(histories[shard]).violations
    parents = {
        shard: history.lease.parents for shard, history in histories.items() if history.lease
    }
    violations += [
        Violation("order", shard, detail)
        for shard, detail in check_order(parents, journal, ordered=ordered)
    ]
    return [*violations, *history_proof.doubled_files(batches)]


def _by_shard(
    shards: Iterable[ShardLease],
    journal: Iterable[JournalEntry],
    batches: Iterable[Batch],
    gaps: Iterable[Gap],
) -> dict[ShardId, ShardHistory]:
    leases = {lease.shard: lease for lease in shards}
    entries: dict[ShardId, list[JournalEntry]] = {}
    ranges: dict[ShardId, list[Batch]] = {}
    removed: dict[ShardId, list[Gap]] = {}
    for entry in sorted(journal, key=lambda entry: entry.sequence):
        if entry.shard is not None:
            entries.setdefault(entry.shard, []).append(entry)
    for batch in sorted(batches, key=lambda batch: batch.sequence):
        ranges.setdefault(batch.shard, []).append(batch)
    for gap in gaps:
        removed.setdefault(gap.shard, []).append(gap)
    return {
        shard: ShardHistory(
            ShardSummary(shard),
            leases.get(shard),
            entries.get(shard, ()),
            ranges.get(shard, ()),
            removed.get(shard, ()),
        )
        for shard in {*leases, *entries, *ranges, *removed}
    }
