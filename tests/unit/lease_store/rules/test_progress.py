"""The rate, the remaining time and the words of long work."""

from __future__ import annotations

import pytest

from dagster_leasehold.lease_store.rules.progress import Progress, duration, rate_text
from tests.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_progress_with_a_known_total_shows_rate_and_remaining_time(clock: ManualClock) -> None:
    work = Progress(clock, 12_000)
    clock.now_s += 10
    work(3_000)
    assert work.text("records") == "3,000 of 12,000 records, 300/s, 30 s left"


def test_progress_without_a_total_shows_no_remaining_time(clock: ManualClock) -> None:
    work = Progress(clock)
    clock.now_s += 2
    work(5_000)
    assert work.remaining_s is None
    assert work.text("rows") == "5,000 rows, 2,500/s"


def test_a_total_that_becomes_known_is_used_and_kept(clock: ManualClock) -> None:
    work = Progress(clock)
    clock.now_s += 1
    work(1, 3)
    clock.now_s += 1
    work(2)
    assert work.text("batches") == "2 of 3 batches, 1/s, 1 s left"


def test_the_rate_is_that_of_the_last_minute(clock: ManualClock) -> None:
    """Goal: an hour at 1,000/s promises nothing once the work has slowed down to 10/s."""
    work = Progress(clock, 10_000_000)
    for _ in range(60):
        clock.now_s += 60
        work(work.done + 60_000)
    for _ in range(7):
        clock.now_s += 10
        work(work.done + 100)
    assert 9 <= work.rate <= 11


def test_the_rate_of_stalled_work_decreases(clock: ManualClock) -> None:
    work = Progress(clock, 200)
    clock.now_s += 10
    work(100)
    clock.now_s += 90
    assert work.text("batches") == "100 of 200 batches, 1/s, 1 min left"


def test_progress_at_the_start_does_not_divide_by_zero(clock: ManualClock) -> None:
    work = Progress(clock, 7)
    work(0)
    assert work.text("shards") == "0 of 7 shards"
    work(7)
    assert work.text("shards") == "7 of 7 shards"


def test_progress_without_counts_has_no_text(clock: ManualClock) -> None:
    assert Progress(clock).text("") == ""


def test_many_reports_keep_few_marks(clock: ManualClock) -> None:
    """Goal: a copy of a million rows in steps of one keeps no mark of each."""
    work = Progress(clock)
    for done in range(10_000):
        clock.now_s += 0.001
        work(done)
    assert len(work._marks) < 200  # pyright: ignore[reportPrivateUsage]
    assert 900 < work.rate < 1_100


@pytest.mark.parametrize(
    ("per_second", "text"),
    [(1_234.4, "1,234/s"), (0.3, "18/min"), (0.001, "4/h"), (0.0001, ""), (0.0, "")],
)
def test_a_rate_uses_a_readable_unit_of_time(per_second: float, text: str) -> None:
    assert rate_text(per_second) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (119, "1 min"), (7_500, "2 h 5 min"), (273_600, "3 d 4 h")],
)
def test_a_time_span_is_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text
