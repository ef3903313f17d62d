from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from dagster_leasehold.shard_sources.kinesis.cursors import after, at
from dagster_leasehold.shard_sources.kinesis.planned_ranges import PlannedRanges
from dagster_leasehold.shard_sources.kinesis.user_records import Part, UserRecord

SHARD = "shardId-000000000000"


def keep(ranges: PlannedRanges, start: str, end: str, values: list[bytes]) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    records = [
        UserRecord(at(number), after(number, 0), now, Part("k", value))
        for number, value in enumerate(values)
    ]
    writer = ranges.writer(SHARD)
    for record in records:
        writer.add(record)
    writer.keep(start, end)


def values(ranges: PlannedRanges, start: str, end: str) -> list[bytes] | None:
    batches = ranges.read(SHARD, start, end)
    if batches is None:
        return None
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_a_range_is_read_only_by_its_exact_bounds(tmp_path: Path) -> None:
    ranges = PlannedRanges(tmp_path / "kept")
    keep(ranges, "1", "3", [b"a", b"b"])
    assert values(PlannedRanges(tmp_path / "kept"), "1", "3") == [b"a", b"b"]
    assert values(ranges, "1", "2") is None
    assert values(ranges, "0", "3") is None


def test_the_next_plan_of_the_shard_replaces_it(tmp_path: Path) -> None:
    ranges = PlannedRanges(tmp_path)
    keep(ranges, "1", "3", [b"a"])
    keep(ranges, "3", "4", [b"b"])
    assert values(ranges, "1", "3") is None
    assert values(ranges, "3", "4") == [b"b"]
    ranges.writer(SHARD).drop()
    assert list(tmp_path.rglob("*.*")) == []


def test_only_the_user_can_read_it(tmp_path: Path) -> None:
    ranges = PlannedRanges(tmp_path / "kept")
    keep(ranges, "1", "3", [b"a"])
    (file,) = (tmp_path / "kept" / SHARD).iterdir()
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_a_damaged_file_counts_as_missing(tmp_path: Path, damage: str) -> None:
    ranges = PlannedRanges(tmp_path)
    keep(ranges, "1", "3", [b"a" * 1_000])
    (file,) = (tmp_path / SHARD).iterdir()
    content = file.read_bytes()
    file.write_bytes({"cut": content[:-100], "empty": b"", "other": b"x" * 500}[damage])
    assert values(ranges, "1", "3") is None


def test_a_disk_error_only_loses_the_range(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ranges = PlannedRanges(tmp_path / "file")
    keep(ranges, "1", "3", [b"a"])
    assert values(ranges, "1", "3") is None
