from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.shard_sources.positions import parse_position, parse_time
from dagster_leasehold.shard_sources.source import Position

EIGHT = datetime(2026, 1, 31, 8, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-31T08:00:00Z", EIGHT),
        ("2026-01-31T08:00:00", EIGHT),
        ("2026-01-31 08:00", EIGHT),
        ("2026-01-31T10:00:00+02:00", EIGHT),
        ("2026-01-31T08:00:00.123456Z", EIGHT.replace(microsecond=123456)),
        ("2026-01-31", EIGHT.replace(hour=0)),
        ("300", None),
        ("20260131", None),
        ("12:30", None),
        ("P1D", None),
        ("2026-13-01", None),
        ("yesterday", None),
        ("", None),
        ("-1", None),
    ],
)
def test_a_time_is_a_moment_in_utc(text: str, expected: datetime | None) -> None:
    assert parse_time(text) == expected


@given(st.datetimes(timezones=st.just(UTC)))
def test_what_a_program_writes_is_read_back(moment: datetime) -> None:
    assert parse_time(moment.isoformat()) == moment


@given(st.text(max_size=40))
def test_any_text_is_a_position_or_none(text: str) -> None:
    position = parse_position(text)
    assert position is None or isinstance(position, Position | datetime)


def test_begin_and_end_need_no_time() -> None:
    assert parse_position("begin") is Position.BEGIN
    assert parse_position("end") is Position.END
