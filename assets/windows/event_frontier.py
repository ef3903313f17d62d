"""Up to which event time a stream's committed output is complete: pure rules of shards' watermarks.

A shard that may still deliver records holds back every hour that its watermark has not passed. Two
kinds of shards hold nothing back: those that are finished, and those that are idle, where the
declaration allows for that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.times import time_text

HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class ShardTime:
    """How far one shard has come in event time.

    Attributes:
        watermark: the largest event time of its committed output; None where it has none.
        finished: it is read to its end and takes no more records.
        idle: it is caught up, and has been for as long as the declaration allows for.
    """

    shard: ShardId
    watermark: datetime | None = None
    finished: bool = False
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Frontier:
    """Before which event time nothing is missing.

    Attributes:
        until: that time; None where nothing is known to be complete.
        held_by: the shard that is the farthest back of those that hold, if any holds.
        said: the same as one clause for people.
    """

    until: datetime | None
    held_by: ShardId | None
    said: str


def frontier(
    shards: Sequence[ShardTime],
    *,
    unlisted: Collection[ShardId] = (),
    out_of_order: timedelta = timedelta(0),
) -> Frontier:
    """Before which event time the output of all these shards is complete.

    Args:
        shards: all shards that the lease tables know.
        unlisted: shards of the source that the lease tables do not know yet.
        out_of_order: how much older than its newest record a shard's next record may be.
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
        until = watermark - out_of_order
        return Frontier(until, shard, f"shard {shard} has come to {time_text(watermark)}")
    known = [shard.watermark for shard in shards if shard.watermark is not None]
    if not known:
        return Frontier(None, None, "no shard has any output")
    if all(shard.finished for shard in shards):
        # Nothing can follow: the last hour is complete although nobody has passed it.
        until = hour_of(max(known)) + HOUR
        return Frontier(until, None, "all shards are finished")
    until = max(known) - out_of_order
    return Frontier(until, None, f"all shards are idle since {time_text(max(known))}")


def hour_of(time: datetime) -> datetime:
    """The beginning of the hour that a time lies in."""
    return time.replace(minute=0, second=0, microsecond=0)


def complete_hours(since: datetime, until: datetime | None, limit: int) -> list[datetime]:
    """The hours from `since` on that end at or before `until`, at most `limit` of them.

    Both are in UTC, and `since` is the beginning of an hour.
    """
    found: list[datetime] = []
    while until is not None and since + HOUR <= until and len(found) < limit:
        found.append(since)
        since += HOUR
    return found
