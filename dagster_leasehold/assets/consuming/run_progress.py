"""The progress of a run, in one line.

The job that follows shards shows the line as a tag. Assets log lines while they catch up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from dagster_leasehold.assets.consuming.consumption_report import ConsumptionReport
from dagster_leasehold.lease_store.ledger_rows import BatchCommit
from dagster_leasehold.lease_store.rules.progress import ProgressLines, duration, rate_text

SHOW_EVERY_S = 30.0
NOW_S = 0.5


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The state of a run between two batches.

    Attributes:
        unread: the unread records at the last poll; None if unknown.
        waiting_s: an upper bound of the age of the unread records, in seconds; None if there is no
            unread record, or their age is unknown.
        next_s: the time until the next batch, in seconds; None if there is no unread record.
        rate: records read per second over about the last minute.
    """

    reports: tuple[ConsumptionReport, ...]
    unread: int | None
    waiting_s: float | None
    next_s: float | None
    rate: float = 0.0

    @property
    def sentence(self) -> str:
        """The progress in a short line, because Dagster's pages show only about 50 characters."""
        return f"{read_text(self.reports)} read, {self._ahead}"

    @property
    def _ahead(self) -> str:
        if self.next_s is None:
            return "nothing unread"
        unread = "some" if self.unread is None else f"{self.unread:,}"
        if self.next_s < NOW_S and self.unread and (rate := rate_text(self.rate)):
            return f"{unread} unread, {rate}, {duration(self.unread / self.rate)} left"
        waits = "" if self.waiting_s is None else f" for {self.waiting_s:.0f} s"
        commit = "now" if self.next_s < NOW_S else f"in {self.next_s:.0f} s"
        return f"{unread} unread{waits}, commit {commit}"


@dataclass(slots=True)
class CatchUpLines:
    """Writes progress lines for a run that catches up: records read, rate and time left.

    Attributes:
        lines: writes a line when it is due.
        unread: returns the number of unread records, or None if unknown.
    """

    lines: ProgressLines
    unread: Callable[[], int | None]
    _read: int = 0

    def __call__(self, commits: Sequence[BatchCommit]) -> None:
        """Count the records of commits; query the source only if a line is due."""
        self._read += sum(commit.statistics.records or 0 for commit in commits)
        unread = self.unread() if self.lines.due else None
        self.lines(self._read, None if unread is None else self._read + unread)


def records_read(reports: Iterable[ConsumptionReport]) -> int | None:
    """Return the number of records that a run has read; None if it is unknown for a shard."""
    numbers = [report.records for report in reports]
    return None if None in numbers else sum(number or 0 for number in numbers)


def read_text(reports: Collection[ConsumptionReport]) -> str:
    """Return how many records a run has read or, if unknown, how many batches."""
    records = records_read(reports)
    batches = sum(report.batches for report in reports)
    return _count(batches, "batch", "batches") if records is None else f"{records:,}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
