"""The report of a run on each shard: the results, and the reason why the run stopped.

The batch loop creates it, and assets and jobs show it in Dagster.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Self

from dagster_leasehold.assets.output.worker_results import earliest, latest
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchStatistics
from dagster_leasehold.shard_sources.lag import lags_at, unread_times
from dagster_leasehold.shard_sources.source import ShardSource

_LOG = logging.getLogger(__name__)


class StopReason(StrEnum):
    """The reason why a run stopped consuming a shard."""

    CAUGHT_UP = "caught_up"
    FINISHED = "finished"
    BUDGET_ENDED = "budget_ended"
    STOP_REQUESTED = "stop_requested"
    HANDED_OVER = "handed_over"
    PAUSED = "paused"
    LEASE_LOST = "lease_lost"
    UNTRUSTED = "untrusted"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    NOT_HELD = "not_held"
    OPEN_BY_OTHER = "open_by_other"

    @property
    def healthy(self) -> bool:
        """True if a shard that stopped for this reason needs no attention."""
        return self not in (StopReason.LEASE_LOST, StopReason.UNTRUSTED, StopReason.FAILED)


@dataclass(frozen=True, slots=True)
class ConsumptionReport:
    """The results of a run for one shard.

    Attributes:
        records: records read and committed; None if a transform stopped reading early.
        bytes: the bytes of their keys and values; None if `records` is None.
        start: the cursor where the run began; None if it did not begin.
        end: the cursor up to which it committed.
        lag_before: unread records when it began; None if unknown.
        lag_after: unread records when it stopped; None if unknown.
        lag_seconds: the age of the oldest unread record; None if unknown.
        quarantined: committed records that could not be parsed.
        written: records in committed output.
        open_by: the run that has the shard open, if `stopped` is `open_by_other`.
    """

    shard: ShardId
    stopped: StopReason
    records: int | None = 0
    bytes: int | None = 0
    batches: int = 0
    start: str | None = None
    end: str | None = None
    lag_before: int | None = None
    lag_after: int | None = None
    lag_seconds: float | None = None
    first_event_time: datetime | None = None
    last_event_time: datetime | None = None
    quarantined: int = 0
    written: int = 0
    error: str = ""
    open_by: str = ""

    def with_batch(self, end: str, statistics: BatchStatistics) -> Self:
        """Return this report after one more committed batch."""
        return replace(
            self,
            records=_sum(self.records, statistics.records),
            bytes=_sum(self.bytes, statistics.bytes),
            batches=self.batches + 1,
            end=end,
            first_event_time=earliest(self.first_event_time, statistics.first_event_time),
            last_event_time=latest(self.last_event_time, statistics.last_event_time),
            quarantined=self.quarantined + statistics.quarantined,
            written=self.written + statistics.written,
        )


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def with_lag_after(
    source: ShardSource, reports: Mapping[ShardId, ConsumptionReport], now: datetime
) -> dict[ShardId, ConsumptionReport]:
    """Return the reports with the lag at each shard's end cursor, if the source measures it."""
    ends = {shard: report.end for shard, report in reports.items() if report.end is not None}
    lags = lags_behind(source, ends, now)
    return {
        shard: replace(report, lag_after=after, lag_seconds=seconds)
        for shard, report in reports.items()
        for after, seconds in [lags.get(shard, (None, None))]
    }


def lags_behind(
    source: ShardSource, ends: Mapping[ShardId, str], now: datetime
) -> dict[ShardId, tuple[int | None, float | None]]:
    """Return each shard's number of unread records after a cursor, and the age of the oldest.

    The lag is only shown. If the source does not answer, this logs a warning and returns None.
    """
    lags = lags_at(source, ends)
    ages = lags.seconds(unread_times(source, lags.behind), now)
    if lags.trouble:
        _LOG.warning("The lag of %s is unknown: %s", ", ".join(ends), lags.trouble)
    return {shard: (lags.records.get(shard), ages.get(shard)) for shard in ends}
