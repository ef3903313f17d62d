"""Compaction that continues where the last one ended, beside live consumption."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import log2
from pathlib import Path

import pytest

from dagster_leasehold.assets.output.units import Unit, units
from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.assets.rewriting.continued_compaction import (
    ContinuedCompaction,
    ContinuedReport,
)
from dagster_leasehold.assets.rewriting.merges import MERGED_ROWS_MAX, UNIT_ROWS_MAX, next_merges
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchState,
    Compacted,
    DataFile,
    RewriteKind,
)
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.rules.withdrawal import NUMBERS_END
from tests.conformance.published import publish_batches
from tests.unit.assets.consumption_world import NODE, World

ZERO = ShardId("0")
HOUR = timedelta(hours=1)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Scene(World):
    """One shard whose batches hold a record each, and a clock that a test moves."""

    def __post_init__(self) -> None:
        self.shards, self.records, self.records_max = 1, 0, 1
        self.now = NOON
        self.runs = 0
        super().__post_init__()
        self.store._clock = lambda: self.now

    def go_on(self, batches: int, every: timedelta = timedelta(seconds=10)) -> None:
        """Append records, and commit each as a separate batch."""
        for _ in range(batches):
            self.now += every
            self.append(ZERO, 1)
            self.runs += 1
            self.consume(f"run-{self.runs}")

    def compact(
        self,
        *,
        target_bytes: int = 1 << 30,
        age: timedelta = timedelta(0),
        stopped: Callable[[ShardId], str] = lambda _: "",
        old_until: int = 0,
    ) -> ContinuedReport:
        self.runs += 1
        run = f"compact-{self.runs}"
        compactor = Compactor(
            store=self.store,
            key=self.key,
            output_root=self.place,
            run=run,
            target_bytes=target_bytes,
        )
        continued = ContinuedCompaction(compactor, age, {ZERO: old_until}, stopped)
        return continued.compact([ZERO])

    @property
    def progress(self) -> Compacted:
        return self.store.compacted(self.key)[ZERO]

    def sizes(self) -> list[int]:
        return [file.bytes for batch in self.store.batches(self.key, ZERO) for file in batch.files]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_small_files_are_merged_and_later_ones_are_added(scene: Scene) -> None:
    scene.go_on(6)
    report = scene.compact().reports[ZERO]
    assert (report.files_before, report.files_after, report.batches) == (6, 1, 6)
    assert scene.progress == Compacted(0, 6)
    scene.go_on(9)
    assert scene.compact().reports[ZERO].error == ""
    assert len(scene.sizes()) == 1
    assert scene.committed(ZERO) == scene.expected("0", 15)
    assert verify(scene.store, scene.key) == []
    assert scene.store.rewrites(scene.key) == []


def test_unpublished_batches_are_compacted_later(scene: Scene) -> None:
    scene.go_on(6)
    publisher = publish_batches(scene.store, scene.key, NODE, ZERO, 4)
    assert scene.compact().reports[ZERO].batches == 4
    assert scene.progress == Compacted(0, 4)
    publisher.publish()
    assert scene.compact().reports[ZERO].batches == 6
    assert len(scene.sizes()) == 1


def test_files_that_reached_the_target_are_not_read_again(scene: Scene) -> None:
    """Goal: the ledger is read from the first file that can still grow, for any length."""
    scene.go_on(6)
    target = 2 * max(scene.sizes()) + 100
    scene.compact(target_bytes=target)
    assert len(scene.sizes()) == 2
    assert scene.progress == Compacted(0, 6), "as one file they might be smaller"
    scene.compact(target_bytes=target)
    assert scene.progress == Compacted(6, 6)
    scene.go_on(3)
    report = scene.compact(target_bytes=10 * target).reports[ZERO]
    assert (report.files_before, report.batches) == (3, 3)
    assert scene.progress == Compacted(6, 9)
    assert scene.committed(ZERO) == scene.expected("0", 9)


def test_files_that_shrink_when_merged_are_merged_further(scene: Scene) -> None:
    """Goal: the fixed overhead of each small file does not count for the size of the whole.

    Method: files of one record, which are nearly all head and foot, and a target of eight of them.
    """
    target = 16_000
    for _ in range(8):
        scene.go_on(8)
        scene.compact(target_bytes=target)
    assert len(scene.sizes()) <= 2
    assert sum(scene.sizes()) < target / 2
    assert scene.committed(ZERO) == scene.expected("0", 64)


def test_young_batches_are_not_compacted(scene: Scene) -> None:
    """Goal: a forced checkpoint may still go back to each of them."""
    scene.go_on(4)
    scene.now += HOUR
    scene.go_on(3)
    scene.compact(age=HOUR)
    assert scene.progress == Compacted(0, 4)
    assert [len(batch.files) for batch in scene.store.batches(scene.key, ZERO)] == [
        *(1, 0, 0, 0),
        *(1, 1, 1),
    ]
    scene.compact(age=HOUR, old_until=6)
    assert scene.progress == Compacted(0, 6), "somebody knows that these are old"
    scene.compact(age=HOUR, old_until=NUMBERS_END)
    assert scene.progress == Compacted(0, 7), "a shard that is over gets no younger ones"
    assert scene.committed(ZERO) == scene.expected("0", 7)


def test_a_shard_without_old_batches_is_not_touched(scene: Scene) -> None:
    assert scene.compact().reports[ZERO].files_after == 0
    scene.go_on(2)
    scene.compact(age=HOUR)
    assert scene.store.compacted(scene.key) == {}
    assert len(scene.sizes()) == 2


def test_a_merged_file_that_reaches_into_young_batches_waits_with_them(scene: Scene) -> None:
    """Method: a compaction by hand takes young batches, too."""
    scene.go_on(2)
    scene.now += HOUR
    scene.go_on(2)
    Compactor(store=scene.store, key=scene.key, output_root=scene.place, run="by-hand").compact(
        [ZERO]
    )
    scene.go_on(1)
    scene.compact(age=HOUR)
    assert scene.store.compacted(scene.key) == {}
    scene.compact()
    assert scene.progress == Compacted(0, 5)
    assert scene.committed(ZERO) == scene.expected("0", 5)


def test_a_lagging_shard_is_skipped_with_a_reason(scene: Scene) -> None:
    scene.go_on(3)
    done = scene.compact(stopped=lambda _: "its consumption lags")
    assert done.postponed == {ZERO: "its consumption lags"}
    assert done.reports == {}
    assert len(scene.sizes()) == 3


def test_a_compaction_works_in_portions_and_yields_between_them(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: portions of four rows; the reason to stop comes after the first one."""
    module = "dagster_leasehold.assets.rewriting.continued_compaction"
    monkeypatch.setattr(f"{module}.MERGED_ROWS_MAX", 4)
    scene.go_on(10)
    answers = iter(["", "this run has worked for 120 s"])
    done = scene.compact(stopped=lambda _: next(answers))
    assert scene.progress == Compacted(0, 4)
    assert done.postponed == {ZERO: "this run has worked for 120 s"}
    whole = scene.compact()
    assert whole.postponed == {}
    assert scene.progress.examined_until == 10
    assert len(scene.sizes()) == 1
    assert scene.committed(ZERO) == scene.expected("0", 10)


def test_batches_without_output_do_not_delay_a_compaction(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: more of them than a portion has, after a file that could still grow."""
    module = "dagster_leasehold.assets.rewriting.continued_compaction"
    monkeypatch.setattr(f"{module}.MERGED_ROWS_MAX", 4)
    scene.go_on(1)
    scene.sweeper.keeps = lambda rows: rows.slice(0, 0)
    scene.go_on(9)
    scene.sweeper.keeps = lambda rows: rows
    scene.go_on(4)
    scene.compact()
    assert scene.progress.examined_until == 14
    assert len(scene.sizes()) == 2
    assert scene.committed(ZERO) == [*scene.expected("0", 1), *scene.expected("0", 14)[10:]]


def test_a_commit_during_a_compaction_is_left_to_the_next_one(scene: Scene) -> None:
    """Method: a batch is committed at each question whether to continue."""
    scene.go_on(5)

    def stopped(_: ShardId) -> str:
        scene.go_on(1)
        return ""

    scene.compact(stopped=stopped)
    scene.go_on(2)
    scene.compact(stopped=stopped)
    assert scene.committed(ZERO) == scene.expected("0", 9)
    assert verify(scene.store, scene.key) == []


def test_a_checkpoint_forced_back_during_a_compaction_wins(scene: Scene) -> None:
    """Goal: batches that were withdrawn after the files were written are not swapped."""
    scene.go_on(6)
    force = scene.store.force_checkpoint

    def interrupted(*given: object, **named: object) -> object:
        scene.store.rewrite_batches = swap
        force(scene.key, ZERO, "3", observer="test", reason="a bug")
        return swap(*given, **named)

    swap = scene.store.rewrite_batches
    scene.store.rewrite_batches = interrupted
    assert "changed while its files were merged" in scene.compact().reports[ZERO].error
    assert scene.store.rewrites(scene.key) == []
    scene.runs += 1
    scene.consume(f"run-{scene.runs}")
    scene.go_on(2)
    assert scene.compact().reports[ZERO].error == ""
    assert scene.committed(ZERO) == scene.expected("0", 8)
    assert verify(scene.store, scene.key) == []


def test_the_rows_of_a_merged_file_are_not_written_again(scene: Scene) -> None:
    """Goal: a swap writes only changed rows; a year of small batches does not make it longer."""
    scene.go_on(6)
    scene.compact()
    scene.go_on(6)
    scene.compact()
    generations = [batch.generation for batch in scene.store.batches(scene.key, ZERO)]
    assert generations == [2, *[1] * 11]


def test_another_run_that_rewrites_the_shard_is_named(scene: Scene) -> None:
    scene.go_on(3)
    scene.store.claim_rewrite(scene.key, ZERO, "other", RewriteKind.REPLAY)
    assert "Run other is replaying shard 0" in scene.compact().reports[ZERO].error


# -- the pure rule --------------------------------------------------------------------------------


def row(number: int, size: int, batches: int = 1) -> Batch:
    files = (DataFile(f"{number}", 1, size, False, batches),)
    holder = NodeName("a")
    start, end, state = str(number), str(number + 1), BatchState.COMMITTED
    return Batch(ZERO, number, start, end, state, 1, "run", holder, "at", 0, files)


def merged(ledger: Sequence[Batch], merge: Sequence[Unit]) -> list[Batch]:
    """The ledger with some of its units in one file."""
    rows = [each for unit in merge for each in unit]
    size = sum(file.bytes for each in rows for file in each.files)
    first, last = rows[0].sequence, rows[-1].sequence
    return [
        each
        if not first <= each.sequence <= last
        else replace(
            each, files=row(first, size, len(rows)).files if each.sequence == first else ()
        )
        for each in ledger
    ]


def test_a_day_of_small_files_is_copied_a_few_times_and_ends_as_few_files() -> None:
    """Method: 8,640 batches of 7 kB, as of a shard with 40 records/s; a compaction each half hour.

    Goal: the files reach at least half the target, the others are no more than the logarithm of the
    number of compactions, and no record is copied more often than that.
    """
    target, every, size = 32 << 20, 180, 7_000
    ledger: list[Batch] = []
    until, copied = 0, 0
    for number in range(8_640):
        ledger.append(row(number, size))
        if len(ledger) % every:
            continue
        plan = next_merges(units(ledger[until:]), target_bytes=target)
        for merge in plan.merges:
            copied += sum(file.bytes for unit in merge for each in unit for file in each.files)
            assert len(merge) <= MERGED_ROWS_MAX
            ledger = merged(ledger, merge)
        until = plan.until
    sizes = [file.bytes for each in ledger for file in each.files]
    compactions = 8_640 // every
    assert sum(sizes) == 8_640 * size
    closed = [each for each in sizes if each >= target / 2]
    assert sum(closed) >= sum(sizes) / 2
    assert len(sizes) - len(closed) <= log2(compactions)
    assert copied <= log2(compactions) * sum(sizes)


def test_a_small_file_of_very_many_batches_is_not_merged_further() -> None:
    """Goal: its rows are not read again for ever."""
    many = [row(0, 10, UNIT_ROWS_MAX)]
    many += [replace(row(number, 0), files=()) for number in range(1, UNIT_ROWS_MAX)]
    later = [row(UNIT_ROWS_MAX + number, 100) for number in range(3)]
    plan = next_merges(units([*many, *later]), target_bytes=1 << 20)
    assert plan.until == UNIT_ROWS_MAX
    assert [len(merge) for merge in plan.merges] == [3]


def test_a_compaction_without_work_changes_nothing() -> None:
    assert next_merges([], target_bytes=1).until == 0
    alone = next_merges(units([row(0, 10)]), target_bytes=100)
    assert (alone.merges, alone.until) == ([], 0)
