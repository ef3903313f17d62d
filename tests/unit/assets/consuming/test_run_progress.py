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
            RunProgress((report(12_000, 3), report(345, 1)), 4, 25, 3.4, 6.6),
            "4 shards: 12,345 records in 4 batches; 25 unread, the oldest for at most 3 s; "
            "next commit in 7 s",
        ),
        (
            RunProgress((report(7, 1),), 1, 0, None, None),
            "1 shard: 7 records in 1 batch; nothing unread",
        ),
        (
            RunProgress((report(None, 2),), 1, None, None, 0.0),
            "1 shard: 2 batches; some unread; next commit now",
        ),
    ],
)
def test_it_says_what_was_read_what_waits_and_when_it_commits(
    progress: RunProgress, line: str
) -> None:
    assert progress.sentence == line
