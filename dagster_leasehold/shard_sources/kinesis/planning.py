"""The ends of batches and of shards, which no call of the service tells: found by reading."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.kinesis.cursors import Place, at
from dagster_leasehold.shard_sources.kinesis.paging import Page, ShardPages, StoredRecord
from dagster_leasehold.shard_sources.kinesis.planned_ranges import RangeWriter
from dagster_leasehold.shard_sources.kinesis.user_records import (
    ROWS_PER_BATCH,
    UserRecord,
    batch_of,
)
from dagster_leasehold.shard_sources.source import Limits, PlannedRange

AHEAD_MAX = 16
RENEWALS_PER_RETENTION = 4
KEPT_FROM_RECORDS = 2
"""A plan of a single record only asks whether the cursor is one: it is not read."""
FIRST_WINDOW = timedelta(seconds=10)
WINDOW_GROWTH = 8
CLOCK_STEP = timedelta(seconds=1)
"""The service's answers tell its clock in whole seconds."""
WINDOWS = 6
"""The last one looks back almost four days; after it, the whole shard is read."""


class NewestRecords:
    """A search for the newest records of shards."""

    def __init__(self, pages: ShardPages) -> None:
        self._pages = pages

    def end(self, shard: str) -> Place | None:
        """The place after the newest record; None for a shard that holds none.

        Windows that reach back further and further are read until one holds records: an idle
        shard costs a few empty reads, a busy one its last seconds.
        """
        now = self._now(shard)
        window = FIRST_WINDOW
        for _ in range(WINDOWS):
            newest = _newest(self._pages.since(shard, now - window), now)
            if newest is not None:
                return newest.following
            window *= WINDOW_GROWTH
        newest = _newest(self._pages.oldest(shard), now)
        return newest.following if newest is not None else None

    def first_since(self, shard: str, time: datetime) -> Place | None:
        """At the first record that the service took at a time or later; None if there is none."""
        now = self._now(shard)
        if time > now + CLOCK_STEP:
            return None
        # A time after its own clock's is refused by the service.
        for page in self._pages.since(shard, min(time, now)):
            for record in page.records:
                # The service can round the time that it is asked for.
                if record.arrived >= time:
                    return at(record.number)
            if page.at_tip and not page.records:
                return None
        return None

    def _now(self, shard: str) -> datetime:
        """The service's clock."""
        now = self._pages.service_now(shard)
        return now if now is not None else datetime.now(UTC)


def _newest(pages: Iterator[Page], now: datetime) -> StoredRecord | None:
    """The last record up to the tip, or up to a time."""
    newest: StoredRecord | None = None
    for page in pages:
        newest = page.records[-1] if page.records else newest
        if not page.records and page.at_tip:
            return newest
        if newest is not None and newest.arrived > now + CLOCK_STEP:
            return newest
    return newest


@dataclass(frozen=True, slots=True)
class Step:
    """One record that a plan came to, or the end of a page.

    Attributes:
        reached: the place after it.
        record: the record; None at the end of a page.
        page: the page that ends here; None within one.
    """

    reached: Place
    record: UserRecord | None = None
    page: Page | None = None


@dataclass(slots=True)
class Unread:
    """The rest of a reading that a plan has begun: the shard's next plan continues with it.

    Attributes:
        steps: the steps that follow.
        pushed_back: the record that was too much for the batch before.
        page: the last page that was read to its end.
    """

    steps: Iterator[Step]
    pushed_back: Step | None = None
    page: Page | None = None

    def __next__(self) -> Step | None:
        step, self.pushed_back = self.pushed_back, None
        return step if step is not None else next(self.steps, None)


class ReadAhead:
    """Records that plans have read beyond the ends of their batches, for a few shards."""

    def __init__(self) -> None:
        self._rests: dict[tuple[ShardId, str], Unread] = {}
        self._lock = threading.Lock()

    def take(self, shard: ShardId, start: str) -> Unread | None:
        """The rest that begins at this cursor, once."""
        with self._lock:
            return self._rests.pop((shard, start), None)

    def keep(self, shard: ShardId, end: str, rest: Unread) -> None:
        """Keep a rest; the oldest are forgotten."""
        with self._lock:
            for former in [key for key in self._rests if key[0] == shard]:
                del self._rests[former]
            self._rests[(shard, end)] = rest
            while len(self._rests) > AHEAD_MAX:
                del self._rests[next(iter(self._rests))]


@dataclass(slots=True)
class Batch:
    """A batch that is being planned."""

    shard: ShardId
    limits: Limits
    reached: Place
    writer: RangeWriter | None
    looks_again: bool = True
    records: int = 0
    size: int = 0
    last: bool = False
    first_arrived: datetime | None = None
    _held: list[UserRecord] | None = None

    def fits(self, record: UserRecord) -> bool:
        """Return True if the batch has room for one more record; one always fits."""
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
        self.reached = record.following
        if self.writer is not None:
            self._held = self._held or []
            self._held.append(record)
            if len(self._held) >= ROWS_PER_BATCH:
                self.flush()

    def flush(self) -> None:
        """Write the records held so far to the file for Spark's workers."""
        if self._held and self.writer is not None:
            self.writer.write(batch_of(self.shard, self._held))
        self._held = None

    def planned(self) -> PlannedRange:
        """The batch as it stands."""
        return PlannedRange(str(self.reached), self.records, self.last)


def fill(batch: Batch, rest: Unread) -> bool:
    """Read on until the batch is full or the shard has no more now.

    Returns:
        True if reading can continue with the rest from the batch's end.
    """
    looked_again = False
    while True:
        step = next(rest)
        if step is None:
            return False
        if step.record is not None:
            if not batch.fits(step.record):
                rest.pushed_back = step
                return True
            batch.add(step.record)
            continue
        assert step.page is not None
        rest.page = step.page
        # Records of a page that were all left out (another shard's) are passed all the same.
        if step.reached.order > batch.reached.order:
            batch.reached = step.reached
        if step.page.closed:
            batch.last = True
            return False
        if batch.full:
            return True
        if step.page.at_tip:
            # A read-only shard can say only at one more look that it ends.
            if looked_again or not batch.looks_again:
                return bool(batch.records)
            looked_again = True


def renewed(start: Place, page: Page | None, retention_s: float) -> Place:
    """The start of an empty batch, or its renewal when a quarter of the retention has passed.

    A quiet shard would otherwise come to stand on a record that retention has
    removed, and it would be unknown whether others were removed with it.
    """
    if page is None or page.searched_s - start.sure_s < retention_s / RENEWALS_PER_RETENTION:
        return start
    return start.renewed(page.searched_s)
