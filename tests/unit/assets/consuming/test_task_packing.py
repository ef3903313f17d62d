"""Ranges are shared among tasks: each once, evenly, and no more tasks than they are worth."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.assets.consuming.task_packing import RECORDS_PER_TASK_MIN, pack
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import ReadRange

MANY = RECORDS_PER_TASK_MIN


def ranges(*records: int) -> list[ReadRange]:
    return [ReadRange(ShardId(str(n)), "0", str(count), count) for n, count in enumerate(records)]


def test_few_records_are_one_task() -> None:
    assert len(pack(ranges(10, 10, 10), 4)) == 1


def test_long_ranges_are_spread_evenly() -> None:
    packed = pack(ranges(8 * MANY, MANY, MANY, MANY, MANY, 4 * MANY), 2)
    assert sorted(sum(range_.records for range_ in task) for task in packed) == [8 * MANY] * 2


def test_an_unknown_length_counts_as_long() -> None:
    packed = pack(ranges(0, 0, 0), 4)
    assert len(packed) == 3


@given(st.lists(st.integers(0, 10 * MANY), min_size=1, max_size=60), st.integers(1, 16))
def test_every_range_is_packed_once(records: list[int], tasks_max: int) -> None:
    packed = pack(ranges(*records), tasks_max)
    assert 1 <= len(packed) <= tasks_max
    assert all(packed)
    assert sorted(range_.shard for task in packed for range_ in task) == sorted(
        range_.shard for range_ in ranges(*records)
    )
