"""Deleting history: the rows that are deleted and kept, and a proof that continues after them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from dagster_leasehold.lease_store.errors import CheckpointRefused, UnknownGroup
from dagster_leasehold.lease_store.journal_rows import EventKind, Gap
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchRewrite,
    BatchState,
    BatchStatistics,
    DataFile,
    RewriteKind,
)
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.pruning import PruneRound, prune
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.shard_rows import ShardListing, Tenure
from dagster_leasehold.lease_store.shard_summary import Portion, ShardSummary
from tests.conformance.world import NOON, A, B, World, X, Y, Z

FAR = datetime(2200, 1, 1, tzinfo=UTC)
LONG_AGO = datetime(1999, 1, 1, tzinfo=UTC)


def consumed(world: World, batches: int, *, per_tenure: int = 1) -> None:
    """Shard x with committed batches `[n, n + 1)` in tenures of some batches each, all closed."""
    world.group()
    world.join(A, B)
    world.add(X)
    world.claim(A, X)
    for first in range(0, batches, per_tenure):
        tenure = world.open(A, X, f"run-{first}").tenure
        for number in range(first, first + per_tenure):
            files = (DataFile(f"old/{number}", 4, 50),)
            world.consume(tenure, str(number), str(number + 1), number, files=files)
        world.store.close_tenure(tenure, reason="done")
    deliver(world)


def deliver(world: World) -> None:
    for kind in EventKind:
        events = world.store.pending_events(world.key, kind=kind)
        world.store.mark_delivered(world.key, [event.sequence for event in events])


def merge(world: World, first: int, last: int) -> None:
    """Put the output of some batches into one file of the first, as compaction does."""
    run = f"compaction-{first}-{last}-{len(world.journal())}"
    assert isinstance(world.store.claim_rewrite(world.key, X, run, RewriteKind.COMPACTION), Changed)
    rows = [row for row in ledger(world) if first <= row.sequence <= last]
    file = DataFile(f"merged/{run}", 4 * len(rows), 200, batches=len(rows))
    rewrites = [
        BatchRewrite(
            row.sequence, row.generation, (file,) if row is rows[0] else (), row.statistics
        )
        for row in rows
    ]
    outcome = world.store.rewrite_batches(world.key, X, run, rewrites, reason="merged")
    assert isinstance(outcome, Changed)
    world.store.release_rewrite(world.key, X, run)


def ledger(world: World, state: BatchState | None = BatchState.COMMITTED) -> list[Batch]:
    return world.store.batches(world.key, X, state)


def prune_all(world: World, *, before: datetime = FAR, keep: int = 1) -> int:
    """All portions of all verbs; the number of rows that went."""
    store, key, gone = world.store, world.key, 0
    for shard in (lease.shard for lease in store.snapshot(key).shards):
        for verb in (store.prune_batches, store.prune_journal):
            portion = Portion(more=True)
            while portion.more:
                portion = verb(key, shard, before=before, keep=keep)
                gone += portion.rows
    gone += store.prune_journal(key, None, before=before, keep=keep).rows
    gone += store.prune_outbox(key, before=before, keep=keep).rows
    while portion.more or (portion := store.prune_gaps(key, before=before)).rows:
        gone += portion.rows
    return gone


def summary(world: World) -> ShardSummary:
    return next(each for each in world.store.summaries(world.key) if each.shard == X)


def test_old_journal_entries_are_deleted_except_rare_ones(world: World) -> None:
    consumed(world, 5)
    world.store.force_checkpoint(world.key, X, "5", observer="ops", reason="none")
    before = world.journal()
    assert prune_all(world) > 0
    left = world.journal(X)
    assert [entry.kind for entry in left] == ["edge", "open", "close", "force"]
    assert left[0].from_state is None, "its first sight"
    assert left[1].epoch == 5, "the newest batch is never folded, and its tenure stays for it"
    shard_summary = summary(world)
    assert shard_summary.epoch == 4
    assert shard_summary.opening is not None
    assert (shard_summary.opening.run, shard_summary.opening.epoch, shard_summary.open) == (
        "run-3",
        4,
        False,
    )
    of_shard = [entry for entry in before if entry.shard == X]
    assert sum(shard_summary.entries.values()) == len(of_shard) - len(left)
    assert shard_summary.entries == {"edge 3": 1, "open": 4, "close": 4}
    assert verify(world.store, world.key) == []
    assert prune_all(world) == 0, "nothing is left to do"
    tenure = world.open(A, X, "run-next").tenure
    assert tenure.epoch == 7
    world.consume(tenure, "5", "9", 5)
    assert verify(world.store, world.key) == [], "the proof continues from the summary"


def test_young_and_newest_journal_entries_stay(world: World) -> None:
    consumed(world, 5)
    entries = world.journal()
    assert prune_all(world, before=LONG_AGO) == 0
    assert prune_all(world, keep=100) == 0
    assert world.journal() == entries
    assert world.store.summaries(world.key) == []
    assert prune_all(world, keep=3) > 0
    assert world.journal(X)[-3:] == [entry for entry in entries if entry.shard == X][-3:]


def test_entries_of_a_tenure_stay_until_its_batches_are_verified(world: World) -> None:
    consumed(world, 6, per_tenure=2)
    world.store.prune_journal(world.key, X, before=FAR, keep=1)
    opened = [entry.epoch for entry in world.journal(X) if entry.kind == "open"]
    assert opened == [1, 2, 3], "no batch is proven yet"
    portion = world.store.prune_batches(world.key, X, before=FAR, keep=3)
    assert portion == Portion(0, more=True)
    assert summary(world).proven_until == 3, "batches 0 to 2 are; 3 and what follows is kept"
    world.store.prune_journal(world.key, X, before=FAR, keep=1)
    assert [entry.epoch for entry in world.journal(X) if entry.kind == "open"] == [2, 3]
    assert verify(world.store, world.key) == []


def test_the_summary_contains_the_open_tenure(world: World) -> None:
    world.group()
    world.join(A, B)
    world.add(X)
    (tenure,) = world.hold(A, X)
    world.store.save_checkpoint(tenure, "7")
    world.transfer(X, B)
    prune_all(world)
    assert world.kinds(X) == ["edge", "edge"], "its first sight, and the newest entry"
    shard_summary = summary(world)
    assert (shard_summary.opening and shard_summary.opening.run, shard_summary.open) == (
        "run-1",
        True,
    )
    assert verify(world.store, world.key) == []
    world.store.close_tenure(tenure, reason="handed over")
    prune_all(world)
    assert verify(world.store, world.key) == []
    assert not summary(world).open
    assert world.open(B, X, "run-2").tenure.epoch == 2
    assert verify(world.store, world.key) == []


def test_merged_batches_become_one_row(world: World) -> None:
    consumed(world, 8)
    totals = total(world)
    assert world.store.ledger_rows(world.key) == 8
    merge(world, 0, 5)
    prune_all(world)
    assert world.store.ledger_rows(world.key) == 3
    rows = ledger(world)
    assert [(row.sequence, row.last, row.batches) for row in rows] == [
        (0, 5, 6),
        (6, 6, 1),
        (7, 7, 1),
    ]
    first = rows[0]
    assert (first.start, first.end, first.epoch, first.last_epoch) == ("0", "6", 1, 6)
    assert (first.run, first.committed_at) == ("run-0", first.committed_at)
    assert [file.batches for file in first.files] == [6], "batches, however few rows they are"
    assert total(world) == totals
    assert verify(world.store, world.key) == []
    opened = world.open(A, X, "run-next")
    assert (opened.next_sequence, opened.check_point) == (8, "8")
    world.consume(opened.tenure, "8", "9", 8)
    assert verify(world.store, world.key) == []


def total(world: World) -> tuple[int, ...]:
    rows = [row.statistics for row in ledger(world)]
    return (
        sum(row.batches for row in ledger(world)),
        sum(row.records or 0 for row in rows),
        sum(row.bytes or 0 for row in rows),
        sum(row.written for row in rows),
        sum(row.quarantined for row in rows),
    )


def test_the_newest_rows_are_not_merged(world: World) -> None:
    consumed(world, 6)
    merge(world, 0, 5)
    prune_all(world, keep=2)
    assert [(row.sequence, row.last) for row in ledger(world)] == [(0, 3), (4, 4), (5, 5)]
    (file,) = ledger(world)[0].files
    assert file.batches == 6, "four of the row itself, and two that still stand beside it"
    assert verify(world.store, world.key) == []
    prune_all(world)
    assert [(row.sequence, row.last) for row in ledger(world)] == [(0, 4), (5, 5)]
    assert verify(world.store, world.key) == []


def test_batches_without_output_are_merged(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    for number in range(6):
        files = (DataFile("some", 1, 2),) if number in (1, 4) else ()
        empty = BatchStatistics(1, 2, len(files))
        world.consume(tenure, str(number), str(number + 1), number, files=files, statistics=empty)
    deliver(world)
    # Two files of one name would be a violation of its own.
    merge(world, 4, 4)
    prune_all(world)
    assert [(row.sequence, row.last) for row in ledger(world)] == [(0, 0), (1, 3), (4, 4), (5, 5)]
    assert verify(world.store, world.key) == []


def test_rewritten_rows_are_checked_for_merging_again(world: World) -> None:
    consumed(world, 8)
    merge(world, 0, 2)
    prune_all(world)
    assert summary(world).folded_until == 6
    merge(world, 0, 6)
    assert summary(world).folded_until == 0
    prune_all(world)
    assert [(row.sequence, row.last, row.batches) for row in ledger(world)] == [
        (0, 6, 7),
        (7, 7, 1),
    ]
    assert verify(world.store, world.key) == []


def test_claimed_and_unreported_rows_are_not_merged(world: World) -> None:
    consumed(world, 4)
    tenure = world.open(A, X, "run-last").tenure
    world.consume(tenure, "4", "5", 4, files=())
    world.consume(tenure, "5", "6", 5)
    claim = world.store.claim_rewrite(world.key, X, "replay-1", RewriteKind.REPLAY)
    assert claim == Changed((X,))
    prune_all(world)
    assert len(ledger(world)) == 6
    world.store.release_rewrite(world.key, X, "replay-1")
    prune_all(world)
    assert len(ledger(world)) == 6, "batch 4 has an event to deliver"
    deliver(world)
    world.store.force_checkpoint(world.key, X, "6", observer="ops", reason="none")
    merge(world, 3, 4)
    prune_all(world)
    assert [(row.sequence, row.last) for row in ledger(world)][-2:] == [(3, 4), (5, 5)]


def test_rows_on_both_sides_of_a_gap_are_not_merged(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    world.consume(tenure, "0", "1")
    world.store.record_gap(tenure, start="1", end="4", reason="trimmed", skip=True)
    world.consume(tenure, "4", "5", 1, files=())
    world.consume(tenure, "5", "6", 2, files=())
    world.consume(tenure, "6", "7", 3)
    deliver(world)
    prune_all(world)
    assert [(row.start, row.end) for row in ledger(world)] == [("0", "1"), ("4", "6"), ("6", "7")]
    assert len(world.store.gaps(world.key)) == 1, "nobody has accepted it"
    gap = world.store.gaps(world.key)[0]
    world.store.acknowledge_gap(world.key, gap, observer="ops")
    assert world.store.prune_gaps(world.key, before=LONG_AGO) == Portion()
    prune_all(world)
    assert world.store.gaps(world.key) == []
    assert summary(world).skips == (("1", "4"),)
    assert verify(world.store, world.key) == []


def test_a_gap_that_holds_its_shard_is_not_deleted(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    world.consume(tenure, "0", "1")
    world.store.record_gap(tenure, start="1", end="4", reason="trimmed", skip=False)
    world.store.acknowledge_gap(world.key, Gap(X, "1", "4", "", NOON), observer="ops")
    assert world.store.prune_gaps(world.key, before=FAR) == Portion()
    assert len(world.store.gaps(world.key)) == 1


def test_abandoned_and_withdrawn_rows_are_deleted(world: World) -> None:
    consumed(world, 4)
    world.store.force_checkpoint(world.key, X, "2", observer="ops", reason="again")
    tenure = world.open(A, X, "run-again").tenure
    world.intend(tenure, "2", "3", 4)
    world.store.force_checkpoint(world.key, X, "2", observer="ops", reason="and again")
    tenure = world.open(A, X, "run-once-more").tenure
    for number in (2, 3, 4):
        world.consume(tenure, str(number), str(number + 1), number + 3)
    deliver(world)
    states = [row.state for row in ledger(world, None)]
    assert BatchState.WITHDRAWN in states
    assert BatchState.ABANDONED in states
    assert world.store.ledger_rows(world.key) == len(states) - states.count(BatchState.ABANDONED)
    prune_all(world)
    assert world.store.ledger_rows(world.key) == 5
    assert [(row.sequence, row.state) for row in ledger(world, None)] == [
        (number, BatchState.COMMITTED) for number in (0, 1, 5, 6, 7)
    ]
    assert verify(world.store, world.key) == []


def test_a_forced_checkpoint_cannot_divide_a_merged_row(world: World) -> None:
    consumed(world, 8)
    merge(world, 1, 4)
    prune_all(world)
    with pytest.raises(CheckpointRefused):
        world.store.force_checkpoint(world.key, X, "3", observer="ops", reason="inside")
    world.store.force_checkpoint(world.key, X, "1", observer="ops", reason="before it")
    withdrawn = ledger(world, BatchState.WITHDRAWN)
    assert [(row.sequence, row.last) for row in withdrawn] == [(1, 4), (5, 5), (6, 6), (7, 7)]
    assert verify(world.store, world.key) == []
    tenure = world.open(A, X, "run-again").tenure
    for number in (1, 2, 3):
        world.consume(tenure, str(number), str(number + 1), number + 7)
    deliver(world)
    prune_all(world)
    assert [row.sequence for row in ledger(world, None)] == [0, 8, 9, 10]
    assert verify(world.store, world.key) == []


def test_only_delivered_events_are_deleted(world: World) -> None:
    consumed(world, 4)
    tenure = world.open(A, X, "run-last").tenure
    world.consume(tenure, "4", "5", 4)
    pending = world.store.pending_events(world.key)
    assert len(pending) == 1
    world.store.prune_outbox(world.key, before=LONG_AGO, keep=1)
    world.store.prune_outbox(world.key, before=FAR, keep=1)
    assert world.store.prune_outbox(world.key, before=FAR, keep=1) == Portion()
    assert world.store.pending_events(world.key) == pending


def test_the_summary_keeps_a_child_that_started_too_early(world: World) -> None:
    """Its claim and its opening are deleted, and with them the evidence."""
    world.group(ordered=False)
    world.join(A)
    world.add(X, ShardListing(Y, parents=(X,)))
    world.claim(A, Y)
    world.store.close_tenure(world.open(A, Y).tenure, reason="done")
    group = world.store.pulse(world.key).group
    world.store.update_group(replace(group, ordered=True), observer="ops")
    assert verify(world.store, world.key) == [], "what ran before continues"
    prune_all(world)
    assert verify(world.store, world.key) == []


def test_a_round_covers_every_shard_and_counts_from_the_newest_rows(world: World) -> None:
    consumed(world, 3)
    month = timedelta(days=30)
    assert prune(world.store, world.key, month).rows.total() == 0, "all of it is of this minute"
    assert not PruneRound(world.store, world.key, month).over
    with pytest.raises(UnknownGroup):
        prune(world.store, replace(world.key, group="unknown"), month)  # type: ignore[arg-type]


def test_a_failing_shard_does_not_stop_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumed(world, 3)
    world.add(Z)
    original = world.store.prune_batches

    def failing(key: object, shard: object, **options: object) -> Portion:
        if shard == X:
            raise RuntimeError("nobody foresaw this")
        return original(key, shard, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(world.store, "prune_batches", failing)
    seen: list[object] = []
    journal = world.store.prune_journal
    monkeypatch.setattr(
        world.store, "prune_journal", lambda k, s, **o: (seen.append(s), journal(k, s, **o))[1]
    )
    report = prune(world.store, world.key, timedelta(days=1))
    assert seen == [X, Z, None]
    assert len(report.failures) == 1
    assert "of shard x of" in report.failures[0]
    assert "nobody foresaw this" in report.failures[0]


def test_a_dead_tenure_is_not_needed(world: World) -> None:
    """A tenure that committed nothing goes with all its entries."""
    world.group()
    world.join(A)
    world.add(X)
    world.claim(A, X)
    for number in range(4):
        tenure: Tenure = world.open(A, X, f"run-{number}").tenure
        world.store.close_tenure(tenure, reason="nothing to read")
    prune_all(world)
    assert world.kinds(X) == ["edge", "close"]
    assert verify(world.store, world.key) == []


def test_a_merged_file_has_the_same_batches_before_and_after_its_rows_are_merged(
    world: World,
) -> None:
    """The row of the file includes no others, because a gap follows it; later rows do."""
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    world.consume(tenure, "0", "1", files=(DataFile("old/0", 4, 50),))
    world.store.record_gap(tenure, start="1", end="4", reason="trimmed", skip=True)
    for number in (1, 2, 3, 4):
        files = (DataFile(f"old/{number}", 4, 50),)
        world.consume(tenure, str(number + 3), str(number + 4), number, files=files)
    deliver(world)
    merge(world, 0, 2)
    prune_all(world)
    rows = ledger(world)
    assert [(row.sequence, row.last) for row in rows] == [(0, 0), (1, 2), (3, 3), (4, 4)]
    assert verify(world.store, world.key) == []
    with pytest.raises(CheckpointRefused, match=r"batches x\.0 and x\.1"):
        world.store.force_checkpoint(world.key, X, "4", observer="ops", reason="inside its file")
    world.store.force_checkpoint(world.key, X, "6", observer="ops", reason="behind its file")
    assert [(row.sequence, row.last) for row in ledger(world)] == [(0, 0), (1, 2)]


def test_merging_rows_raises_the_version_and_keeps_the_next_number(world: World) -> None:
    consumed(world, 6)
    merge(world, 0, 4)
    before = world.store.heads(world.key)[X]
    prune_all(world)
    after = world.store.heads(world.key)[X]
    assert after.version > before.version, "whoever is reading in pages has to look again"
    assert replace(after, version=before.version) == before
    assert prune_all(world) == 0
    assert world.store.heads(world.key)[X] == after


def test_reading_batches_from_a_number_starts_with_the_row_that_contains_it(world: World) -> None:
    consumed(world, 8)
    merge(world, 1, 4)
    prune_all(world)
    for number, first in ((0, 0), (1, 1), (3, 1), (4, 1), (5, 5), (8, None)):
        rows = list(world.store.batches_since(world.key, {X: number}))
        assert [row.sequence for row in rows][:1] == ([] if first is None else [first]), number
        assert rows == [row for row in ledger(world) if row.last >= number]


def test_an_empty_range_of_numbers_reads_no_row(world: World) -> None:
    consumed(world, 3)
    assert list(world.store.each_batch(world.key, X, numbers=range(0))) == []
