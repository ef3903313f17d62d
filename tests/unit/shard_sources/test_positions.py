from __future__ import annotations

from datetime import datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.lease_store.errors import CursorInvalid
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.positions import divide_offsets, parse_position
from dagster_leasehold.shard_sources.source import Position, ReadRange


@given(st.text(max_size=40))
def test_any_text_is_a_position_or_refused(text: str) -> None:
    position = parse_position(text)
    assert position is None or isinstance(position, Position | datetime)


def test_begin_and_end_need_no_time() -> None:
    assert parse_position("begin") is Position.BEGIN
    assert parse_position("end") is Position.END


@given(st.integers(0, 2**62), st.integers(0, 10_000), st.integers(1, 64))
def test_parts_of_offsets_join_and_are_even(start: int, length: int, count: int) -> None:
    parts = divide_offsets(ReadRange(ShardId("0"), str(start), str(start + length)), count)
    assert len(parts) == max(1, min(count, length))
    assert (parts[0].start, parts[-1].end) == (str(start), str(start + length))
    assert all(one.end == other.start for one, other in pairwise(parts))
    lengths = [part.records for part in parts]
    assert sum(lengths) == length
    assert max(lengths) - min(lengths) <= 1


def test_only_offsets_are_divided() -> None:
    with pytest.raises(CursorInvalid):
        divide_offsets(ReadRange(ShardId("0"), "begin", "7"), 2)
