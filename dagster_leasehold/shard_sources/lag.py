"""The bounds of many shards, and their lag: the records in the log that are not committed yet.

If one shard fails, the others are still answered. Lag is only reported to people and alerts; no
decision depends on it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from dagster_leasehold.lease_store.errors import (
    LeaseholdError,
    SourceRefused,
    SourceThrottled,
    SourceUnavailable,
)
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.shard_sources.source import ShardBounds, ShardSource, bounds_for, times_for

REQUEST_EVERY_S = 15.0
"""How often the time of the oldest unread record is requested for a shard that is being read."""


@dataclass(frozen=True, slots=True)
class Lags:
    """The lag of shards at one moment.

    Attributes:
        records: the number of unread records by shard; None where it is unknown.
        behind: the readers' cursors of shards that can have unread records.
        trouble: the error if the source did not answer for some shards; otherwise empty.
        bounds: the bounds of the shards that the source answered for.
    """

    records: Mapping[ShardId, int | None]
    behind: Mapping[ShardId, str]
    trouble: str = ""
    bounds: Mapping[ShardId, ShardBounds] = field(default_factory=dict[ShardId, ShardBounds])

    def unread(self, shard: ShardId) -> bool:
        """Return True unless a shard is certainly read to its end."""
        return self.records.get(shard) != 0

    def error_of(self, shard: ShardId) -> str:
        """Return the error if the source did not answer for a shard; otherwise empty."""
        return "" if shard in self.bounds else self.trouble

    def seconds(self, times: Mapping[ShardId, datetime], now: datetime) -> dict[ShardId, float]:
        """Return the age of the oldest unread record by shard; `times` are those at `behind`."""
        ages = {shard: max(0.0, (now - time).total_seconds()) for shard, time in times.items()}
        return {shard: 0.0 for shard, count in self.records.items() if count == 0} | ages


@dataclass(frozen=True, slots=True)
class _Answer:
    cursor: str
    time: datetime | None
    requested_s: float

    def stale(self, cursor: str) -> bool:
        return self.time is None or self.cursor != cursor


@dataclass(slots=True)
class UnreadTimes:
    """The times of the oldest unread records of one group, cached between measurements.

    A record's time does not change, so nothing is requested while a reader stalls. While a reader
    moves, its time is requested every `REQUEST_EVERY_S`, so its lag is too high by at most that.
    """

    clock: Clock = time.monotonic
    _answers: dict[ShardId, _Answer] = field(default_factory=dict[ShardId, _Answer])

    def of(self, source: ShardSource, behind: Mapping[ShardId, str]) -> dict[ShardId, datetime]:
        """Return the times of the records at these cursors, where they are known."""
        now_s = self.clock()
        answers = {shard: self._answers[shard] for shard in behind.keys() & self._answers.keys()}
        due = {
            shard: cursor
            for shard, cursor in behind.items()
            if (last := answers.get(shard)) is None
            or (last.stale(cursor) and now_s - last.requested_s >= REQUEST_EVERY_S)
        }
        times = unread_times(source, due)
        answers |= {shard: _Answer(at, times.get(shard), now_s) for shard, at in due.items()}
        self._answers = answers
        return {shard: last.time for shard, last in answers.items() if last.time is not None}


@dataclass(slots=True)
class StalledShards:
    """How long shards of one group have not moved although they have unread records.

    The count starts at the first measurement with unread records, so idle time before it does not
    count.
    """

    clock: Clock = time.monotonic
    _since: dict[ShardId, tuple[str, float]] = field(
        default_factory=dict[ShardId, tuple[str, float]]
    )

    def seconds(self, lags: Lags) -> dict[ShardId, float]:
        """Return the seconds by shard: 0 if it moved or has no unread record.

        A shard without an answer is omitted, and its count continues.
        """
        now_s = self.clock()
        stalled_s: dict[ShardId, float] = {}
        for shard, count in lags.records.items():
            place = lags.behind.get(shard)
            if count is None and place is None:
                continue
            cursor, since_s = self._since.get(shard, ("", now_s))
            if count == 0 or place is None:
                self._since.pop(shard, None)
                stalled_s[shard] = 0.0
                continue
            self._since[shard] = (place, since_s if cursor == place else now_s)
            stalled_s[shard] = now_s - self._since[shard][1]
        self._since = {shard: self._since[shard] for shard in lags.records.keys() & self._since}
        return stalled_s


def unread_times(source: ShardSource, behind: Mapping[ShardId, str]) -> dict[ShardId, datetime]:
    """Return the times of the records at these cursors; a shard with an error is omitted."""
    steps = FailingSteps(lambda: 0.0)
    items = {f"asking for the oldest unread record of shard {shard}": shard for shard in behind}
    try:
        answers = steps.attempt_all(
            items, lambda shards: times_for(source, {shard: behind[shard] for shard in shards})
        )
    except LeaseholdError:
        return {}
    return {shard: time for answer in answers for shard, time in answer.items()}


def bounds_step(shard: ShardId) -> str:
    """Return the name of a shard's step in `bounds_of`."""
    return f"asking for the bounds of shard {shard}"


def bounds_of(
    source: ShardSource, cursors: Mapping[ShardId, str | None], steps: FailingSteps
) -> dict[ShardId, ShardBounds]:
    """Return the bounds of shards at their readers' cursors, None for a reader not started.

    If a shard fails, `steps` records the error and omits the shard until its retry is due.

    Raises:
        SourceUnavailable, SourceRefused: the source does not answer for any shard.
    """

    def ask(shards: list[ShardId]) -> dict[ShardId, ShardBounds]:
        return bounds_for(source, {shard: cursors[shard] for shard in shards})

    items = {bounds_step(shard): shard for shard in cursors}
    answers = steps.attempt_all(items, ask, raises=(SourceRefused, SourceThrottled))
    return {shard: bounds for answer in answers for shard, bounds in answer.items()}


def caught_up(
    source: ShardSource, leases: Iterable[ShardLease], steps: FailingSteps
) -> dict[ShardId, str | None]:
    """Return the checkpoints of the shards that have nothing to read, as far as known."""
    places = {
        lease.shard: lease.check_point for lease in leases if lease.state is not ShardState.OVER
    }
    try:
        bounds = bounds_of(source, places, steps)
    except SourceUnavailable:
        return {}
    return {
        shard: place
        for shard, place in places.items()
        if shard in bounds and (place or bounds[shard].begin) == bounds[shard].end
    }


def lags_of(source: ShardSource, leases: Iterable[ShardLease]) -> Lags:
    """Return the lag of shards at their checkpoints; a shard that is over needs no request.

    If the source does not answer, the lags are unknown and `trouble` has the error.
    """
    rows = list(leases)
    over = {lease.shard: 0 for lease in rows if lease.state is ShardState.OVER}
    lags = lags_at(source, {row.shard: row.check_point for row in rows if row.shard not in over})
    return replace(lags, records={**lags.records, **over})


def lags_at(source: ShardSource, cursors: Mapping[ShardId, str | None]) -> Lags:
    """Return the lag of shards at their readers' cursors, None for a reader not started."""
    lags: dict[ShardId, int | None] = dict.fromkeys(cursors)
    steps = FailingSteps(lambda: 0.0)
    try:
        bounds = bounds_of(source, cursors, steps)
    except LeaseholdError as error:
        return Lags(lags, {}, str(error))
    places = {shard: cursors[shard] or extent.begin for shard, extent in bounds.items()}
    for shard, extent in bounds.items():
        count = partial(source.lag, shard, places[shard], extent)
        lags[shard] = steps.attempt(f"counting the unread records of shard {shard}", count, None)
    behind = {shard: place for shard, place in places.items() if lags[shard] != 0}
    return Lags(lags, behind, "; ".join(steps.notes), bounds)
