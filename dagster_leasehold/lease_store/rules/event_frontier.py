"""Pure rules for the event time up to which the committed output of a stream is complete.

A shard that can still deliver records holds back every hour that its watermark has not passed.
Finished shards do not hold back any hour, nor do idle shards if the declaration allows that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.times import time_text

HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class ShardTime:
    """The event time that one shard has reached.

    Attributes:
        watermark: the largest event time of its committed output; None without output.
        finished: True if it was read to its end and gets no further records.
        idle: True if it has been caught up for the time in the declaration.
    """

    shard: ShardId
    watermark: datetime | None = None
    finished: bool = False
    idle: bool = False


def lease_times(leases: Sequence[ShardLease]) -> list[ShardTime]:
    """Return how far each shard has come, by the lease tables."""
    return [
        ShardTime(lease.shard, lease.watermark, finished=lease.state is ShardState.OVER)
        for lease in leases
    ]


@dataclass(frozen=True, slots=True)
class Frontier:
    """The event time before which output is complete.

    Attributes:
        until: that time; None if no output is certainly complete.
        held_by: the shard that holds back the next hour, or None.
        clause: a readable explanation, as one clause.
    """

    until: datetime | None
    held_by: ShardId | None
    clause: str


def frontier(
    shards: Sequence[ShardTime],
    *,
    unlisted: Collection[ShardId] = (),
    out_of_order: timedelta = timedelta(0),
) -> Frontier:
    """Return the event time before which the output of all these shards is complete.

    Args:
        unlisted: shards of the source that are not in the lease tables yet.
        out_of_order: the most by which a record can be older than an earlier record of its shard.
    """
    if unlisted:
        first = min(unlisted)
        return Frontier(None, first, f"held back by shard {first}, which is new to the group")
    holding = [shard for shard in shards if not shard.finished and not shard.idle]
    unread = [shard.shard for shard in holding if shard.watermark is None]
    if unread:
        return Frontier(
            None, min(unread), f"held back by shard {min(unread)}, which has no output yet"
        )
    reached = [(shard.watermark, shard.shard) for shard in holding if shard.watermark]
    if reached:
        watermark, shard = min(reached)
        until = _before(watermark, out_of_order)
        return Frontier(until, shard, f"shard {shard} has reached {time_text(watermark)}")
    watermarks = [shard.watermark for shard in shards if shard.watermark is not None]
    if not watermarks:
        return Frontier(None, None, "no shard has output")
    if all(shard.finished for shard in shards):
        # No more records can arrive: the last hour is complete although no shard has passed it.
        until = _end_of_hour(max(watermarks))
        return Frontier(until, None, "all shards are finished")
    until = _before(max(watermarks), out_of_order)
    return Frontier(until, None, f"all shards are idle since {time_text(max(watermarks))}")


def _before(time: datetime, span: timedelta) -> datetime | None:
    """Return a time earlier by a span; None before the year 1."""
    try:
        return time - span
    except OverflowError:
        return None


def _end_of_hour(time: datetime) -> datetime:
    """Return the end of the hour of a time; for the last hour of 9999, the time itself."""
    try:
        return hour_of(time) + HOUR
    except OverflowError:
        return time


def hour_of(time: datetime) -> datetime:
    """Return the beginning of the hour of a time."""
    return time.replace(minute=0, second=0, microsecond=0)


def complete_hours(since: datetime, until: datetime | None, limit: int) -> list[datetime]:
    """Return the hours from `since` that end by `until`, both in UTC; at most `limit`."""
    hours: list[datetime] = []
    while until is not None and until - since >= HOUR and len(hours) < limit:
        hours.append(since)
        since += HOUR
    return hours
