"""A proof continues from an earlier one, and reads rows that change meanwhile again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchState,
    DataFile,
    LedgerHead,
    RewriteKind,
)
from dagster_leasehold.lease_store.rules.history_proof import PathLedger, doubled_files
from dagster_leasehold.lease_store.rules.verification import ShardHistory, audit, prove_shard
from dagster_leasehold.lease_store.shard_summary import End, Expired, Opening, ShardSummary
from tests.unit.lease_store.rules.test_verification import KEY, PARENT, true_history, true_store


def ended(cursor: str) -> Expired:
    """The first two batches of the parent were forgotten."""
    return Expired(End(1, cursor, 1), 2, 20, None, None)


def cut(entries: int, batches: int, summary: ShardSummary) -> list[str]:
    """The violations of a true history without its first entries and batches."""
    history = true_history()
    shard = summary.shard
    own = [entry for entry in history.journal if entry.shard == shard]
    rows = [batch for batch in history.batches if batch.shard == shard]
    (lease,) = [lease for lease in history.shards if lease.shard == shard]
    rest = ShardHistory(summary, lease, own[entries:], rows[batches:], history.gaps)
    return [violation.rule for violation in prove_shard(rest).violations]


def test_a_summary_replaces_the_entries_that_it_covers() -> None:
    history = true_history()
    entries = [entry for entry in history.journal if entry.shard == PARENT]
    second = [place for place, entry in enumerate(entries) if entry.kind == "open"][1]
    assert cut(second, 2, ShardSummary(PARENT)) == [], "nothing says what came before"
    summary = ShardSummary(PARENT, epoch=1, expired=ended("20"))
    assert cut(second, 2, summary) == []
    assert cut(second, 2, replace(summary, expired=ended("19"))) == ["ledger"]
    assert cut(second, 2, replace(summary, epoch=2)) == ["epoch"]
    still_open = replace(summary, opening=Opening(1, 1, "run-1", None), open=True)
    assert cut(second, 2, still_open) == ["overlap"]


def test_remaining_batches_can_name_covered_tenures() -> None:
    summary = ShardSummary(PARENT, epoch=2, expired=ended("20"))
    entries = [entry for entry in true_history().journal if entry.shard == PARENT]
    opened = [entry for entry in entries if entry.kind == "open"][1]
    assert "fence" in cut(len(entries), 2, summary)
    opening = Opening(opened.sequence, 2, "run-2", opened.to_owner)
    assert cut(len(entries), 2, replace(summary, opening=opening)) == []


def test_rows_that_change_during_the_proof_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A swap right after the shard's ledger was read, once: the second reading counts."""
    store = true_store()
    store.claim_rewrite(KEY, PARENT, "rewriter", RewriteKind.REPLAY)
    original, readings = store.heads, list[int]()

    def swapping(*args: object, **fields: object) -> dict[ShardId, LedgerHead]:
        heads = original(*args, **fields)
        if PARENT in heads:
            readings.append(heads[PARENT].version)
            if len(readings) == 1:
                counters = store._groups[KEY].counters
                counters[PARENT] = replace(counters[PARENT], version=1)
        return heads

    monkeypatch.setattr(store, "heads", swapping)
    outcome = audit(store, KEY)
    assert (outcome.violations, outcome.batches) == ((), 8)
    assert readings == [0, 1, 1, 1]


def test_progress_counts_ledger_rows_up_to_all_of_them() -> None:
    reports: list[tuple[int, int | None]] = []
    audit(true_store(), KEY, progress=lambda *seen: reports.append(seen))
    assert reports == [(row, 9) for row in range(1, 10)], "a withdrawn batch has a row, too"


def test_paths_are_compared_without_storing_them() -> None:
    def batch(number: int, *paths: str) -> Batch:
        files = tuple(DataFile(path, 1, 1) for path in paths)
        (first, *_) = true_history().batches
        return replace(first, sequence=number, files=files, state=BatchState.COMMITTED)

    rows = [batch(0, "a", "a"), batch(1, "b"), batch(2, "c"), batch(3, "b")]
    ledger = PathLedger()
    for row in rows:
        other = PathLedger()
        other.take(row)
        ledger.join(other)
    assert ledger.doubled() == {hash("b")}
    details = [violation.detail for violation in doubled_files(rows, ledger.doubled())]
    assert details == ["b is listed by 0.1 and by 0.3"]
