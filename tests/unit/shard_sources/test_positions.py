from __future__ import annotations

from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.shard_sources.positions import parse_position
from dagster_leasehold.shard_sources.source import Position


@given(st.text(max_size=40))
def test_any_text_is_a_position_or_none(text: str) -> None:
    position = parse_position(text)
    assert position is None or isinstance(position, Position | datetime)


def test_begin_and_end_need_no_time() -> None:
    assert parse_position("begin") is Position.BEGIN
    assert parse_position("end") is Position.END
