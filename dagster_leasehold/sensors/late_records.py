"""Counts records that were committed after their hour was completed.

Each tick reads the batches that were committed since the last one, and opens only files whose event
times overlap requested hours. The last batch of each such hour is kept until the hour has a row,
which lists the batches that the hour's run has read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from dagster_leasehold.assets.errors import OutputUnreadable
from dagster_leasehold.assets.output.expired_output import expired_output
from dagster_leasehold.assets.output.table.reading import (
    EventSpan,
    PlannedFile,
    TablePlan,
    plan_table,
)
from dagster_leasehold.assets.output.table.schemas import TIME_COLUMN
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.table_settings import CatalogSettings
from dagster_leasehold.assets.windows.hourly_asset import HourlyAsset, LateAction, hour_key
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.roles.windows import Windows
from dagster_leasehold.lease_store.rules.event_frontier import HOUR, hour_of
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.window_rows import EventWindow

SPANS_MAX = 8
"""The most time spans that are queried one by one; more spans are merged into one."""


def reached_hours(batch: Batch, since: datetime, until: datetime) -> set[datetime]:
    """Return the hours in `[since, until)` that the event times of a batch overlap."""
    hours: set[datetime] = set()
    files = [file for file in batch.files if not file.quarantine]
    spans = [(file.first_event_time or since, file.last_event_time or until) for file in files]
    if not files and batch.statistics.written:
        # Compaction has moved its records to the file of an earlier batch.
        spans = [(since, until)]
    for first, last in spans:
        hour = max(hour_of(first), since)
        while hour < until and hour <= last:
            hours.add(hour)
            hour += HOUR
    return hours


def windows_of(
    store: Windows, hourly: HourlyAsset, hours: Collection[datetime]
) -> dict[datetime, EventWindow]:
    """Return the rows of these hours, by hour."""
    windows: dict[datetime, EventWindow] = {}
    for since, until in _spans(hours):
        rows = store.windows(hourly.stream.key, hourly.name, since=since, until=until)
        windows |= {row.start: row for row in rows if row.start in hours}
    return windows


def _spans(hours: Collection[datetime]) -> list[tuple[datetime, datetime]]:
    spans: list[tuple[datetime, datetime]] = []
    for hour in sorted(hours):
        if spans and spans[-1][1] == hour:
            spans[-1] = spans[-1][0], hour + HOUR
        else:
            spans.append((hour, hour + HOUR))
    return spans if len(spans) <= SPANS_MAX else [(spans[0][0], spans[-1][1])]


@dataclass(slots=True)
class LateRecords:
    """The late records of one downstream asset, and how far the ledger was read for them.

    Attributes:
        steps: the back-off of each hour and shard that failed.
    """

    hourly: HourlyAsset
    store: LeaseStore
    output_root: OutputPlace
    steps: FailingSteps
    catalog: CatalogSettings
    _next: dict[ShardId, int] | None = None
    _seen: dict[ShardId, str | None] = field(default_factory=dict[ShardId, str | None])
    _ends: dict[datetime, dict[ShardId, int]] = field(
        default_factory=dict[datetime, dict[ShardId, int]]
    )

    def begin(
        self, shards: Sequence[ShardLease], requested_until: datetime
    ) -> list[EventWindow] | None:
        """Choose where to start in the ledger; return the rows of hours that can get late records.

        It returns None if this process has called it before.
        """
        if self._next is not None:
            return None
        since = self.since(requested_until)
        windows = self.store.windows(
            self.hourly.stream.key, self.hourly.name, since=since, until=requested_until
        )
        # The runs of all these hours have read the batches below this number.
        self._next = {
            lease.shard: min((window.covered.get(lease.shard, 0) for window in windows), default=0)
            for lease in shards
        }
        return windows

    def since(self, requested_until: datetime) -> datetime:
        """Return the first hour whose late records are counted."""
        within = timedelta(seconds=self.hourly.late.within_s)
        return max(self.hourly.since, hour_of(requested_until - within))

    def read_ledger(self, shards: Sequence[ShardLease], requested_until: datetime) -> None:
        """Read the batches that were committed since the last call."""
        assert self._next is not None
        since, present = self.since(requested_until), {lease.shard for lease in shards}
        self._next = {shard: number for shard, number in self._next.items() if shard in present}
        self._seen = {shard: at for shard, at in self._seen.items() if shard in present}
        self._ends = {at: ends for at, ends in self._ends.items() if at >= since}
        changed_shards = {
            f"reading the ledger of shard {lease.shard}": lease
            for lease in shards
            if lease.check_point is not None
            and self._seen.get(lease.shard, "") != lease.check_point
        }
        self.steps.attempt_all(changed_shards, partial(self._read, since, requested_until))

    def _read(self, since: datetime, until: datetime, leases: list[ShardLease]) -> None:
        assert self._next is not None
        numbers = {lease.shard: self._next.get(lease.shard, 0) for lease in leases}
        batches: Iterable[Batch] = self.store.batches_since(self.hourly.stream.key, numbers)
        for batch in batches:
            for at in reached_hours(batch, since, until):
                self._ends.setdefault(at, {})[batch.shard] = batch.last + 1
            self._next[batch.shard] = batch.last + 1
        for lease in leases:
            self._seen[lease.shard] = lease.check_point

    @property
    def hours(self) -> set[datetime]:
        """The hours that new batches overlap, and whose late records are not counted yet."""
        return set(self._ends)

    def count(self, rows: Mapping[datetime, EventWindow]) -> list[EventWindow]:
        """Add the numbers of late records to the rows of their hours; return the changed rows.

        An hour is retried in a later tick if its batches are not published yet, if a file cannot
        be read, or if another process wrote its row first.
        """
        changed_rows: list[EventWindow] = []
        for at in sorted(self._ends.keys() & rows.keys()):
            step = f"counting late records of {hour_key(at)}"
            written = self.steps.attempt(step, partial(self._count_one, rows[at]), None)
            changed_rows += [written] if written is not None else []
        return changed_rows

    def _count_one(self, window: EventWindow) -> EventWindow | None:
        ends = {
            shard: end
            for shard, end in sorted(self._ends[window.start].items())
            if end > window.covered.get(shard, 0)
        }
        if ends and not self._published(ends):
            return None
        late = self._rows(window, ends) if ends else 0
        if not late:
            del self._ends[window.start]
            return None
        written = replace(
            window,
            version=window.version + 1,
            covered={**window.covered, **ends},
            late=window.late + late,
            rerun=window.rerun or self.hourly.late.action is LateAction.RERUN,
        )
        if not isinstance(self.store.put_window(self.hourly.stream.key, written), Changed):
            return None
        del self._ends[window.start]
        return written

    def _published(self, ends: Mapping[ShardId, int]) -> bool:
        cursors = self.store.published_until(self.hourly.stream.key, ends) or {}
        return all(cursors.get(shard, 0) >= end for shard, end in ends.items())

    def _rows(self, window: EventWindow, ends: Mapping[ShardId, int]) -> int:
        """Count an hour's records in batches that its run has not read."""
        key, span = self.hourly.stream.key, EventSpan(window.start, window.end)
        plan = plan_table(
            self.store, key, self.output_root, shards=ends, span=span, catalog=self.catalog
        )
        expired = expired_output(self.store, key, ends)
        begins = {shard: each.first_number for shard, each in expired.items()}
        return sum(
            self._rows_of(
                plan,
                file,
                range(max(window.covered.get(shard, 0), begins.get(shard, 0)), ends[shard]),
                span,
            )
            for file in plan.files
            for shard in [file.shard]
        )

    def _rows_of(self, plan: TablePlan, file: PlannedFile, numbers: range, span: EventSpan) -> int:
        """Count the records of a file that are in a time span and in the batches `numbers`."""
        file_numbers = file.numbers
        if (
            file_numbers is None
            or file_numbers.stop <= numbers.start
            or file_numbers.start >= numbers.stop
        ):
            return 0
        dataset, of_span = plan.dataset([file]), span.expression()
        if numbers.start <= file_numbers.start and file_numbers.stop <= numbers.stop:
            return dataset.count_rows(filter=of_span)
        batches = list(
            self.store.each_batch(self.hourly.stream.key, file.shard, numbers=file_numbers)
        )
        before = sum(b.statistics.written for b in batches if b.last < numbers.start)
        within = [b for b in batches if b.sequence in numbers and b.last in numbers]
        after = sum(b.statistics.written for b in batches if b.sequence >= numbers.stop)
        rows = sum(b.statistics.written for b in within)
        if before + rows + after != file.records:
            raise OutputUnreadable(
                f"Batches {file_numbers.start} to {file_numbers[-1]} of shard {file.shard} are "
                f"merged in {file.path}, and the ledger does not show which rows belong to which "
                "batch. Replay these batches."
            )
        return dataset.to_table([TIME_COLUMN]).slice(before, rows).filter(of_span).num_rows
