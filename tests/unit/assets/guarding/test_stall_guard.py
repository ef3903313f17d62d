"""A run and a call that does not come back; the clock is moved by hand."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.consuming.sweep import GuardedSweeper
from dagster_leasehold.assets.guarding.stall_guard import StallGuard, guarded_source
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.places.place import MovingRecords
from dagster_leasehold.lease_store.errors import LogCorrupt, RunStalled
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import (
    BoundedFromCursors,
    Limits,
    PlannedRange,
    ShardBounds,
)
from tests.manual_clock import ManualClock
from tests.unit.assets.consumption_world import World

LIMIT_S = 600.0
ZERO = ShardId("0")


@pytest.fixture
def hung() -> Iterator[threading.Event]:
    """Calls that wait for it hang until the test is over."""
    event = threading.Event()
    yield event
    event.set()


def guard_of(clock: ManualClock) -> StallGuard:
    return StallGuard(LIMIT_S, clock)


def test_a_guarded_call_keeps_result_error_and_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="")
    variable.set("of the run")

    def fail() -> None:
        raise LogCorrupt("shard 0 is damaged")

    with guard_of(ManualClock()) as guard:
        assert guard.call("it", variable.get) == "of the run"
        with pytest.raises(LogCorrupt, match="shard 0 is damaged"):
            guard.call("it", fail)
        assert guard.call("it", lambda: 7) == 7
        assert guard.stalled is None
        assert not guard.ending


def test_a_call_without_progress_is_given_up_and_no_call_follows(hung: threading.Event) -> None:
    with guard_of(ManualClock(step_s=LIMIT_S / 2 + 1)) as guard:
        with pytest.raises(RunStalled) as caught:
            guard.call("Spark", hung.wait)
        assert str(caught.value).startswith(
            "This run made no progress for 600 s while it waited for Spark, so it released its "
        )
        assert guard.ending
        with pytest.raises(RunStalled) as again:
            guard.call("the source", lambda: pytest.fail("nobody waits for it"))
        assert again.value is caught.value is guard.stalled


def test_a_call_that_makes_progress_has_no_time_limit() -> None:
    clock, went_on = ManualClock(), threading.Event()

    def work() -> str:
        for _ in range(5):
            clock.now_s += LIMIT_S - 1
            guard.progressed()
            went_on.wait(0.25)  # the run checks meanwhile
        return "done"

    with guard_of(clock) as guard:
        assert guard.call("Spark", work) == "done"
        assert clock.now_s > 4 * LIMIT_S


def test_an_interrupted_run_asks_its_call_to_end(hung: threading.Event) -> None:
    class Interrupting(ManualClock):
        def __call__(self) -> float:
            if threading.current_thread() is threading.main_thread() and self.now_s:
                hung.set()
                raise KeyboardInterrupt
            self.now_s = 1.0 if hung_once.is_set() else 0.0
            return self.now_s

    hung_once = threading.Event()

    def work() -> None:
        hung_once.set()
        clock.now_s = 1.0
        hung.wait()

    clock = Interrupting(0.0)
    with guard_of(clock) as guard:
        with pytest.raises(KeyboardInterrupt):
            guard.call("Spark", work)
        assert guard.ending
        assert guard.stalled is None


def test_a_hanging_source_fails_the_run_and_frees_its_shards(
    tmp_path: Path, hung: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, shards=3)
    plan = world.log.plan

    def hanging(shard: ShardId, start: str, limits: Limits) -> PlannedRange:
        if start == "4":
            hung.wait()
        return plan(shard, start, limits)

    monkeypatch.setattr(world.log, "plan", hanging)
    with guard_of(ManualClock(step_s=LIMIT_S / 2 + 1)) as guard:
        guarded = replace(world.stream, source=guarded_source(world.log, guard))
        reports = world.consume(stream=guarded, sweeper=GuardedSweeper(world.sweeper, guard))
    for report in reports.values():
        assert report.stopped is StopReason.FAILED
        assert "no progress for 600 s while it waited for the source to plan a" in report.error
        assert report.end == "4", "what was committed before counts"
        assert world.lease(report.shard).consumer_run == ""
    hung.set()
    assert {report.end for report in world.consume("run-2").values()} == {"10"}
    assert world.committed("1") == world.expected("1", 10)


def test_late_output_of_a_given_up_sweep_is_never_committed(
    tmp_path: Path, hung: threading.Event
) -> None:
    world = World(tmp_path, shards=1)
    woken = threading.Event()

    def hang() -> None:
        hung.wait()
        woken.set()

    world.sweeper.before = hang
    with guard_of(ManualClock(step_s=LIMIT_S / 2 + 1)) as guard:
        (report,) = world.consume(sweeper=GuardedSweeper(world.sweeper, guard)).values()
    assert report.stopped is StopReason.FAILED
    assert "while it waited for Spark" in report.error
    hung.set()
    assert woken.wait(10)
    world.sweeper.before = lambda: None
    (again,) = world.consume("run-2").values()
    assert (again.start, again.end) == ("0", "10")
    assert world.committed("0") == world.expected("0", 10)


def test_a_guarded_source_returns_the_bounds_of_the_source(tmp_path: Path) -> None:
    world = World(tmp_path, shards=1)

    class FromCursors:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.log, name)

        def bounds_after(self, cursors: Mapping[ShardId, str]) -> dict[ShardId, ShardBounds]:
            return {shard: ShardBounds(cursor, "99", False) for shard, cursor in cursors.items()}

        def bounds(self, shards: Sequence[ShardId]) -> dict[ShardId, ShardBounds]:
            return world.log.bounds(shards)

    with guard_of(ManualClock()) as guard:
        plain = guarded_source(world.log, guard)
        assert not isinstance(plain, BoundedFromCursors)
        assert plain.bounds([ZERO]) == world.log.bounds([ZERO])
        assert plain.list_shards() == world.log.list_shards()
        assert plain.spark_options() == world.log.spark_options()
        other: Any = guarded_source(FromCursors(), guard)  # pyright: ignore[reportArgumentType]
        assert isinstance(other, BoundedFromCursors)
        assert other.bounds_after({ZERO: "7"}) == {ZERO: ShardBounds("7", "99", False)}


def test_moving_records_leave_signs_of_work_in_the_folder(tmp_path: Path) -> None:
    clock = ManualClock()
    folder = local_place(tmp_path)
    moving = MovingRecords(folder, clock)
    moving.moved()
    assert folder.signs_of_progress() == frozenset(), "a short task leaves no file"
    seen: list[object] = []
    for _ in range(3):
        clock.now_s += 1.0
        moving.moved()
        moving.moved()
        seen.append(folder.signs_of_progress())
    assert len(set(seen)) == 3
    # A full disk does not stop the work.
    (tmp_path / "file").touch()
    elsewhere = MovingRecords(folder / "file", clock)
    clock.now_s += 1.0
    elsewhere.moved()
