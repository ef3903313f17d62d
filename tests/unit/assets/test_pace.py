"""The rules of the pace: when the oldest unread record is due, and when a run has been idle."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.assets.pace import (
    POLL_MAX_S,
    POLL_MIN_S,
    REST_MAX_S,
    DueTimes,
    Pace,
    reached_head,
)
from dagster_leasehold.lease_store.identifiers import ShardId

ZERO, ONE = ShardId("0"), ShardId("1")


def times(**settings: float) -> DueTimes:
    return DueTimes(Pace(**settings), 0.0)  # pyright: ignore[reportArgumentType]


def test_a_shard_that_was_never_seen_read_is_due_at_once() -> None:
    due = times(commit_interval_s=10.0)
    due.mark_unread(ZERO, 100.0)
    assert due.due_s <= 100.0


def test_a_record_is_due_one_interval_after_the_last_check_without_records() -> None:
    due = times(commit_interval_s=10.0)
    due.mark_read(ZERO, 100.0)
    assert due.due_s == math.inf
    due.mark_unread(ZERO, 101.0)
    assert due.due_s == 110.0
    due.mark_unread(ZERO, 105.0)
    assert due.due_s == 110.0, "a later look does not put it off"


def test_all_shards_are_due_with_the_earliest_one() -> None:
    due = times(commit_interval_s=10.0)
    due.mark_read(ZERO, 100.0)
    due.mark_read(ONE, 104.0)
    due.mark_unread(ZERO, 105.0)
    due.mark_unread(ONE, 105.0)
    assert due.due_s == 110.0
    due.drop(ZERO)
    assert due.due_s == 114.0


def test_many_bytes_are_due_at_once() -> None:
    due = times(commit_interval_s=10.0)
    due.mark_read(ZERO, 100.0)
    due.mark_unread(ZERO, 101.0, at_once=True)
    assert due.due_s <= 101.0


def test_records_beyond_a_batch_are_read_at_once() -> None:
    due = times(commit_interval_s=10.0)
    due.mark_read(ZERO, 100.0)
    due.committed(110.0, took_s=3.0)
    due.mark_behind(ZERO)
    assert due.due_s <= 110.0


@pytest.mark.parametrize(
    ("took_s", "rest_s"), [(0.1, REST_MAX_S), (0.5, 0.3), (1.0, 0.25), (60.0, REST_MAX_S)]
)
def test_at_the_end_of_the_log_a_run_pauses_between_two_batches(
    took_s: float, rest_s: float
) -> None:
    due = times(commit_interval_s=0.0)
    for _ in range(2):
        due.mark_read(ZERO, 100.0)
        due.committed(100.0, took_s=took_s)
        due.mark_unread(ZERO, 100.1)
        assert due.due_s == pytest.approx(100.0 + rest_s)
    due.mark_read(ZERO, 200.0)
    due.mark_unread(ZERO, 200.2)
    assert due.due_s <= 200.2, "a record that comes later is due at once"


def test_a_run_is_idle_after_the_limit_without_records_and_never_with_unread_ones() -> None:
    due = times(commit_interval_s=500.0, idle_limit_s=60.0)
    assert not due.idle(59.0)
    assert due.idle(60.0)
    due.mark_read(ZERO, 60.0)
    due.mark_unread(ZERO, 70.0)
    assert not due.idle(400.0)
    due.mark_read(ZERO, 401.0)
    due.committed(401.0, took_s=1.0)
    assert not due.idle(460.0)
    assert due.idle(461.0)


@pytest.mark.parametrize(
    ("interval_s", "poll_s"), [(0.0, POLL_MIN_S), (10.0, 1.0), (3_600.0, POLL_MAX_S)]
)
def test_checks_come_every_tenth_of_the_interval_within_limits(
    interval_s: float, poll_s: float
) -> None:
    assert Pace(interval_s).poll_s == poll_s


@pytest.mark.parametrize(
    ("lag", "records", "filled", "at_end", "reached"),
    [
        (10, 10, True, False, True),
        (10, 12, True, False, True),
        (10, 9, False, False, False),
        (None, 9, False, False, True),
        (None, 9, True, False, False),
        (None, 9, True, True, True),
    ],
)
def test_a_batch_with_all_unread_records_reaches_the_end_of_the_log(
    lag: int | None, records: int, filled: bool, at_end: bool, reached: bool
) -> None:
    assert reached_head(lag=lag, records=records, filled=filled, at_end=at_end) is reached


@given(
    interval_s=st.floats(0.0, 60.0),
    looks=st.lists(st.floats(0.01, 5.0), min_size=1, max_size=60),
    arrivals=st.lists(st.floats(0.0, 60.0), max_size=20),
    sweep_s=st.floats(0.0, 5.0),
)
def test_no_record_waits_longer_than_the_interval_and_one_sweep(
    interval_s: float, looks: list[float], arrivals: list[float], sweep_s: float
) -> None:
    """Check like a run: at the listed times, and when a record is due."""
    due = times(commit_interval_s=interval_s)
    due.mark_read(ZERO, 0.0)
    now_s, unread, waiting = 0.0, sorted(arrivals), [*looks]
    while waiting:
        poll_s = now_s + waiting.pop()
        now_s = max(now_s, min(poll_s, due.due_s))
        come = [arrival for arrival in unread if arrival <= now_s]
        if not come:
            due.mark_read(ZERO, now_s)
            continue
        due.mark_unread(ZERO, now_s)
        assert due.due_s <= max(come[0] + interval_s, now_s) + REST_MAX_S
        if due.due_s <= now_s:
            unread = unread[len(come) :]
            due.mark_read(ZERO, now_s)
            now_s += sweep_s
            due.committed(now_s, took_s=sweep_s)
            late_s = max(0.0, now_s - sweep_s - come[0] - interval_s)
            # A late check, a sweep in progress when it came, a pause.
            assert late_s <= max(looks) + sweep_s + REST_MAX_S
