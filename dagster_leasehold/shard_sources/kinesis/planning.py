"""The ends of batches and of shards, found by reading because no request returns them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from dagster_leasehold.shard_sources.kinesis.cursors import Place, at
from dagster_leasehold.shard_sources.kinesis.paging import Page, ShardPages, StoredRecord
from dagster_leasehold.shard_sources.kinesis.planned_ranges import RangeWriter
from dagster_leasehold.shard_sources.kinesis.user_records import UserRecord
from dagster_leasehold.shard_sources.source import Limits, PlannedRange

RENEWALS_PER_RETENTION = 4
STORED_RECORDS_MIN = 2
"""The smallest record limit of a plan that is stored; a plan of one only checks its cursor."""
FIRST_WINDOW = timedelta(seconds=10)
WINDOW_GROWTH = 8
CLOCK_STEP = timedelta(seconds=1)
"""The resolution of the service's time in its answers."""
WINDOWS = 6
"""The last window begins almost four days ago; then the whole shard is read."""


class NewestRecords:
    """Searches for the newest records of shards."""

    def __init__(self, pages: ShardPages) -> None:
        self._pages = pages

    def end(self, shard: str) -> Place | None:
        """Return the position after the newest record; None for an empty shard.

        Growing windows before now are read until one has records. This costs an idle shard a few
        empty reads, and a busy one the reads of its last seconds.
        """
        now = self._now(shard)
        window = FIRST_WINDOW
        for _ in range(WINDOWS):
            newest = _newest(self._pages.since(shard, now - window), now)
            if newest is not None:
                return newest.next_place
            window *= WINDOW_GROWTH
        newest = _newest(self._pages.oldest(shard), now)
        return newest.next_place if newest is not None else None

    def first_since(self, shard: str, time: datetime) -> Place | None:
        """Return the position of the first record that arrived at a time or later, if any."""
        now = self._now(shard)
        if time > now + CLOCK_STEP:
            return None
        # The service refuses a time in its future.
        for page in self._pages.since(shard, min(time, now)):
            for record in page.records:
                # The service can round the requested time down.
                if record.arrived >= time:
                    return at(record.number)
            if page.at_tip and not page.records:
                return None
        return None

    def _now(self, shard: str) -> datetime:
        now = self._pages.service_now(shard)
        return now if now is not None else datetime.now(UTC)


def _newest(pages: Iterator[Page], now: datetime) -> StoredRecord | None:
    """Return the last record up to the tip, or up to a time."""
    newest: StoredRecord | None = None
    for page in pages:
        newest = page.records[-1] if page.records else newest
        if not page.records and page.at_tip:
            return newest
        if newest is not None and newest.arrived > now + CLOCK_STEP:
            return newest
    return newest


@dataclass(slots=True)
class Unread:
    """A read that a plan did not finish; the shard's next plan continues it.

    Attributes:
        items: the next records; each page follows its last record.
        page: the last page that was read to its end.
    """

    items: Iterator[UserRecord | Page]
    page: Page | None = None

    def push_back(self, record: UserRecord) -> None:
        """Put back a record that does not fit the batch."""
        self.items = itertools.chain((record,), self.items)


@dataclass(slots=True)
class Batch:
    """A batch that is being planned.

    Attributes:
        end: the position after its last record.
        writer: stores its records for Spark's workers.
        reads_twice: True if only a second read at the tip ends the batch.
    """

    limits: Limits
    end: Place
    writer: RangeWriter | None
    reads_twice: bool = True
    records: int = 0
    size: int = 0
    last: bool = False
    first_arrived: datetime | None = None

    def fits(self, record: UserRecord) -> bool:
        """Return True if the batch has room for a record; an empty batch always has."""
        if self.records == 0:
            return True
        return (
            self.records < self.limits.records_max
            and self.size + record.size <= self.limits.bytes_max
        )

    @property
    def full(self) -> bool:
        """True if no further record fits."""
        return self.records >= self.limits.records_max or self.size >= self.limits.bytes_max

    def add(self, record: UserRecord) -> None:
        """Add a record that fits."""
        if self.first_arrived is None:
            self.first_arrived = record.arrived
        self.records += 1
        self.size += record.size
        self.end = record.next_place
        if self.writer is not None:
            self.writer.add(record)

    def plan(self) -> PlannedRange:
        """Return the batch as a plan."""
        return PlannedRange(str(self.end), self.records, self.last)


def fill(batch: Batch, rest: Unread) -> bool:
    """Add records until the batch is full or the shard is read; return True if `rest` continues."""
    was_at_tip = False
    for item in iter(lambda: next(rest.items, None), None):
        if isinstance(item, UserRecord):
            if not batch.fits(item):
                rest.push_back(item)
                return True
            batch.add(item)
            continue
        rest.page = item
        # The batch also ends after records of another shard at the end of a page.
        if item.end is not None and item.end.order > batch.end.order:
            batch.end = item.end
        if item.closed:
            batch.last = True
            return False
        if batch.full:
            return True
        if item.at_tip:
            # Only a further read can report that a read-only shard ends here.
            if was_at_tip or not batch.reads_twice:
                return bool(batch.records)
            was_at_tip = True
    return False


def renewed(start: Place, page: Page | None, retention_s: float) -> Place:
    """Return the start of an empty batch, renewed after a quarter of the retention period.

    Otherwise the cursor of a quiet shard would point to a record that retention has removed, and
    the removal of other records with it would go unnoticed.
    """
    if page is None or page.searched_s - start.sure_s < retention_s / RENEWALS_PER_RETENTION:
        return start
    return start.renewed(page.searched_s)
