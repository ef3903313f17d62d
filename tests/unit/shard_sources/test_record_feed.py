"""The records of a source one by one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dagster_leasehold.lease_store.errors import CursorExpired, CursorInvalid, InvalidSetting
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.record_feed import SourceFeed

S0 = ShardId("0")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def log(tmp_path: Path) -> LocalLog:
    """Ten records, one a minute, each in its own file."""
    moments = iter(NOON + timedelta(minutes=number) for number in range(100))
    log = LocalLog.create(tmp_path / "log", 1, clock=lambda: next(moments))
    for number in range(10):
        log.append("0", [b"%d" % number])
    return log


def test_records_carry_their_own_and_the_next_cursor(log: LocalLog):
    fetched = SourceFeed(log).fetch(S0, "3", records_max=4)
    assert (fetched.start, fetched.end, fetched.last) == ("3", "7", False)
    assert [(r.cursor, r.next_cursor, r.value) for r in fetched.records] == [
        ("3", "4", b"3"),
        ("4", "5", b"4"),
        ("5", "6", b"5"),
        ("6", "7", b"6"),
    ]
    assert fetched.records[0].event_time == NOON + timedelta(minutes=3)
    assert fetched.records[0].attributes == {}


def test_the_end_of_an_open_shard_is_empty_and_not_the_last(log: LocalLog):
    fetched = SourceFeed(log).fetch(S0, "10", records_max=4)
    assert (fetched.records, fetched.end, fetched.last) == ((), "10", False)


def test_the_end_of_a_split_shard_is_its_last(log: LocalLog):
    log.split("0")
    feed = SourceFeed(log)
    assert not feed.fetch(S0, "0", records_max=9).last
    assert feed.fetch(S0, "9", records_max=9).last
    assert feed.fetch(S0, "10", records_max=9).last


def test_a_fetch_obeys_its_byte_limit_but_has_at_least_one_record(log: LocalLog):
    fetched = SourceFeed(log, bytes_max=1).fetch(S0, "0", records_max=9)
    assert len(fetched.records) == 1


@pytest.mark.parametrize(
    ("end", "most", "cursors", "stop"),
    [
        ("6", 9, ["2", "3", "4", "5"], "6"),
        ("6", 4, ["2", "3", "4", "5"], "6"),
        ("6", 2, ["2", "3"], "4"),
        ("2", 9, [], "2"),
        ("1", 9, [], "1"),
    ],
)
def test_a_range_is_fetched_up_to_its_end_and_no_further(
    log: LocalLog, end: str, most: int, cursors: list[str], stop: str
):
    fetched = SourceFeed(log).fetch_between(S0, "2", end, records_max=most)
    assert [record.cursor for record in fetched.records] == cursors
    assert fetched.end == stop
    if cursors:
        assert fetched.records[-1].next_cursor == stop


def test_positions_are_begin_end_and_times(log: LocalLog):
    feed = SourceFeed(log)
    assert feed.cursor_at(S0, "begin") == "0"
    assert feed.cursor_at(S0, "end") == "10"
    assert feed.cursor_at(S0, "2026-03-01T12:04:30Z") == "5"
    assert feed.cursor_at(S0, "2026-03-01T12:04:00") == "4", "a time without a zone is UTC"
    with pytest.raises(InvalidSetting, match="not a position"):
        feed.cursor_at(S0, "tomorrow")


def test_a_cursor_is_clamped_to_the_shard(log: LocalLog):
    log.retain("0", "4")
    feed = SourceFeed(log)
    assert [feed.clamp(S0, cursor) for cursor in ("1", "4", "7", "10", "12")] == [
        "4", "4", "7", "10", "10",
    ]  # fmt: skip
    with pytest.raises(CursorInvalid):
        feed.clamp(S0, "nonsense")
    with pytest.raises(CursorExpired):
        feed.fetch(S0, "1", records_max=1)


def test_the_first_cursor_is_of_the_first_record_ever(log: LocalLog):
    log.retain("0", "4")
    feed = SourceFeed(log)
    assert (feed.first_cursor(S0), feed.cursor_at(S0, "begin")) == ("0", "4")
    with pytest.raises(CursorExpired):
        feed.fetch(S0, feed.first_cursor(S0), records_max=1)
