"""Records that were committed after their hour was made: found, counted, and marked for a rerun.

Looked through are batches that are new since the last look, and of these only files that reach
back into hours that were asked for. A batch is done with when every such hour has its row: until
then nobody can tell whether the hour's run has read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from assets.committed_dataset import EventSpan, committed_dataset
from assets.event_frontier import HOUR, hour_of
from assets.hourly_asset import HourlyAsset, LateAction
from lease_store.event_windows import EventWindow
from lease_store.identifiers import ShardId
from lease_store.records import Batch, ShardLease
from lease_store.store import Changed, LeaseStore


def reached_hours(batch: Batch, since: datetime, until: datetime) -> set[datetime]:
    """The hours within `[since, until)` that output of a batch may lie in."""
    found: set[datetime] = set()
    files = [file for file in batch.files if not file.quarantine]
    spans = [(file.first_event_time or since, file.last_event_time or until) for file in files]
    if not files and batch.statistics.written:
        # Compaction has put its records into an earlier batch's file already.
        spans = [(since, until)]
    for first, last in spans:
        hour = max(hour_of(first), since)
        while hour < until and hour <= last:
            found.add(hour)
            hour += HOUR
    return found


@dataclass(slots=True)
class LateRecords:
    """Counts late records of one downstream asset; remembers what it has looked through.

    Attributes:
        hourly: the asset.
        store: the lease store.
        output_root: the folder of the stream's output.
    """

    hourly: HourlyAsset
    store: LeaseStore
    output_root: Path
    _next: dict[ShardId, int] | None = None
    _seen: dict[ShardId, str | None] = field(default_factory=dict[ShardId, str | None])
    _waiting: dict[datetime, EventWindow] = field(default_factory=dict[datetime, EventWindow])

    def look(self, shards: Sequence[ShardLease], asked_until: datetime) -> list[EventWindow]:
        """Count what came late since the last look; the hours that it was counted for.

        Args:
            shards: as the lease tables have them now.
            asked_until: runs were asked for all hours before this one.

        Raises:
            LogCorrupt: a file of committed output cannot be read.
        """
        since = max(
            self.hourly.since,
            hour_of(asked_until - timedelta(seconds=self.hourly.late.within_s)),
        )
        windows = None
        if self._next is None:
            windows = self._windows(since, asked_until)
            self._next = _first_uncovered(list(windows.values()), shards)
            self._waiting = {at: window for at, window in windows.items() if window.rerun}
        moved = {
            lease.shard: self._next.get(lease.shard, 0)
            for lease in shards
            if lease.check_point is not None
            and self._seen.get(lease.shard, "") != lease.check_point
        }
        batches = list(self.store.batches_since(self.hourly.stream.key, moved)) if moved else []
        reached = {batch: reached_hours(batch, since, asked_until) for batch in batches}
        if any(reached.values()):
            windows = self._windows(since, asked_until) if windows is None else windows
        made = windows or {}
        counted, raced = self._count(reached, made)
        unsettled = {
            batch.shard for batch, hours in reached.items() if raced or not hours <= made.keys()
        }
        for lease in shards:
            if lease.shard in moved and lease.shard not in unsettled:
                self._seen[lease.shard] = lease.check_point
        for batch in batches:
            if batch.shard not in unsettled:
                self._next[batch.shard] = batch.sequence + 1
        return counted

    def reruns(self) -> list[EventWindow]:
        """Hours that wait to be made again, by start."""
        if self._waiting:
            found = self._windows(min(self._waiting), max(self._waiting) + HOUR)
            self._waiting = {at: found[at] for at in self._waiting if at in found}
            self._waiting = {at: window for at, window in self._waiting.items() if window.rerun}
        return [self._waiting[at] for at in sorted(self._waiting)]

    def _windows(self, since: datetime, until: datetime) -> dict[datetime, EventWindow]:
        found = self.store.windows(
            self.hourly.stream.key, self.hourly.name, since=since, until=until
        )
        return {window.start: window for window in found}

    def _count(
        self,
        reached: Mapping[Batch, set[datetime]],
        windows: Mapping[datetime, EventWindow],
    ) -> tuple[list[EventWindow], bool]:
        """Write what is late into the hours' rows; and whether somebody else wrote one first."""
        counted: list[EventWindow] = []
        raced = False
        for start, window in sorted(windows.items()):
            numbers = [
                (batch.shard, batch.sequence)
                for batch, hours in reached.items()
                if start in hours and batch.sequence >= window.covered.get(batch.shard, 0)
            ]
            if not numbers:
                continue
            ends = {shard: number + 1 for shard, number in sorted(numbers)}
            late = committed_dataset(
                self.store,
                self.hourly.stream.key,
                self.output_root,
                numbers={
                    shard: range(window.covered.get(shard, 0), end) for shard, end in ends.items()
                },
                span=EventSpan(window.start, window.end),
            ).count_rows()
            if not late:
                continue
            written = replace(
                window,
                version=window.version + 1,
                covered={**window.covered, **ends},
                late=window.late + late,
                rerun=window.rerun or self.hourly.late.action is LateAction.RERUN,
            )
            if not isinstance(self.store.put_window(self.hourly.stream.key, written), Changed):
                raced = True
                continue
            counted.append(written)
            if written.rerun:
                self._waiting[start] = written
        return counted, raced


def _first_uncovered(
    windows: Sequence[EventWindow], shards: Sequence[ShardLease]
) -> dict[ShardId, int]:
    """Where to begin for each shard after a restart: the least that any hour covers."""
    return {
        lease.shard: min((window.covered.get(lease.shard, 0) for window in windows), default=0)
        for lease in shards
    }
