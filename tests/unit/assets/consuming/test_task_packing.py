"""Ranges are shared among tasks: each once, evenly, and with no more tasks than needed."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.assets.consuming.task_packing import (
    RECORDS_PER_PART_MIN,
    RECORDS_PER_TASK_MIN,
    UNEVEN_MAX,
    pack,
    parts_of,
)
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.positions import divide_offsets
from dagster_leasehold.shard_sources.source import ReadRange

MANY = RECORDS_PER_TASK_MIN


def ranges(*records: int) -> list[ReadRange]:
    return [ReadRange(ShardId(str(n)), "0", str(count), count) for n, count in enumerate(records)]


def test_few_records_are_one_task() -> None:
    assert len(pack(ranges(10, 10, 10), 4)) == 1


def test_small_ranges_share_tasks_of_a_given_size() -> None:
    few = ranges(MANY, MANY, MANY, MANY)
    assert [len(pack(few, 4, worth)) for worth in (MANY, 2 * MANY, 9 * MANY)] == [4, 2, 1]


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


PART = RECORDS_PER_PART_MIN


def lengths(*records: int, tasks_max: int = 4) -> list[list[int]]:
    parts = parts_of(ranges(*records), tasks_max, divide_offsets)
    return [[part.records for part in cut] for cut in parts.values()]


def test_one_busy_shard_is_divided_among_all_tasks() -> None:
    assert lengths(8 * PART) == [[2 * PART] * 4]
    assert lengths(2 * PART) == [[PART] * 2], "parts are worth their files"
    assert lengths(PART) == [[PART]]


def test_only_a_range_that_would_delay_the_job_is_divided() -> None:
    assert lengths(*[4 * PART] * 16) == [[4 * PART]] * 16
    cut = lengths(*[PART] * 4, 36 * PART)
    assert cut == [[PART]] * 4 + [[9 * PART] * 4]


def test_ranges_of_other_sources_stay_whole() -> None:
    [range_] = ranges(100 * PART)
    assert parts_of([range_], 4, None) == {range_.shard: [range_]}


def test_a_range_with_cursors_that_are_not_numbers_is_not_divided() -> None:
    """Goal: an error of one shard stops no other."""
    odd, long = ReadRange(ShardId("a"), "gone", "x"), ranges(8 * PART)[0]
    parts = parts_of([odd, long], 4, divide_offsets)
    assert parts["a"] == [odd]
    assert len(parts[long.shard]) == 4


def test_a_range_of_unknown_length_is_divided_by_its_cursors() -> None:
    range_ = ReadRange(ShardId("a"), "10", str(10 + 8 * PART))
    assert [part.records for part in parts_of([range_], 4, divide_offsets)["a"]] == [2 * PART] * 4


@given(st.lists(st.integers(0, 10 * PART), min_size=1, max_size=20), st.integers(1, 16))
def test_parts_cover_the_ranges_and_none_is_much_longer_than_its_share(
    records: list[int], tasks_max: int
) -> None:
    given_ranges = ranges(*records)
    parts = parts_of(given_ranges, tasks_max, divide_offsets)
    fair = max(sum(records) / tasks_max, PART)
    for range_ in given_ranges:
        cut = parts[range_.shard]
        assert (cut[0].start, cut[-1].end) == (range_.start, range_.end)
        assert all(one.end == other.start for one, other in pairwise(cut))
        assert sum(part.records for part in cut) == range_.records
        assert len(cut) <= tasks_max
        assert all(part.records <= fair * 1.5 + 1 for part in cut)
        assert len(cut) == 1 or min(part.records for part in cut) >= PART / UNEVEN_MAX / 1.25
