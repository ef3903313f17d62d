"""Finds and counts records that were committed after their hour was completed.

Each check reads the batches committed since the last one, and opens only the files whose event
times reach into requested hours. For each such hour it remembers the last batch until the hour's
row exists, because only this row says which batches the hour's run has read.
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
from dagster_leasehold.assets.windows.event_frontier import HOUR, hour_of
from dagster_leasehold.assets.windows.hourly_asset import HourlyAsset, LateAction, hour_key
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.roles.windows import Windows
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.window_rows import EventWindow

SPANS_MAX = 8
"""The most spans of hours that are queried one by one; more are merged into one."""


def reached_hours(batch: Batch, since: datetime, until: datetime) -> set[datetime]:
    """Return the hours within `[since, until)` that a batch can have records in."""
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
    """Return the rows of these hours."""
    windows: dict[datetime, EventWindow] = {}
    for since, until in _spans(hours):
        rows = store.windows(hourly.stream.key, hourly.name, since=since, until=until)
        windows |= {row.start: row for row in rows if row.start in hours}
    return windows


def _spans(hours: Collection[datetime]) -> list[tuple[datetime, datetime]]:
    """Return at most `SPANS_MAX` time spans that cover all the hours."""
    spans: list[tuple[datetime, datetime]] = []
    for hour in sorted(hours):
        if spans and spans[-1][1] == hour:
            spans[-1] = spans[-1][0], hour + HOUR
        else:
            spans.append((hour, hour + HOUR))
    return spans if len(spans) <= SPANS_MAX else [(spans[0][0], spans[-1][1])]


@dataclass(slots=True)
class LateRecords:
    """The late records of one downstream asset; remembers how far the ledger was read.

    Attributes:
        hourly: the asset.
        store: the lease store.
        output_root: the folder of the stream's output.
        steps: skip an hour or shard for a while after it failed.
        catalog: the catalog of the stream's table.
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
        self, shards: Sequence[ShardLease], asked_until: datetime
    ) -> list[EventWindow] | None:
        """Decide where to begin reading; return the rows of hours that can get late records.

        Returns:
            The rows; None if this process has begun before.
        """
        if self._next is not None:
            return None
        since = self.since(asked_until)
        windows = self.store.windows(
            self.hourly.stream.key, self.hourly.name, since=since, until=asked_until
        )
        # Every hour has read at least the batches that the hour with the fewest has read.
        self._next = {
            lease.shard: min((window.covered.get(lease.shard, 0) for window in windows), default=0)
            for lease in shards
        }
        return windows

    def since(self, asked_until: datetime) -> datetime:
        """Return the first hour that late records are counted for."""
        within = timedelta(seconds=self.hourly.late.within_s)
        return max(self.hourly.since, hour_of(asked_until - within))

    def look(self, shards: Sequence[ShardLease], asked_until: datetime) -> None:
        """Read the batches that were committed since the last call.

        Args:
            shards: the current rows of the lease tables.
            asked_until: the first hour that was not requested yet.
        """
        assert self._next is not None
        since, present = self.since(asked_until), {lease.shard for lease in shards}
        self._next = {shard: number for shard, number in self._next.items() if shard in present}
        self._seen = {shard: at for shard, at in self._seen.items() if shard in present}
        self._ends = {at: ends for at, ends in self._ends.items() if at >= since}
        moved = {
            f"reading the ledger of shard {lease.shard}": lease
            for lease in shards
            if lease.check_point is not None
            and self._seen.get(lease.shard, "") != lease.check_point
        }
        self.steps.attempt_all(moved, partial(self._read, since, asked_until))

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
        """The hours that new batches reach into, until their rows are counted."""
        return set(self._ends)

    def count(self, rows: Mapping[datetime, EventWindow]) -> list[EventWindow]:
        """Add the number of late records to the rows of their hours; return the changed rows.

        An hour waits for a later tick if its batches are not published yet, if a file cannot be
        read, or if another process has written its row first.
        """
        counted: list[EventWindow] = []
        for at in sorted(self._ends.keys() & rows.keys()):
            step = f"counting late records of {hour_key(at)}"
            written = self.steps.attempt(step, partial(self._count_one, rows[at]), None)
            counted += [written] if written is not None else []
        return counted

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
        """Return the number of an hour's records in batches that its run has not read."""
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

    def _rows_of(self, plan: TablePlan, file: PlannedFile, wanted: range, span: EventSpan) -> int:
        """Return the number of records within a time span in some batches of a file."""
        own = file.numbers
        if own is None or own.stop <= wanted.start or own.start >= wanted.stop:
            return 0
        dataset, of_span = plan.dataset([file]), span.expression()
        if wanted.start <= own.start and own.stop <= wanted.stop:
            return dataset.count_rows(filter=of_span)
        batches = list(self.store.each_batch(self.hourly.stream.key, file.shard, numbers=own))
        before = sum(b.statistics.written for b in batches if b.last < wanted.start)
        within = [b for b in batches if b.sequence in wanted and b.last in wanted]
        after = sum(b.statistics.written for b in batches if b.sequence >= wanted.stop)
        rows = sum(b.statistics.written for b in within)
        if before + rows + after != file.records:
            raise OutputUnreadable(
                f"Batches {own.start} to {own[-1]} of shard {file.shard} are merged in "
                f"{file.path}, and the ledger does not say which rows are whose. Replay them."
            )
        return dataset.to_table([TIME_COLUMN]).slice(before, rows).filter(of_span).num_rows
