"""Complete hours: nothing may arrive for an hour that was called complete."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.event_frontier import (
    HOUR,
    ShardTime,
    complete_hours,
    frontier,
    hour_of,
)
from dagster_leasehold.shard_sources.event_times import FIRST, LAST

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
A, B = ShardId("a"), ShardId("b")


def test_the_slowest_shard_decides_the_frontier() -> None:
    reached = frontier([ShardTime(A, NOON + 90 * MINUTE), ShardTime(B, NOON + 59 * MINUTE)])
    assert (reached.until, reached.held_by) == (NOON + 59 * MINUTE, B)
    assert complete_hours(NOON, reached.until, 9) == []


def test_an_hour_is_complete_once_the_frontier_reaches_its_end() -> None:
    assert complete_hours(NOON, NOON + HOUR, 9) == [NOON]
    assert complete_hours(NOON, NOON + HOUR - timedelta(microseconds=1), 9) == []
    assert complete_hours(NOON, NOON + 100 * HOUR, 3) == [NOON, NOON + HOUR, NOON + 2 * HOUR]
    assert complete_hours(NOON, None, 9) == []


def test_an_allowance_moves_the_frontier_back() -> None:
    reached = frontier([ShardTime(A, NOON + HOUR)], out_of_order=5 * MINUTE)
    assert reached.until == NOON + 55 * MINUTE


@pytest.mark.parametrize("time", [FIRST, LAST])
def test_the_first_and_last_times_of_the_calendar_are_accepted(time: datetime) -> None:
    """Goal: a shard that has come there holds back or releases hours, and raises nothing."""
    for shard in (ShardTime(A, time), ShardTime(A, time, idle=True)):
        reached = frontier([shard], out_of_order=9 * MINUTE)
        assert (reached.until is None) == (time is FIRST)
        assert bool(complete_hours(NOON, reached.until, 1)) == (time is LAST)
    assert frontier([ShardTime(A, time, finished=True)]).until is not None
    assert complete_hours(hour_of(LAST), time, 9) == []


def test_a_shard_without_output_delays_all_hours() -> None:
    reached = frontier([ShardTime(A, NOON + HOUR), ShardTime(B)])
    assert (reached.until, reached.held_by) == (None, B)


def test_a_shard_that_only_the_source_lists_delays_all_hours() -> None:
    reached = frontier([ShardTime(A, NOON, finished=True)], unlisted=[B])
    assert (reached.until, reached.held_by) == (None, B)


def test_finished_and_idle_shards_delay_no_hour() -> None:
    shards = [
        ShardTime(A, NOON, finished=True),
        ShardTime(B, NOON + MINUTE, idle=True),
        ShardTime(ShardId("c"), NOON + HOUR),
    ]
    assert frontier(shards).until == NOON + HOUR


def test_if_all_shards_are_finished_the_last_hour_is_complete() -> None:
    shards = [ShardTime(A, NOON, finished=True), ShardTime(B, NOON + 61 * MINUTE, finished=True)]
    assert frontier(shards).until == NOON + 2 * HOUR


def test_if_all_shards_are_idle_the_newest_record_decides() -> None:
    """The hour of the newest record stays open: its shard may continue where it stopped."""
    shards = [ShardTime(A, NOON, idle=True), ShardTime(B, NOON + 61 * MINUTE, finished=True)]
    assert frontier(shards).until == NOON + 61 * MINUTE


@pytest.mark.parametrize("shards", [[], [ShardTime(A, idle=True)], [ShardTime(A, finished=True)]])
def test_without_output_no_hour_is_complete(shards: list[ShardTime]) -> None:
    assert frontier(shards).until is None


@dataclass
class Log:
    """A log in event minutes: each shard's records come in order, but for `disorder` minutes."""

    disorder: int
    newest: dict[str, int] = field(default_factory=lambda: {"s0": 0})
    waiting: dict[str, list[int]] = field(default_factory=lambda: {"s0": []})
    watermarks: dict[str, int | None] = field(default_factory=lambda: {"s0": None})
    closed: set[str] = field(default_factory=set)
    listed: set[str] = field(default_factory=lambda: {"s0"})

    def append(self, shard: str, ahead: int, back: int) -> None:
        self.newest[shard] += ahead
        self.waiting[shard].append(self.newest[shard] - min(back, self.disorder))

    def split(self, shard: str) -> None:
        self.closed.add(shard)
        for _ in range(2):
            child = f"s{len(self.newest)}"
            self.newest[child], self.waiting[child] = self.newest[shard], []
            self.watermarks[child] = None

    def commit(self, shard: str) -> int | None:
        """Commit the next record; its event minute."""
        if not self.waiting[shard]:
            return None
        minute = self.waiting[shard].pop(0)
        self.watermarks[shard] = max(minute, self.watermarks[shard] or minute)
        return minute

    def complete_until(self) -> datetime | None:
        times = [
            ShardTime(
                ShardId(shard),
                None if minute is None else NOON + minute * MINUTE,
                finished=shard in self.closed and not self.waiting[shard],
            )
            for shard, minute in self.watermarks.items()
            if shard in self.listed
        ]
        unlisted = {ShardId(shard) for shard in self.newest.keys() - self.listed}
        return frontier(times, unlisted=unlisted, out_of_order=self.disorder * MINUTE).until


step = st.tuples(
    st.sampled_from(["append", "append", "commit", "commit", "split", "list"]),
    st.integers(0, 30),
    st.integers(0, 90),
    st.integers(0, 20),
)


@given(steps=st.lists(step, max_size=80), disorder=st.integers(0, 15))
def test_no_record_comes_late_while_shards_keep_their_order(
    steps: list[tuple[str, int, int, int]], disorder: int
) -> None:
    """Goal: with splits in mid-flight, a committed record never lies in a complete hour.

    Method: random appends, commits, splits and shard listings; whenever something is committed,
    its hour must not have been called complete before.
    """
    log, fired = Log(disorder), NOON
    for what, which, ahead, back in steps:
        shards = sorted(log.newest)
        shard = shards[which % len(shards)]
        if what == "append" and shard not in log.closed:
            log.append(shard, ahead, back)
        elif what == "split" and shard not in log.closed and len(shards) < 12:
            log.split(shard)
        elif what == "list":
            log.listed = set(shards)
        elif what == "commit" and shard in log.listed:
            minute = log.commit(shard)
            if minute is not None:
                assert hour_of(NOON + minute * MINUTE) >= fired or NOON + minute * MINUTE < NOON
        for hour in complete_hours(fired, log.complete_until(), 100):
            fired = hour + HOUR
