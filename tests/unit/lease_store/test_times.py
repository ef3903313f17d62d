from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.lease_store.times import parse_time, stored_time, time_text

BERLIN, WEST = ZoneInfo("Europe/Berlin"), timezone(-timedelta(hours=3, minutes=30))
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
def test_stored_times_are_read_back(moment: datetime) -> None:
    assert parse_time(moment.isoformat()) == moment
    assert stored_time(time_text(moment)) == moment
    assert stored_time(time_text(moment)).tzinfo is UTC


@given(st.datetimes(timezones=st.none() | st.sampled_from([UTC, BERLIN, WEST])))
def test_a_time_is_printed_in_iso_8601_with_its_own_offset(moment: datetime) -> None:
    assert time_text(moment) == moment.isoformat()


def test_a_stored_text_that_is_no_time_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a time"):
        stored_time("20260131")
