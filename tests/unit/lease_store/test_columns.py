"""Column types: values are read back as written, on every dialect."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects.mysql import dialect as mysql_dialect
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect

from dagster_leasehold.lease_store.columns import EventTime, ExactText, exact_text
from dagster_leasehold.lease_store.sql_store.mapping import dumped, loaded

MYSQL, SQLITE = mysql_dialect(), sqlite_dialect()
offsets = st.integers(-14 * 60, 14 * 60).map(lambda m: timezone(timedelta(minutes=m)))
moments = st.datetimes(
    min_value=datetime(1, 1, 2),  # noqa: DTZ001
    max_value=datetime(9999, 12, 30),  # noqa: DTZ001
    timezones=offsets,
)


@given(st.text(max_size=60))
def test_text_is_read_back_exactly(text: str) -> None:
    column = ExactText(64)
    try:
        bound = column.process_bind_param(text, MYSQL)
    except UnicodeEncodeError:
        return
    assert column.result_processor(MYSQL, None)(bound) == text


def test_text_is_bytes_in_mysql_only() -> None:
    column = ExactText(64)
    assert column.process_bind_param("á", MYSQL) == "á".encode()
    assert column.process_bind_param(None, MYSQL) is None
    assert isinstance(exact_text(64).dialect_impl(MYSQL), ExactText)
    assert exact_text(64).dialect_impl(SQLITE).bind_processor(SQLITE) is None


@given(moments)
def test_a_time_of_any_zone_is_read_back(moment: datetime) -> None:
    column = EventTime()
    stored = column.process_bind_param(moment, MYSQL)
    assert column.process_result_value(stored, MYSQL) == moment


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="zone"):
        EventTime().process_bind_param(datetime(2026, 1, 1), MYSQL)  # noqa: DTZ001


def test_a_moment_is_stored_in_microseconds_since_1970() -> None:
    moment = datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)
    assert EventTime().process_bind_param(moment, SQLITE) == 1_000_005
    assert EventTime().process_bind_param(None, SQLITE) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(json_values)
def test_json_is_read_back(value: object) -> None:
    assert loaded("payload", dumped("payload", {"value": value})) == {"value": value}
