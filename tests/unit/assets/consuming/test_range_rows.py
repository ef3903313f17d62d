"""Rows of parts travel as text, and become the outcome of a range only if they are the range."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from dagster_leasehold.assets.consuming.range_rows import RangeRow, outcome_of
from dagster_leasehold.assets.consuming.sweep import SweepOutcome
from dagster_leasehold.assets.errors import BatchIncomplete, TransformError
from dagster_leasehold.assets.output.worker_results import RangeStatistics, WrittenFile
from dagster_leasehold.lease_store.errors import CursorExpired, LogCorrupt, SourceThrottled
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import ReadRange

SHARD = ShardId("a")
RANGE = ReadRange(SHARD, "10", "40", 30)
PARTS = [
    ReadRange(SHARD, "10", "20", 10),
    ReadRange(SHARD, "20", "30", 10),
    ReadRange(SHARD, "30", "40", 10),
]


def time(second: int) -> datetime:
    return datetime(2026, 1, 1, 12, 0, second, 5, tzinfo=UTC)


def row(number: int) -> RangeRow:
    part = PARTS[number]
    seconds = (time(30 - number), time(40 + number))
    files = (
        WrittenFile(SHARD, f"{number}.parquet", 9, 90, False, *seconds),
        WrittenFile(SHARD, f"{number}.quarantine.parquet", 1, 10, True, *seconds),
    )
    last = str(int(part.end) - 1)
    return RangeRow(part, RangeStatistics(10, 100, *seconds), files, part.start, last)


ROWS = [row(number) for number in range(3)]


def test_rows_travel_unchanged() -> None:
    for each in (*ROWS, RangeRow(PARTS[0])):
        assert RangeRow.of(each.text()) == each


def test_parts_become_one_outcome_with_files_in_the_order_of_records() -> None:
    """Method: the rows come back in another order than that of their parts."""
    outcome = outcome_of(RANGE, PARTS, [ROWS[2], ROWS[0], ROWS[1]], "attempts/x")
    assert isinstance(outcome, SweepOutcome)
    assert [file.path for file in outcome.files] == [
        *(f"attempts/x/{number}.parquet" for number in range(3)),
        *(f"attempts/x/{number}.quarantine.parquet" for number in range(3)),
    ]
    statistics = outcome.statistics
    assert (statistics.records, statistics.bytes) == (30, 300)
    assert (statistics.written, statistics.quarantined) == (27, 3)
    assert (statistics.first_event_time, statistics.last_event_time) == (time(28), time(42))


@pytest.mark.parametrize(
    ("parts", "rows", "why"),
    [
        (PARTS[:2], ROWS[:2], "its parts end at 30"),
        ([PARTS[0], PARTS[2]], ROWS, "one part ends at 20 and the next starts at 30"),
        (
            [PARTS[0], PARTS[1], PARTS[1], PARTS[2]],
            ROWS,
            "one part ends at 30 and the next starts at 20",
        ),
        (PARTS, [ROWS[0], ROWS[2]], "returned nothing for the part from 20 to 30"),
        (PARTS, [ROWS[0], replace(ROWS[1], first="19"), ROWS[2]], "holds records from 19 to 29"),
        (PARTS, [ROWS[0], replace(ROWS[1], last="30"), ROWS[2]], "holds records from 20 to 30"),
        (
            PARTS,
            [ROWS[0], replace(ROWS[1], read=RangeStatistics(11)), ROWS[2]],
            "holds records from 20 to 29",
        ),
    ],
)
def test_holes_and_overlaps_fail_the_batch(
    parts: list[ReadRange], rows: list[RangeRow], why: str
) -> None:
    result = outcome_of(RANGE, parts, rows, "attempts/x")
    assert isinstance(result, BatchIncomplete)
    assert why in str(result)
    assert "shard a from cursor 10 to 40" in str(result)


def test_a_part_without_records_is_not_a_hole() -> None:
    """Goal: compacted topics number records with holes."""
    empty = RangeRow(PARTS[1])
    outcome = outcome_of(RANGE, PARTS, [ROWS[0], empty, ROWS[2]], "attempts/x")
    assert isinstance(outcome, SweepOutcome)
    assert outcome.statistics.records == 20


def test_cursors_of_a_whole_range_need_not_be_numbers() -> None:
    range_ = ReadRange(SHARD, "MTU=", "Mjk=", 3)
    whole = RangeRow(range_, RangeStatistics(3), (), "MTU=", "MTc=")
    assert isinstance(outcome_of(range_, [range_], [whole], "attempts/x"), SweepOutcome)


@pytest.mark.parametrize(
    "error",
    [CursorExpired("gone."), LogCorrupt("bad."), TransformError("no."), SourceThrottled("so.", 7)],
)
def test_the_error_of_a_part_is_the_error_of_its_shard(error: Exception) -> None:
    """Goal: in its own type, with its fields; parts that were made do not matter."""
    failed = RangeRow.of(RangeRow.failed(PARTS[1], error).text())
    result = outcome_of(RANGE, PARTS, [ROWS[0], failed, ROWS[2]], "attempts/x")
    assert type(result) is type(error)
    assert str(result) == str(error)
    assert vars(result) == vars(error)
