"""Reports of workers come back as they were, errors in their own types."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.output import attempt_reports
from dagster_leasehold.assets.output.worker_results import RangeStatistics, WrittenFile
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.lease_store.errors import (
    CursorExpired,
    InvalidIdentifier,
    LogCorrupt,
    SourceError,
)
from dagster_leasehold.lease_store.identifiers import ShardId

A, B, LIKE_A, LATE = (ShardId(name) for name in ("a", "b", "A", "late"))


def test_statistics_come_back(tmp_path: Path) -> None:
    time = datetime(2026, 1, 1, 12, 0, 0, 5, tzinfo=UTC)
    statistics = RangeStatistics(3, 30, time, time)
    folder = local_place(tmp_path)
    for shard in (A, A, LIKE_A):
        attempt_reports.report_read(folder, shard, statistics)
    attempt_reports.report_read(folder, B, RangeStatistics())
    assert attempt_reports.read_statistics(folder, [LIKE_A, B, A, LATE]) == {
        A: statistics,
        LIKE_A: statistics,
        B: RangeStatistics(),
    }


@pytest.mark.parametrize(
    "error",
    [
        CursorExpired("gone."),
        LogCorrupt("bad."),
        InvalidIdentifier("shard", "/"),
        TransformError("null."),
    ],
)
def test_errors_come_back_in_their_types(tmp_path: Path, error: Exception) -> None:
    folder = local_place(tmp_path)
    attempt_reports.report_error(folder, A, error)
    [failure] = attempt_reports.failures(folder, [B, A])
    assert type(failure.error) is type(error)
    assert str(failure.error) == str(error)
    assert failure.shard == ShardId("a")


def test_a_foreign_error_is_the_sources(tmp_path: Path) -> None:
    folder = local_place(tmp_path)
    attempt_reports.report_error(folder, None, OSError("disk"))
    [failure] = attempt_reports.failures(folder, [A])
    assert isinstance(failure.error, SourceError)
    assert "OSError: disk" in str(failure.error)
    assert failure.shard is None


def test_files_are_known_once_the_job_has_succeeded(tmp_path: Path) -> None:
    folder = local_place(tmp_path)
    assert attempt_reports.written_files(folder) is None
    attempt_reports.report_written(folder, [])
    assert attempt_reports.written_files(folder) == []
    file = WrittenFile("a", "a.parquet", 1, 2, False)
    attempt_reports.report_written(folder, [file])
    assert attempt_reports.written_files(folder) == [file]
    assert file.data_file("attempts/x").path == "attempts/x/a.parquet"
    attempt_reports.remove_reports(folder)
    assert [*tmp_path.iterdir()] == []
