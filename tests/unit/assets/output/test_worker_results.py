"""Results of workers arrive as they were sent, and errors keep their types."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.output.worker_results import (
    RangeStatistics,
    WorkerFailed,
    WrittenFile,
    worker_errors,
)
from dagster_leasehold.lease_store.errors import (
    CursorExpired,
    InvalidIdentifier,
    LogCorrupt,
    SourceError,
)

TRACE = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "frame_tasks.py", line 70, in _task
    raise WorkerFailed(errors)
dagster_leasehold.assets.output.worker_results.WorkerFailed: {}
 SQLSTATE: 38000
"""


def reported(failed: WorkerFailed) -> RuntimeError:
    """As Spark reports an exception of a worker."""
    return RuntimeError(TRACE.format(failed))


def test_statistics_and_files_are_read_back() -> None:
    time = datetime(2026, 1, 1, 12, 0, 0, 5, tzinfo=UTC)
    statistics = RangeStatistics(3, 30, time, time)
    assert RangeStatistics.of(statistics.plain()) == statistics
    file = WrittenFile("a", "a.parquet", 1, 2, False, time, time)
    assert WrittenFile.of(file.plain()) == file
    assert file.data_file("attempts/x").path == "attempts/x/a.parquet"


@pytest.mark.parametrize(
    "error",
    [
        CursorExpired("gone."),
        LogCorrupt('bad: "{\\n}" é.'),
        InvalidIdentifier("shard", "/"),
        TransformError("null."),
    ],
)
def test_errors_are_read_back_with_their_types(error: Exception) -> None:
    errors = worker_errors(reported(WorkerFailed({"a": error, "": OSError("disk")})))
    assert type(errors["a"]) is type(error)
    assert str(errors["a"]) == str(error)
    assert isinstance(errors[""], SourceError), "a foreign error is the source's"
    assert "OSError: disk" in str(errors[""])


def test_an_error_of_other_code_or_a_truncated_one_names_no_shard() -> None:
    assert worker_errors(RuntimeError(TRACE.format("ValueError: no"))) == {}
    cut = str(reported(WorkerFailed({"a": CursorExpired("gone.")})))[:-40]
    assert worker_errors(RuntimeError(cut)) == {}
