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
        unread: the unread records of those at its last look; None where the source cannot tell.
        waits_s: the longest that one of them may have waited, in seconds; None where nothing is
            unread, or nobody knows since when.
        next_s: the time until the next batch, in seconds; None while nothing is unread.
    """

    reports: tuple[ConsumptionReport, ...]
    unread: int | None
    waits_s: float | None
    next_s: float | None

    @property
    def sentence(self) -> str:
        """The progress as one line: Dagster's pages cut tags after about fifty characters."""
        records = _sum(each.records for each in self.reports)
        batches = _count(sum(each.batches for each in self.reports), "batch", "batches")
        return f"{batches if records is None else f'{records:,}'} read, {self._ahead}"

    @property
    def _ahead(self) -> str:
        if self.next_s is None:
            return "nothing unread"
        unread = "some" if self.unread is None else f"{self.unread:,}"
        waits = "" if self.waits_s is None else f" for {self.waits_s:.0f} s"
        commit = "now" if self.next_s < 0.5 else f"in {self.next_s:.0f} s"
        return f"{unread} unread{waits}, commit {commit}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _sum(values: Iterable[int | None]) -> int | None:
    numbers = list(values)
    return None if None in numbers else sum(number or 0 for number in numbers)
