"""A failing step: its wait, its messages, and its effect on other steps."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.lease_store.errors import LeaseholdError, SourceUnavailable, StoreUnavailable
from dagster_leasehold.lease_store.rules.failing_steps import (
    CALLS_MAX,
    FIRST_WAIT_S,
    SHOWN_MAX,
    STEPS_MAX,
    WAIT_MAX_S,
    FailingSteps,
    retry_wait_s,
)


class Round:
    """Steps under a clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.steps = FailingSteps(lambda: self.now_s)

    def take(self, step: str, error: Exception | None = None, **how: bool) -> str:
        def action() -> str:
            if error is not None:
                raise error
            return "done"

        return self.steps.attempt(step, action, "left", at_once=how.get("at_once", False))


@pytest.fixture
def round_() -> Round:
    return Round()


@given(st.integers(0, 10**400), st.floats(0, 1, exclude_max=True))
def test_waits_are_bounded_at_every_count_of_failures(failures: int, jitter: float) -> None:
    def wait_s(count: int, shortened: float = 0.0) -> float:
        return retry_wait_s(count, first_s=5.0, max_s=600.0, jitter=shortened)

    longest = wait_s(failures)
    assert longest / 2 <= wait_s(failures, jitter) <= longest <= 600.0
    assert longest <= wait_s(failures + 1)
    assert wait_s(1) == 5.0


def test_a_failed_step_is_skipped_until_it_is_due(round_: Round) -> None:
    assert round_.take("shard 1", ZeroDivisionError("x")) == "left"
    assert round_.take("shard 2") == "done"
    assert round_.steps.waiting == 1
    round_.now_s += FIRST_WAIT_S - 0.1
    assert round_.take("shard 1") == "left", "it waits"
    round_.now_s += 0.2
    assert round_.take("shard 1") == "done"
    assert round_.steps.waiting == 0


def test_the_wait_of_a_step_that_fails_for_years_is_bounded_and_success_resets_it(
    round_: Round,
) -> None:
    waits: list[float] = []
    for _ in range(5_000):
        round_.steps.begin()
        round_.take("shard 1", ValueError("stuck"))
        waits.append(round_.steps.wait_s("shard 1"))
        round_.now_s += waits[-1]
    assert all(before <= after for before, after in pairwise(waits))
    assert (waits[0], waits[-1]) == (FIRST_WAIT_S, WAIT_MAX_S)
    assert round_.take("shard 1") == "done"
    round_.take("shard 1", ValueError("again"))
    assert round_.steps.wait_s("shard 1") == FIRST_WAIT_S


def test_failed_steps_are_named_in_the_tick_and_in_the_log(
    round_: Round, caplog: pytest.LogCaptureFixture
) -> None:
    error = OSError("mysql://app:s3cret@db/x is gone\nsecond line")
    with caplog.at_level(logging.WARNING):
        round_.take("shard 1", error)
        round_.take("shard 2", LeaseholdError("Shard 2 is damaged: restore it."))
    assert round_.steps.notes == [
        "shard 1 failed (OSError: mysql://***@db/x is gone), tried again in 5 s",
        "shard 2 failed (Shard 2 is damaged: restore it.), tried again in 5 s",
    ]
    assert "in action" in caplog.text, "the frames of what nobody foresaw"
    assert "s3cret" not in caplog.text
    round_.steps.begin()
    round_.now_s += 1
    assert round_.steps.notes == [
        "shard 1 is tried again in 4 s (OSError: mysql://***@db/x is gone)",
        "shard 2 is tried again in 4 s (Shard 2 is damaged: restore it.)",
    ]
    round_.now_s += FIRST_WAIT_S
    assert round_.steps.notes == []


def test_a_failed_beat_is_repeated_at_once(round_: Round) -> None:
    for _ in range(3):
        assert round_.take("node a", ValueError("x"), at_once=True) == "left"
    assert round_.take("node a", at_once=True) == "done"
    assert "tried again in the next round" in round_.steps.notes[0]


def test_a_store_that_fails_twice_in_a_row_ends_the_round(round_: Round) -> None:
    away = StoreUnavailable("The database does not answer.")
    assert round_.take("shard 1", away) == "left", "one row may be locked"
    assert round_.take("shard 2") == "done"
    assert round_.take("shard 3", away) == "left"
    with pytest.raises(StoreUnavailable):
        round_.take("shard 4", away)


def test_an_error_of_all_steps_is_raised_to_the_caller(round_: Round) -> None:
    def action() -> None:
        raise SourceUnavailable("The log does not answer.")

    with pytest.raises(SourceUnavailable):
        round_.steps.attempt("shard 1", action, None, raises=(SourceUnavailable,))
    assert round_.steps.notes == []


def test_an_interrupt_is_no_failed_step(round_: Round) -> None:
    def action() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        round_.steps.attempt("shard 1", action, None)


def test_the_memory_of_failures_is_bounded(round_: Round) -> None:
    for number in range(STEPS_MAX + 50):
        round_.take(f"shard {number}", ValueError("x"))
    assert round_.steps.waiting == STEPS_MAX
    assert len(round_.steps.notes) == SHOWN_MAX + 1
    assert round_.steps.notes[-1] == f"and {STEPS_MAX + 50 - SHOWN_MAX} further lines"
    round_.now_s += FIRST_WAIT_S + 2 * WAIT_MAX_S + 1
    round_.steps.begin()
    assert round_.take("shard 7") == "done"
    assert round_.steps._failures == {}, "what nobody tries any more is forgotten"


class Things:
    """A call for many numbers at once that cannot bear some of them."""

    def __init__(self, *broken: int, error: Exception | None = None) -> None:
        self.broken, self.calls = set(broken), 0
        self.error = error or ZeroDivisionError("x")

    def __call__(self, numbers: list[int]) -> list[int]:
        self.calls += 1
        if self.broken & set(numbers):
            raise self.error
        return numbers


def taken(round_: Round, things: Things, count: int) -> list[int]:
    items = {f"shard {number}": number for number in range(count)}
    return sorted(n for part in round_.steps.attempt_all(items, things) for n in part)


def test_only_failing_items_are_skipped(round_: Round) -> None:
    things = Things(7, 700)
    assert taken(round_, things, 1_000) == [n for n in range(1_000) if n not in (7, 700)]
    assert things.calls < 45
    assert [note.split(" failed")[0] for note in round_.steps.notes] == ["shard 7", "shard 700"]
    things.calls = 0
    assert len(taken(round_, things, 1_000)) == 998
    assert things.calls == 1, "what waits is not asked for"
    round_.now_s += FIRST_WAIT_S
    things.broken.clear()
    assert len(taken(round_, things, 1_000)) == 1_000
    assert round_.steps.waiting == 0


def test_the_calls_are_bounded_if_all_items_fail(round_: Round) -> None:
    things = Things(*range(1_000))
    assert taken(round_, things, 1_000) == []
    assert things.calls == CALLS_MAX
    assert "left to the next round" in round_.steps.notes[-1]


@pytest.mark.parametrize("count", [1, 2, 1_000])
def test_an_unavailable_service_ends_the_round_after_three_calls(round_: Round, count: int) -> None:
    things = Things(*range(count), error=SourceUnavailable("The log does not answer."))
    with pytest.raises(SourceUnavailable):
        taken(round_, things, count)
    assert things.calls == min(count + (count > 1), 3)


def test_one_unreachable_item_is_skipped(round_: Round) -> None:
    things = Things(5, error=SourceUnavailable("Partition 5 has no leader."))
    assert len(taken(round_, things, 64)) == 63


def test_an_error_of_all_items_is_raised_to_the_caller(round_: Round) -> None:
    things = Things(1)
    with pytest.raises(ZeroDivisionError):
        round_.steps.attempt_all({"a": 1, "b": 2}, things, raises=(ZeroDivisionError,))
    assert things.calls == 1
