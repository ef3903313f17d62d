"""The line that a run shows of itself."""

from __future__ import annotations

import pytest

from dagster_leasehold.assets.consuming.consumption_report import ConsumptionReport, StopReason
from dagster_leasehold.assets.consuming.run_progress import CatchUpLines, RunProgress
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchCommit, BatchStatistics
from dagster_leasehold.lease_store.rules.progress import ProgressLines
from dagster_leasehold.lease_store.shard_rows import Tenure


def report(records: int | None, batches: int) -> ConsumptionReport:
    return ConsumptionReport(ShardId("0"), StopReason.INTERRUPTED, records=records, batches=batches)


def commit_of(records: int) -> BatchCommit:
    tenure = Tenure(GroupKey.parse("default", "orders"), ShardId("0"), NodeName("a"), 1, "run")
    statistics = BatchStatistics(records=records)
    return BatchCommit(tenure, 0, "0", "1", "attempt", (), statistics)


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
            RunProgress((report(19_652, 28),), 90_000, 9.8, 0.2, rate=310.4),
            "19,652 read, 90,000 unread, 310/s, 4 min left",
        ),
        (
            RunProgress((report(19_652, 28),), 1_394, 9.8, 0.2),
            "19,652 read, 1,394 unread for 10 s, commit now",
        ),
    ],
)
def test_a_run_logs_read_and_waiting_records_and_the_next_commit(
    progress: RunProgress, line: str
) -> None:
    assert progress.sentence == line
    assert len(line) <= 50, "Dagster's pages cut the rest"


def test_a_run_that_catches_up_logs_its_rate_and_the_remaining_records_every_30_seconds() -> None:
    """Goal: only a line that is due asks the source."""
    now_s, sentences, asked = [0.0], list[str](), list[float]()

    def unread() -> int:
        asked.append(now_s[0])
        return 9_000

    lines = CatchUpLines(
        ProgressLines("Consuming", "records", sentences.append, lambda: now_s[0]), unread
    )
    for now_s[0] in (10.0, 20.0, 30.0, 40.0):
        lines([commit_of(1_000)])
    assert sentences == ["Consuming: 3,000 of 12,000 records, 100/s, 1 min left"]
    assert asked == [30.0]
