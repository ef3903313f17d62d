"""Places in a shard: as people write them, as counted records, and where a shard is gone.

Every source answers in the same way for a shard that retention has removed as a whole. A service
forgets a closed shard with its last record, and then refuses to speak of it. A group that had not
read it to its end by then has lost records, or cannot know better. So such a shard is empty,
finished, and has one place, `gone`, that lies behind all others:

1. `bounds` says so, and `plan` of any other cursor raises `CursorExpired`, as for every record that
   retention removed. Runs and clients record a gap up to `gone`, as their group's policy says.
2. `plan` of `gone` is the last batch, an empty one: the shard is over, and its children begin.

A shard that cannot have been there, such as one of another log, is an error as before.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from dagster_leasehold.lease_store.errors import CursorExpired, CursorInvalid, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.times import parse_time
from dagster_leasehold.shard_sources.source import (
    Limits,
    PlannedRange,
    Position,
    ReadRange,
    ShardBounds,
    ShardSource,
    bounds_for,
)

OFFSET_MAX = 2**63 - 1
_DIGITS_MAX = len(str(OFFSET_MAX))
GONE = "gone"
"""The cursor behind a shard that was removed."""


def parse_position(text: str) -> Position | datetime | None:
    """Return the place that `begin`, `end` or a time names; None for any other text."""
    if text in (Position.BEGIN, Position.END):
        return Position(text)
    return parse_time(text)


def parse_offset(shard: ShardId, cursor: str) -> int:
    """Return the offset that a cursor is; raise CursorInvalid if it is none.

    Examples:
        >>> parse_offset(ShardId("0"), "1000")
        1000
    """
    if cursor.isascii() and cursor.isdecimal() and len(cursor) <= _DIGITS_MAX:
        offset = int(cursor)
        if offset <= OFFSET_MAX:
            return offset
    raise CursorInvalid(f"{shown(cursor)} is not a cursor of shard {shard}.")


def divide_offsets(range_: ReadRange, parts: int) -> list[ReadRange]:
    """Cut a range whose cursors are offsets into at most so many parts, even and in order.

    Raises:
        CursorInvalid: an end of the range is no offset.

    Examples:
        >>> [part.end for part in divide_offsets(ReadRange(ShardId("0"), "0", "10", records=10), 2)]
        ['5', '10']
    """
    shard = range_.shard
    start, end = parse_offset(shard, range_.start), parse_offset(shard, range_.end)
    length = max(0, end - start)
    parts = max(1, min(parts, length))
    cuts = [start + length * number // parts for number in range(parts)] + [end]
    return [
        ReadRange(shard, str(low), str(high), max(0, high - low))
        for low, high in itertools.pairwise(cuts)
    ]


def check_within(log: str, place: Any, begin: Any, end: Any, *, hint: str = ".") -> None:
    """Refuse a place outside of a shard; places can be compared.

    Args:
        log: the shard and its log, to begin a sentence with.
        place: to read from.
        begin: of the shard.
        end: of the shard.
        hint: ends the sentence about a place after the end.

    Raises:
        CursorExpired, CursorInvalid: it lies before the beginning, or after the end.
    """
    if place < begin:
        raise CursorExpired(
            f"{log} begins at {begin}: retention has removed the records from {place} on."
        )
    if place > end:
        raise CursorInvalid(f"{log} ends at {end}: the cursor {place} lies after it{hint}")


def offsets_left(shard: ShardId, cursor: str, bounds: ShardBounds) -> int:
    """Return the offsets between a cursor and the end of a shard; holes count."""
    return max(0, int(bounds.end) - max(parse_offset(shard, cursor), int(bounds.begin)))


def clamped(source: ShardSource, shard: ShardId, cursor: str) -> str:
    """Return a chosen cursor, or the nearest that the shard can be read from.

    Raises:
        CursorInvalid: it is no cursor of the shard at all.
        SourceError: the source does not answer.
    """
    try:
        source.plan(shard, cursor, Limits(records_max=1, bytes_max=1))
    except CursorExpired:
        return bounds_for(source, {shard: cursor})[shard].begin
    except CursorInvalid:
        end = source.bounds([shard])[shard].end
        # Only cursors that count records can be told apart from text that is no cursor.
        if cursor.isdecimal() and end.isdecimal() and int(cursor) > int(end):
            return end
        raise
    return cursor


def was_removed(number: int, listed: Iterable[int]) -> bool:
    """Return True if a shard was there once, where a service numbers its shards in their order.

    Args:
        number: of the shard.
        listed: the numbers of the listed shards.
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
    """Return the empty batch at the end of a removed shard; raise CursorExpired before it."""
    if start != GONE:
        raise removed_error(shard)
    return PlannedRange(GONE, 0, last=True)


def removed_lag(cursor: str) -> int | None:
    """Return the unread records of a removed shard; None where some might have been lost."""
    return 0 if cursor == GONE else None
