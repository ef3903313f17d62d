from __future__ import annotations

from datetime import UTC, datetime, timedelta

from dagster_leasehold.assets.consuming.consumption_report import (
    ConsumptionReport,
    StopReason,
    with_lag_after,
)
from dagster_leasehold.lease_store.identifiers import ShardId
from tests.unit.sensors.streams import ScriptedSource

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class TimedSource(ScriptedSource):
    """One that knows the time of shard 0's unread record alone."""

    def times_at(self, cursors: dict[ShardId, str]) -> dict[ShardId, datetime]:
        return {shard: NOW - timedelta(seconds=9) for shard in cursors if shard == "0"}


def test_the_age_of_the_oldest_unread_record_is_reported_if_the_source_knows_it() -> None:
    source = TimedSource(ends={"0": 5, "1": 5, "2": 5})
    reports = {
        ShardId(shard): ConsumptionReport(ShardId(shard), StopReason.BUDGET_ENDED, end=end)
        for shard, end in (("0", "3"), ("1", "3"), ("2", "5"), ("3", None))
    }
    after = with_lag_after(source, reports, NOW)
    lags = {shard: (report.lag_after, report.lag_seconds) for shard, report in after.items()}
    assert lags == {"0": (2, 9.0), "1": (2, None), "2": (0, 0.0), "3": (None, None)}


def test_an_unavailable_source_leaves_lag_and_age_unknown() -> None:
    source = TimedSource(ends={"0": 5}, down="The log is away.")
    report = ConsumptionReport(ShardId("0"), StopReason.BUDGET_ENDED, end="3")
    (only,) = with_lag_after(source, {ShardId("0"): report}, NOW).values()
    assert (only.lag_after, only.lag_seconds) == (None, None)
