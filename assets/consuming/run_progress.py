"""The progress of a run that follows its shards, in one line for people to look at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dagster_leasehold.assets.consuming.consumption_report import ConsumptionReport

PROGRESS_TAG = "leasehold/progress"
SHOW_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The state of a run between two batches.

    Attributes:
        reports: of all its shards so far.
        following: the number of shards that it has open.
        unread: the unread records of those at its last look; None where the source cannot tell.
        waits_s: the longest that one of them may have waited, in seconds; None where nothing is
            unread, or nobody knows since when.
        next_s: the time until the next batch, in seconds; None while nothing is unread.
    """

    reports: tuple[ConsumptionReport, ...]
    following: int
    unread: int | None
    waits_s: float | None
    next_s: float | None

    @property
    def sentence(self) -> str:
        """The progress as one line."""
        shards = _count(self.following, "shard", "shards")
        batches = _count(sum(each.batches for each in self.reports), "batch", "batches")
        records = _sum(each.records for each in self.reports)
        read = batches if records is None else f"{records:,} records in {batches}"
        return f"{shards}: {read}; {self._ahead}"

    @property
    def _ahead(self) -> str:
        if self.next_s is None:
            return "nothing unread"
        unread = "some" if self.unread is None else f"{self.unread:,}"
        waits = "" if self.waits_s is None else f", the oldest for at most {self.waits_s:.0f} s"
        following = "now" if self.next_s <= 0 else f"in {self.next_s:.0f} s"
        return f"{unread} unread{waits}; next commit {following}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _sum(values: Iterable[int | None]) -> int | None:
    numbers = list(values)
    return None if None in numbers else sum(number or 0 for number in numbers)
