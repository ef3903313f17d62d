"""The size of batches follows the measured speed."""

from __future__ import annotations

import pytest

from dagster_leasehold.assets.consuming.batch_sizes import (
    BATCH_TARGET_S,
    CHANGE_MAX,
    FIRST,
    BatchSizes,
)
from dagster_leasehold.shard_sources.source import Limits

LARGE = Limits(records_max=1_000_000, bytes_max=256 * 1024 * 1024)


def full(sizes: BatchSizes) -> list[tuple[int, int]]:
    """Return the records and bytes of two batches, one of which has the maximum size."""
    return [(sizes.limits.records_max, 1), (1, 1)]


def test_the_first_batch_is_small() -> None:
    assert BatchSizes(LARGE, 120.0).limits == FIRST


def test_no_batch_exceeds_the_limits_of_the_stream() -> None:
    sizes = BatchSizes(Limits(records_max=4, bytes_max=100), 120.0)
    for _ in range(10):
        sizes.record_sweep(full(sizes), took_s=0.01)
        assert sizes.limits == Limits(records_max=4, bytes_max=100)
        assert sizes.expected_s == pytest.approx(0.01), "it grows no more"


def test_batches_grow_while_a_fast_run_catches_up() -> None:
    sizes = BatchSizes(LARGE, 120.0)
    sizes.record_sweep(full(sizes), took_s=0.5)
    assert sizes.limits.records_max == FIRST.records_max * CHANGE_MAX
    for _ in range(5):
        sizes.record_sweep(full(sizes), took_s=0.5)
    assert sizes.limits == LARGE


def test_batches_at_the_record_limit_keep_their_expected_time() -> None:
    sizes = BatchSizes(Limits(records_max=4), 120.0)
    for _ in range(3):
        sizes.record_sweep([(4, 40)], took_s=3.0)
        assert sizes.expected_s == pytest.approx(3.0)


def test_a_batch_takes_no_longer_than_its_target() -> None:
    """Each sweep takes a second for 50,000 records."""
    sizes = BatchSizes(Limits(10_000_000, 10**12), 120.0)
    for _ in range(10):
        sizes.record_sweep(full(sizes), took_s=sizes.limits.records_max / 50_000)
    assert sizes.limits.records_max == pytest.approx(50_000 * BATCH_TARGET_S)
    assert sizes.expected_s == pytest.approx(BATCH_TARGET_S)


def test_a_slow_transform_makes_batches_smaller() -> None:
    """One record takes a second."""
    sizes = BatchSizes(LARGE, 120.0)
    for _ in range(10):
        sizes.record_sweep(full(sizes), took_s=sizes.limits.records_max)
    assert sizes.limits.records_max == BATCH_TARGET_S


def test_the_start_of_spark_does_not_shrink_batches() -> None:
    sizes = BatchSizes(Limits(records_max=40), 120.0)
    sizes.record_sweep([(40, 400)], took_s=25.0)
    assert sizes.limits.records_max == 40
    sizes.record_sweep([(40, 400)], took_s=25.0)
    assert sizes.limits.records_max == 16, "so slow are the records themselves"


def test_a_short_transfer_limit_makes_batches_shorter() -> None:
    sizes = BatchSizes(Limits(10_000_000, 10**12), 8.0)
    for _ in range(10):
        sizes.record_sweep(full(sizes), took_s=sizes.limits.records_max / 50_000)
    assert sizes.expected_s == pytest.approx(2.0)


def test_batches_at_the_end_of_the_log_do_not_change_the_size() -> None:
    sizes = BatchSizes(LARGE, 120.0)
    sizes.record_sweep([(100, 5_000), (20, 900)], took_s=0.3)
    assert sizes.limits == FIRST
    assert sizes.expected_s == 0.3
