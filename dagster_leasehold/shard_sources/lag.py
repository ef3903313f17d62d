"""The bounds of many shards, and their lag: the records in the log that are not committed yet.

A shard that the source does not answer for hides none of the others. Lag is for people and alerts:
no decision follows from its seconds, which are counted by a clock that the caller gives.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from dagster_leasehold.lease_store.errors import LeaseholdError, SourceRefused, SourceThrottled
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.shard_sources.source import ShardBounds, ShardSource, bounds_for, times_for

LOOK_EVERY_S = 15.0
"""The time between two looks for the oldest unread record of a shard that is being read."""


@dataclass(frozen=True, slots=True)
class Lags:
    """A look at shards: how many of their records are unread.

    Attributes:
        records: the unread records of each shard; None where the source cannot tell.
        behind: the places of the readers of those shards that may have some.
        trouble: a sentence where the source did not answer; empty otherwise.
        bounds: of the shards, where it did.
    """

    records: Mapping[ShardId, int | None]
    behind: Mapping[ShardId, str]
    trouble: str = ""
    bounds: Mapping[ShardId, ShardBounds] = field(default_factory=dict[ShardId, ShardBounds])

    def unread(self, shard: ShardId) -> bool:
        """Return False if a shard is known to be read to its end."""
        return self.records.get(shard) != 0

    def error_of(self, shard: ShardId) -> str:
        """Return the sentence on an unanswered shard, or an empty text."""
        return "" if shard in self.bounds else self.trouble

    def seconds(self, times: Mapping[ShardId, datetime], now: datetime) -> dict[ShardId, float]:
        """Return the age of the oldest unread record of each shard, where it is known.

        Args:
            times: of the records at `behind`.
            now: the time when ages are counted; a record from after it has the age 0.
        """
        ages = {shard: max(0.0, (now - time).total_seconds()) for shard, time in times.items()}
        return {shard: 0.0 for shard, count in self.records.items() if count == 0} | ages


@dataclass(frozen=True, slots=True)
class _Seen:
    cursor: str
    time: datetime | None
    asked_s: float

    def stale(self, cursor: str) -> bool:
        return self.time is None or self.cursor != cursor


@dataclass(slots=True)
class UnreadTimes:
    """The times of the oldest unread records of one group, remembered from look to look.

    A record has one time: nothing is asked of the source while its reader stalls, nor where
    nothing is unread. A shard whose reader moves is asked for every `LOOK_EVERY_S` at most; until
    then the former record's time stands, so that its lag is up to that much too long.

    Attributes:
        clock: monotonic seconds.
    """

    clock: Clock = time.monotonic
    _seen: dict[ShardId, _Seen] = field(default_factory=dict[ShardId, _Seen])

    def of(self, source: ShardSource, behind: Mapping[ShardId, str]) -> dict[ShardId, datetime]:
        """Return the times of the records at these cursors; one that is not known is left out."""
        now_s = self.clock()
        seen = {shard: self._seen[shard] for shard in behind.keys() & self._seen.keys()}
        fresh = {
            shard: cursor
            for shard, cursor in behind.items()
            if (last := seen.get(shard)) is None
            or (last.stale(cursor) and now_s - last.asked_s >= LOOK_EVERY_S)
        }
        times = unread_times(source, fresh)
        seen |= {shard: _Seen(at, times.get(shard), now_s) for shard, at in fresh.items()}
        self._seen = seen
        return {shard: last.time for shard, last in seen.items() if last.time is not None}


@dataclass(slots=True)
class StandingShards:
    """The time that shards of one group have not moved although something is unread.

    It counts from the first look that showed both, so that a record after an idle night begins a
    new count.

    Attributes:
        clock: monotonic seconds.
    """

    clock: Clock = time.monotonic
    _since: dict[ShardId, tuple[str, float]] = field(
        default_factory=dict[ShardId, tuple[str, float]]
    )

    def seconds(self, lags: Lags) -> dict[ShardId, float]:
        """Return the seconds of each shard, 0 if it moved or has nothing unread.

        A shard that the source did not answer for is left out, and its count continues.
        """
        now_s = self.clock()
        standing: dict[ShardId, float] = {}
        for shard, count in lags.records.items():
            place = lags.behind.get(shard)
            if count is None and place is None:
                continue
            cursor, since_s = self._since.get(shard, ("", now_s))
            if count == 0 or place is None:
                self._since.pop(shard, None)
                standing[shard] = 0.0
                continue
            self._since[shard] = (place, since_s if cursor == place else now_s)
            standing[shard] = now_s - self._since[shard][1]
        self._since = {shard: self._since[shard] for shard in lags.records.keys() & self._since}
        return standing


def unread_times(source: ShardSource, behind: Mapping[ShardId, str]) -> dict[ShardId, datetime]:
    """Return the times of the records at these cursors; an error leaves its shard out."""
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
    """Return the name of the step of `bounds_of` for a shard."""
    return f"asking for the bounds of shard {shard}"


def bounds_of(
    source: ShardSource, cursors: Mapping[ShardId, str | None], steps: FailingSteps
) -> dict[ShardId, ShardBounds]:
    """Return the bounds of shards; an error of one shard is noted in `steps`, and hides no other.

    Args:
        source: the log.
        cursors: the place of the reader of each shard; None where it has not begun.
        steps: of the caller's rounds; a shard that failed is left out until its wait is over.

    Raises:
        SourceUnavailable, SourceRefused: the source does not answer at all.
    """

    def ask(shards: list[ShardId]) -> dict[ShardId, ShardBounds]:
        return bounds_for(source, {shard: cursors[shard] for shard in shards})

    items = {bounds_step(shard): shard for shard in cursors}
    answers = steps.attempt_all(items, ask, raises=(SourceRefused, SourceThrottled))
    return {shard: bounds for answer in answers for shard, bounds in answer.items()}


def lags_of(source: ShardSource, leases: Iterable[ShardLease]) -> Lags:
    """Return the lag of shards at their checkpoints; one that is over has none, and costs nothing.

    A source that does not answer is a sentence beside unknown lags, not an error.
    """
    rows = list(leases)
    over = {lease.shard: 0 for lease in rows if lease.state is ShardState.OVER}
    lags = lags_at(source, {row.shard: row.check_point for row in rows if row.shard not in over})
    return replace(lags, records={**lags.records, **over})


def lags_at(source: ShardSource, cursors: Mapping[ShardId, str | None]) -> Lags:
    """Return the lag of shards whose readers stand at these cursors, or have not begun (None)."""
    lags: dict[ShardId, int | None] = dict.fromkeys(cursors)
    steps = FailingSteps(lambda: 0.0)
    try:
        bounds = bounds_of(source, cursors, steps)
    except LeaseholdError as error:
        return Lags(lags, {}, str(error))
    places = {shard: cursors[shard] or extent.begin for shard, extent in bounds.items()}
    for shard, extent in bounds.items():
        what = f"counting the unread records of shard {shard}"
        count = partial(source.lag, shard, places[shard], extent)
        lags[shard] = steps.attempt(what, count, None)
    behind = {shard: place for shard, place in places.items() if lags[shard] != 0}
    return Lags(lags, behind, "; ".join(steps.notes), bounds)
