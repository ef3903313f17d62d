"""The line that a run shows of itself."""

from __future__ import annotations

import pytest

from dagster_leasehold.assets.consuming.consumption_report import ConsumptionReport, StopReason
from dagster_leasehold.assets.consuming.run_progress import RunProgress
from dagster_leasehold.lease_store.identifiers import ShardId


def report(records: int | None, batches: int) -> ConsumptionReport:
    return ConsumptionReport(ShardId("0"), StopReason.INTERRUPTED, records=records, batches=batches)


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (
            RunProgress((report(12_000, 3), report(345, 1)), 25, 3.4, 6.6),
            "12,345 read, 25 unread for 3 s, commit in 7 s",
        ),
        (RunProgress((report(7, 1),), 0, None, None), "7 read, nothing unread"),
        (
            RunProgress((report(None, 2),), None, None, 0.0),
            "2 batches read, some unread, commit now",
        ),
        (
            RunProgress((report(19_652, 28),), 1_394, 9.8, 0.2),
            "19,652 read, 1,394 unread for 10 s, commit now",
        ),
    ],
)
def test_it_says_what_was_read_what_waits_and_when_it_commits(
    progress: RunProgress, line: str
) -> None:
    assert progress.sentence == line
    assert len(line) <= 50, "Dagster's pages cut the rest"
