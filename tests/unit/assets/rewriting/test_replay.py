"""Replay on the model store and a real local log, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from dagster_leasehold.assets.consuming.sweep import SweepOutcome, SweepResult
from dagster_leasehold.assets.errors import RewriteRefused, TransformError
from dagster_leasehold.assets.output.units import units
from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.rewriting.replay import Replayer, ReplayReport
from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan
from dagster_leasehold.lease_store.errors import CursorExpired
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, RewriteKind
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.publication_rows import ChangeKind
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.shard_sources.source import ReadRange
from tests.conformance.published import publish_batches
from tests.ledger_output import ledger_of, ledger_paths, ledger_records
from tests.unit.assets.consumption_world import NODE, ArrowSweeper, World

ZERO, ONE = ShardId("0"), ShardId("1")
ALL = ReplaySpan()
MARK = 1_000


class TodaysSweeper(ArrowSweeper):
    """Today's transform: its output bears a mark that the old output has not."""

    def _write(self, range_: ReadRange, numbers: range) -> SweepOutcome:
        made = super()._write(range_, numbers)
        return replace(made, statistics=replace(made.statistics, written=MARK))


class Scene(World):
    """Two shards of ten records, consumed in batches of four, and a way to replay them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.consume()
        self.today = TodaysSweeper(self.log, self.place)

    def replayer(self, run: str = "replay-1", ended: str = "") -> Replayer:
        return Replayer(
            stream=self.stream,
            store=self.store,
            output_root=self.place,
            sweeper=self.today,
            run=run,
            ended=lambda other: other == ended,
        )

    def replay(self, span: ReplaySpan = ALL, *shards: ShardId) -> dict[ShardId, ReplayReport]:
        return self.replayer().replay(shards or (ZERO, ONE), span)

    def ledger(self, shard: ShardId = ZERO) -> list[Batch]:
        return self.store.batches(self.key, shard)

    def generations(self, shard: ShardId = ZERO) -> list[int]:
        return [batch.generation for batch in self.ledger(shard)]

    def put(self, batch: Batch) -> None:
        """Change a row of the ledger past the store's operations."""
        self.store._groups[self.key].batches[batch.shard, batch.sequence] = batch


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_replay_rebuilds_all_output_with_equal_records(scene: Scene) -> None:
    before, old = scene.ledger(), ledger_paths(scene.store, scene.key, scene.place)
    leases = scene.store.snapshot(scene.key).shards
    reports = scene.replay()
    assert reports[ZERO] == ReplayReport(ZERO, 3, 10, 3 * MARK)
    after = scene.ledger()
    assert [(b.start, b.end, b.sequence, b.epoch, b.run) for b in after] == [
        (b.start, b.end, b.sequence, b.epoch, b.run) for b in before
    ]
    assert scene.generations() == scene.generations(ONE) == [1, 1, 1]
    assert [batch.statistics.written for batch in after] == [MARK] * 3
    new = ledger_paths(scene.store, scene.key, scene.place)
    assert not set(new) & set(old)
    assert all(Path(path).exists() for path in (*new, *old)), "readers may be at the old ones"
    for shard in (ZERO, ONE):
        assert scene.committed(shard) == scene.expected(shard, 10)
    assert scene.store.snapshot(scene.key).shards == leases, "no checkpoint and no tenure moved"
    assert scene.store.rewrites(scene.key) == []
    assert verify(scene.store, scene.key) == []
    assert [len(sweep) for sweep in scene.today.sweeps] == [2, 2, 2]


def test_progress_counts_batches_up_to_all_of_them(scene: Scene) -> None:
    reports: list[tuple[int, int | None]] = []
    replayer = scene.replayer()
    replayer.progress = lambda *seen: reports.append(seen)
    replayer.replay((ZERO, ONE), ALL)
    assert reports == [(done, 6) for done in range(7)]


def test_progress_estimates_the_batches_of_shards_that_have_not_started(scene: Scene) -> None:
    scene.append(ONE, 8)
    assert scene.consume("run-2")[ONE].error == ""
    reports: list[tuple[int, int | None]] = []
    replayer = scene.replayer()
    replayer.stream = replace(scene.stream, pace=Pace(shards_per_run=1))
    replayer.progress = lambda *seen: reports.append(seen)
    replayer.replay((ZERO, ONE), ALL)
    assert reports[:4] == [(done, 6) for done in range(4)], "as many as those of the first shard"
    assert reports[4:] == [(done, 8) for done in range(3, 9)]


def test_only_published_batches_are_replayed(scene: Scene) -> None:
    publish_batches(scene.store, scene.key, NODE, ZERO, 2)
    report = scene.replay()[ZERO]
    assert (report.batches, report.unpublished, report.error) == (2, 1, "")
    assert scene.generations() == [1, 1, 0]
    (change,) = scene.store.pending_changes(scene.key)
    assert (change.shard, change.kind, len(change.added)) == (ZERO, ChangeKind.REPLAY, 2)


def test_a_reader_that_began_before_the_swap_finishes(scene: Scene) -> None:
    reading = ledger_records(scene.store, scene.key, scene.place)
    seen = next(reading).column("value").to_pylist()
    scene.replay()
    for batch in reading:
        seen += batch.column("value").to_pylist()
    assert seen == scene.expected("0", 10) + scene.expected("1", 10)


def test_consumption_continues_during_a_replay(scene: Scene) -> None:
    """Method: while the replay reads its second batch, a run consumes more of the same shard."""
    scene.append(ZERO, 3)
    done: list[str] = []

    def meanwhile() -> None:
        if len(scene.today.sweeps) == 2 and not done:
            done.append(scene.consume("run-2")[ZERO].error)

    scene.today.before = meanwhile
    assert scene.replay()[ZERO].batches == 3
    assert done == [""]
    assert scene.generations() == [1, 1, 1, 0]
    assert scene.committed(ZERO) == scene.expected("0", 13)
    assert verify(scene.store, scene.key) == []


def test_readers_see_all_old_or_all_new_output(scene: Scene) -> None:
    """Method: read the ledger before every sweep of the replay; it never has a mixture."""
    seen: list[list[int]] = []
    scene.today.before = lambda: seen.append(scene.generations())
    scene.replay(ALL, ZERO)
    assert seen == [[0, 0, 0]] * 3
    assert scene.generations() == [1, 1, 1]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_failing_shard_keeps_its_old_output(scene: Scene, failing: int) -> None:
    old = ledger_paths(scene.store, scene.key, scene.place, ZERO)

    def fail() -> None:
        broken = len(scene.today.sweeps) == failing + 1
        scene.today.results = {ZERO: TransformError("boom.")} if broken else {}

    scene.today.before = fail
    reports = scene.replay()
    assert (reports[ZERO].error, reports[ZERO].batches) == ("boom.", 0)
    assert reports[ONE].batches == 3, "the other shard continues"
    assert ledger_paths(scene.store, scene.key, scene.place, ZERO) == old
    assert scene.generations() == [0, 0, 0]
    assert scene.store.rewrites(scene.key) == []


def test_an_interrupted_replay_keeps_the_old_output_and_releases_its_claims(scene: Scene) -> None:
    def interrupt() -> None:
        if len(scene.today.sweeps) == 2:
            raise KeyboardInterrupt

    scene.today.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        scene.replay()
    assert scene.generations() == [0, 0, 0]
    assert scene.store.rewrites(scene.key) == []
    assert scene.committed(ZERO) == scene.expected("0", 10)


def test_too_many_quarantined_records_keep_the_old_output(scene: Scene) -> None:
    def poisoned(
        ranges: Sequence[ReadRange], numbers: Mapping[ShardId, range]
    ) -> Mapping[ShardId, SweepResult]:
        made = {each.shard: scene.sweeper._write(each, numbers[each.shard]) for each in ranges}
        return {
            shard: replace(each, statistics=replace(each.statistics, quarantined=1_001))
            for shard, each in made.items()
        }

    replayer = Replayer(
        stream=scene.stream,
        store=scene.store,
        output_root=scene.place,
        sweeper=poisoned,
        run="replay-1",
    )
    assert "quarantined_max" in replayer.replay([ZERO], ALL)[ZERO].error
    assert scene.generations() == [0, 0, 0]


# -- one at a time ------------------------------------------------------------------------------


def test_the_second_replay_of_a_shard_is_refused(scene: Scene) -> None:
    second: dict[ShardId, ReplayReport] = {}

    def meanwhile() -> None:
        if not second:
            second.update(scene.replayer("replay-2").replay([ZERO], ALL))

    scene.today.before = meanwhile
    assert scene.replay(ALL, ZERO)[ZERO].error == ""
    assert second[ZERO].error == (
        "Run replay-1 is replaying shard 0 of orders/default: wait for it to end, or, if it has "
        "certainly ended, repeat this with --replaces replay-1."
    )
    assert scene.generations() == [1, 1, 1]


def test_a_dead_replay_is_taken_over_and_a_late_one_swaps_nothing(scene: Scene) -> None:
    """1. replay-1 claims and stalls; 2. replay-2 takes over and swaps; 3. replay-1 wakes."""
    done: list[ReplayReport] = []

    def stand_still() -> None:
        if len(scene.today.sweeps) == 3 and not done:
            scene.today.before = lambda: None
            done.append(scene.replayer("replay-2", ended="replay-1").replay([ZERO], ALL)[ZERO])

    scene.today.before = stand_still
    late = scene.replay(ALL, ZERO)[ZERO]
    assert done[0].error == ""
    assert "took over" in late.error
    assert scene.generations() == [1, 1, 1]
    assert scene.committed(ZERO) == scene.expected("0", 10)


def test_a_claim_of_a_killed_replay_needs_replaces(scene: Scene) -> None:
    claim = scene.store.claim_rewrite(scene.key, ZERO, "killed", RewriteKind.COMPACTION)
    assert claim == Changed((ZERO,))
    assert "Run killed is compacting shard 0" in scene.replay(ALL, ZERO)[ZERO].error
    taken = scene.replayer("replay-2", ended="killed").replay([ZERO], ALL)
    assert taken[ZERO].error == ""


def test_a_batch_that_changed_during_a_replay_keeps_the_old_output(scene: Scene) -> None:
    """A swap takes effect in place of exactly the output that it was made from."""
    real = scene.store.rewrite_batches

    def beaten(key, shard, run, rewrites, *, reason):  # type: ignore[no-untyped-def]
        real(key, shard, run, rewrites[:1], reason="somebody else")
        return real(key, shard, run, rewrites, reason=reason)

    scene.store.rewrite_batches = beaten
    assert "took over" in scene.replay(ALL, ZERO)[ZERO].error
    assert scene.generations() == [1, 0, 0]


# -- what retention removed ---------------------------------------------------------------------


def test_batches_with_removed_records_are_kept_and_reported(scene: Scene) -> None:
    scene.log.retain(ZERO, "10")
    scene.append(ZERO, 6)
    scene.consume("run-2")
    report = scene.replay()[ZERO]
    assert (report.kept, report.kept_until, report.batches, report.error) == (3, "10", 2, "")
    assert scene.generations() == [0, 0, 0, 1, 1]
    assert scene.committed(ZERO) == scene.expected("0", 16)
    assert verify(scene.store, scene.key) == []


def test_retention_during_a_replay_keeps_the_old_output(scene: Scene) -> None:
    def removed() -> None:
        if len(scene.today.sweeps) == 2:
            scene.today.results = {ZERO: CursorExpired("gone.")}

    scene.today.before = removed
    assert scene.replay()[ZERO].error == "gone."
    assert scene.generations() == [0, 0, 0]


# -- spans --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (None, None, [0, 1, 2]),
        ("begin", "end", [0, 1, 2]),
        ("4", None, [1, 2]),
        ("5", None, [1, 2]),
        ("3", "4", [0]),
        (None, "4", [0]),
        (None, "5", [0, 1]),
        ("8", "10", [2]),
        ("10", None, []),
        ("99", None, []),
        ("2000-01-01", None, [0, 1, 2]),
        (None, "2000-01-01T00:00:00Z", []),
        ("2999-01-01T00:00:00", None, []),
    ],
)
def test_a_span_selects_batches(
    scene: Scene, start: str | None, end: str | None, expected: list[int]
) -> None:
    report = scene.replay(ReplaySpan.parse(start, end), ZERO)[ZERO]
    assert report.error == ""
    assert [batch.sequence for batch in scene.ledger() if batch.generation] == expected


def test_a_time_is_compared_with_the_records_event_times(scene: Scene) -> None:
    middle = scene.ledger()[1]
    seen, day = middle.statistics, timedelta(days=1)
    assert seen.first_event_time
    assert seen.last_event_time
    later = replace(
        seen,
        first_event_time=seen.first_event_time + day,
        last_event_time=seen.last_event_time + day,
    )
    scene.put(replace(middle, statistics=later))
    at = (seen.first_event_time + timedelta(hours=1)).isoformat()
    scene.replay(ReplaySpan.parse(at, None), ZERO)
    assert scene.generations() == [0, 1, 0]
    scene.replay(ReplaySpan.parse(None, at), ZERO)
    assert scene.generations() == [1, 2, 1], "the replayed batch has its own times again"


@pytest.mark.parametrize(
    ("start", "end"),
    [("end", None), (None, "begin"), ("5", "5"), ("5", "4"), ("2026-01-02", "2026-01-01")],
)
def test_an_empty_span_is_refused(start: str | None, end: str | None) -> None:
    with pytest.raises(RewriteRefused):
        ReplaySpan.parse(start, end)


def test_cursors_of_every_source_bound_a_replay(scene: Scene) -> None:
    named = [
        (replace(batch, start=f"{batch.start}+9", end=f"{batch.end}+9"),)
        for batch in scene.ledger()
    ]
    assert ReplaySpan("4+9", "8+9").select(named) == [named[1]]
    assert ReplaySpan("10+9", None).select(named) == []
    assert ReplaySpan("5.2", "8").select(named) == [named[1]]
    with pytest.raises(RewriteRefused, match="'c5'"):
        ReplaySpan("c5", None).select(named)
    with pytest.raises(RewriteRefused, match="before it starts"):
        ReplaySpan.parse("8+9", "4+9")


def test_merged_batches_are_replayed_together(scene: Scene) -> None:
    """A file of two batches cannot be replaced for one of them alone."""
    first, second, third = scene.ledger()
    scene.put(replace(first, files=(replace(first.files[0], batches=2),)))
    scene.put(replace(second, files=()))
    assert [len(unit) for unit in units(scene.ledger())] == [2, 1]
    report = scene.replay(ReplaySpan.parse("5", "6"), ZERO)[ZERO]
    assert (report.batches, scene.generations()) == (2, [1, 1, 0])
    assert scene.committed(ZERO) == scene.expected("0", 10)
    assert third == scene.ledger()[2]


def test_a_replay_reads_no_more_of_the_ledger_than_its_span(scene: Scene) -> None:
    ledger = ledger_of(scene.ledger())
    cursors = ((None, 0), ("0", 0), ("3", 0), ("4", 1), ("7", 1), ("7.5", 1), ("2026-01-01", 0))
    for start, first in cursors:
        assert ReplaySpan.parse(start, None).first_number(ledger) == first
    assert ReplaySpan("10").first_number(ledger) > scene.ledger()[-1].last
    rows = iter(scene.ledger())
    assert len(ReplaySpan("0", "4").select((row,) for row in rows)) == 1
    assert [row.sequence for row in rows] == [1, 2], "the batch that ends there is the last"
