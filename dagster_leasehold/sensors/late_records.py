"""Records that were committed after their hour was made: found, counted, and marked for a rerun.

A look goes through the batches that are new since the last one, and opens only the files
that reach back into hours that were asked for. Of the batches that reach into an hour, the number
of the last one is remembered until the hour's row is there: only then can anybody tell what the
hour's run has read.
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
"""The most spans of hours that are asked for one by one; more are one long span."""


def reached_hours(batch: Batch, since: datetime, until: datetime) -> set[datetime]:
    """Return the hours within `[since, until)` that output of a batch can lie in."""
    hours: set[datetime] = set()
    files = [file for file in batch.files if not file.quarantine]
    spans = [(file.first_event_time or since, file.last_event_time or until) for file in files]
    if not files and batch.statistics.written:
        # Compaction has put its records into an earlier batch's file already.
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
    """Return few spans of time that cover all the hours."""
    spans: list[tuple[datetime, datetime]] = []
    for hour in sorted(hours):
        if spans and spans[-1][1] == hour:
            spans[-1] = spans[-1][0], hour + HOUR
        else:
            spans.append((hour, hour + HOUR))
    return spans if len(spans) <= SPANS_MAX else [(spans[0][0], spans[-1][1])]


@dataclass(slots=True)
class LateRecords:
    """The late records of one downstream asset, with a memory of the ledger that was read.

    Attributes:
        hourly: the asset.
        store: the lease store.
        output_root: the folder of the stream's output.
        steps: of the sensor's ticks; an hour or a shard that fails is left out for a while.
        catalog: of the stream's table.
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
        """Decide, once in a process, where to begin; return the rows of hours that can get records.

        Returns:
            The rows; None if that was done before.
        """
        if self._next is not None:
            return None
        since = self.since(asked_until)
        windows = self.store.windows(
            self.hourly.stream.key, self.hourly.name, since=since, until=asked_until
        )
        # What the least covering hour has looked through, all have.
        self._next = {
            lease.shard: min((window.covered.get(lease.shard, 0) for window in windows), default=0)
            for lease in shards
        }
        return windows

    def since(self, asked_until: datetime) -> datetime:
        """Return the first hour where late records are looked for."""
        within = timedelta(seconds=self.hourly.late.within_s)
        return max(self.hourly.since, hour_of(asked_until - within))

    def look(self, shards: Sequence[ShardLease], asked_until: datetime) -> None:
        """Read the batches that were committed since the last look.

        Args:
            shards: as the lease tables have them now.
            asked_until: runs were asked for all hours before this one.
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
        """The hours that new batches reach into and whose rows have not been looked at since."""
        return set(self._ends)

    def count(self, rows: Mapping[datetime, EventWindow]) -> list[EventWindow]:
        """Write late records into the rows of their hours; return the rows that changed.

        An hour whose batches are not published, whose file cannot be read, or whose row another
        process wrote first, is left to a later tick.
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
        """Return the number of records of an hour in batches that its run has not read."""
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
        """Return the number of records of a span in some batches of a file."""
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
                f"Batches {own.start} to {own[-1]} of shard {file.shard} lie together in "
                f"{file.path}, and the ledger does not tell their rows apart: replay them."
            )
        return dataset.to_table([TIME_COLUMN]).slice(before, rows).filter(of_span).num_rows
