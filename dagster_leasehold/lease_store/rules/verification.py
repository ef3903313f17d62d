"""Proof of a group's history from the journal and the ledger, while consumption continues.

A store is read shard by shard, in pages. Memory grows with the tenures of one shard, and by eight
bytes for each file. The rules are pure (`history_proof`), so simulations use them too.

1. A shard's row and the head of its ledger are read. Batches committed later have higher numbers.
2. Its journal is read. It has all tenures of the batches before that number.
3. Its ledger is read up to that number.
4. If the head's version has changed by then, or rows were deleted, the shard is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from dagster_leasehold.lease_store.group_rows import Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState, LedgerHead
from dagster_leasehold.lease_store.roles.ledger import Ledger
from dagster_leasehold.lease_store.rules import history_proof
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.history_proof import OrderProof, Violation
from dagster_leasehold.lease_store.rules.progress import Report
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.shard_summary import ShardSummary
from dagster_leasehold.lease_store.store import GroupsAndLedger

__all__ = ["Audit", "Violation", "audit", "verify"]

READINGS_MAX = 5


@dataclass(slots=True)
class ShardHistory:
    """The rows of one shard.

    Attributes:
        summary: the summary of its deleted rows.
        batches: its committed and withdrawn batches in order; read after the journal.
        settled: True if the checkpoint can be compared with the ledger's end.
    """

    summary: ShardSummary
    lease: ShardLease | None = None
    journal: Iterable[JournalEntry] = ()
    batches: Iterable[Batch] = ()
    gaps: Iterable[Gap] = ()
    settled: bool = True


@dataclass(frozen=True, slots=True)
class Audit:
    """The outcome of checking a history: broken promises, opened tenures and committed batches."""

    violations: tuple[Violation, ...] = ()
    tenures: int = 0
    batches: int = 0


def prove_shard(history: ShardHistory, seen: Callable[[Batch], None] = lambda _: None) -> Audit:
    """Check all rules for a single shard; `seen` gets each committed batch."""
    journal = history_proof.JournalProof(history.summary)
    for entry in history.journal:
        journal.take(entry)
    journal.end(history.lease)
    ledger = history_proof.LedgerProof(history.summary, journal, history.gaps)
    for batch in history.batches:
        if batch.state is BatchState.COMMITTED:
            ledger.take(batch)
            seen(batch)
        elif batch.state is BatchState.WITHDRAWN:
            ledger.take_withdrawn(batch)
    ledger.end(history.lease if history.settled else None)
    summary = history.summary
    before = [Violation(rule, summary.shard, how) for rule, how in summary.violations]
    violations = dict.fromkeys(before + journal.violations + ledger.violations)
    return Audit(tuple(violations), journal.opened, ledger.committed)


def verify(store: GroupsAndLedger, key: GroupKey) -> list[Violation]:
    """Return the promises that a group's history breaks; an empty list is the proof."""
    return list(audit(store, key).violations)


def audit(store: GroupsAndLedger, key: GroupKey, *, progress: Report = lambda *_: None) -> Audit:
    """Read and check the history of a group, from the summaries of deleted rows on.

    A shard whose ledger changes during five readings in a row is checked by its journal alone.
    `progress` gets the numbers of ledger rows read so far, and in total.
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
    # A summary can already have the shard's early start.
    summed = {violation.shard for violation in violations if violation.rule == "order"}
    violations += [each for each in _read_order(store, key, snapshot) if each.shard not in summed]
    if suspects := paths.doubled():
        violations += history_proof.doubled_files(store.each_batch(key), suspects)
    return Audit(tuple(violations), tenures, batches)


def _read_shard(
    store: Ledger, key: GroupKey, lease: ShardLease, read: Callable[[], None]
) -> tuple[Audit, history_proof.PathLedger]:
    for _ in range(READINGS_MAX):
        paths = history_proof.PathLedger()
        head = _head(store, key, lease)
        numbers = range(head.next_number)
        summary = _summary(store, key, lease.shard)
        proof = prove_shard(
            ShardHistory(
                summary,
                replace(lease, check_point=head.check_point),
                store.each_entry(key, shard=lease.shard),
                _counted(store.each_batch(key, lease.shard, None, numbers=numbers), read),
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


def _counted(batches: Iterable[Batch], read: Callable[[], None]) -> Iterator[Batch]:
    for batch in batches:
        read()
        yield batch


def _summary(store: Ledger, key: GroupKey, shard: ShardId) -> ShardSummary:
    return next(iter(store.summaries(key, shard)), ShardSummary(shard))


def _head(store: Ledger, key: GroupKey, lease: ShardLease) -> LedgerHead:
    return store.heads(key, [lease.shard])[lease.shard]


def _read_order(store: Ledger, key: GroupKey, snapshot: Snapshot) -> list[Violation]:
    """Check the order of shards, if any has parents, by the whole journal.

    Entries of overlapping transactions can become visible in another order than their numbers, so
    an entry can be missing from its page. After a violation, the journal is read once more up to
    the same entry; by then these transactions have ended.
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
