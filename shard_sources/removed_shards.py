"""Shards that retention has removed as a whole: every source answers for one in the same way.

A service forgets a closed shard with its last record, and then refuses to speak of it. Whoever had
not read it to its end by then has lost records, or cannot know better. So such a shard is empty,
finished, and has one place, `gone`, that lies behind all others:

1. `bounds` says so, and `plan` of any other cursor raises `CursorExpired`, as for every record that
   retention removed. Runs and clients record a gap up to `gone`, as their group's policy says.
2. `plan` of `gone` is the last batch, an empty one: the shard is over, and its children begin.

A shard that cannot have been there, such as one of another log, is an error as before.
"""

from __future__ import annotations

from collections.abc import Iterable

from dagster_leasehold.lease_store.errors import CursorExpired
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import PlannedRange, ShardBounds

GONE = "gone"
"""The cursor behind a shard that was removed."""


def was_removed(number: int, listed: Iterable[int]) -> bool:
    """Return True if a shard was there once, where a service numbers its shards in their order.

    Args:
        number: of the shard.
        listed: the numbers of those that the service lists.
    """
    numbers = set(listed)
    return number not in numbers and number < max(numbers, default=-1)


def removed_bounds(origin: str) -> ShardBounds:
    """Return the bounds of a removed shard; `origin` is the first place that it can have had."""
    return ShardBounds(GONE, GONE, finished=True, origin=origin, removed=True)


def removed_error(shard: ShardId) -> CursorExpired:
    """Return the error for records of a removed shard."""
    return CursorExpired(f"Retention has removed shard {shard} as a whole.")


def removed_plan(shard: ShardId, start: str) -> PlannedRange:
    """Return the only batch of a removed shard: the empty one at its end.

    Raises:
        CursorExpired: `start` lies before that end.
    """
    if start != GONE:
        raise removed_error(shard)
    return PlannedRange(GONE, 0, last=True)


def removed_lag(cursor: str) -> int | None:
    """Return the unread records of a removed shard; None where some may have been lost."""
    return 0 if cursor == GONE else None
