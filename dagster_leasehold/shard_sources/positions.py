"""Positions in a shard: times, offsets, ranges of offsets, and the end of a removed shard.

A service deletes a closed shard when retention removes its last record, and then reports that the
shard does not exist. A group that had not finished the shard has possibly lost records. For every
source, such a shard is empty and finished, and its only cursor, `gone`, follows all others.

1. `bounds` reports `gone`, and `plan` from any other cursor raises `CursorExpired`, as for every
   removed record. Runs and clients record a gap up to `gone`, following their group's policy.
2. `plan` from `gone` is an empty last batch. The shard is over, and its children begin.

A shard that never existed remains an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from dagster_leasehold.lease_store.errors import CursorExpired, CursorInvalid, UnknownShard, shown
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
_SHARD_DIGITS_MAX = 9
GONE = "gone"
"""The only cursor of a removed shard."""


def parse_position(text: str) -> Position | datetime | None:
    """Return the position that a user wrote: `begin`, `end` or a time; None for other text."""
    if text in (Position.BEGIN, Position.END):
        return Position(text)
    return parse_time(text)


def parse_offset(shard: ShardId, cursor: str) -> int:
    """Return a cursor as an offset; raise CursorInvalid if it is not one.

    Examples:
        >>> parse_offset(ShardId("0"), "1000")
        1000
    """
    if cursor.isascii() and cursor.isdecimal() and len(cursor) <= _DIGITS_MAX:
        offset = int(cursor)
        if offset <= OFFSET_MAX:
            return offset
    raise CursorInvalid(f"{shown(cursor)} is not a cursor of shard {shard}.")


def shard_number(shard: ShardId, log: str) -> int:
    """Return the number of a shard; raise UnknownShard if the id is not a canonical number."""
    canonical = shard.isascii() and shard.isdecimal() and str(int(shard)) == shard
    if not canonical or len(shard) > _SHARD_DIGITS_MAX:
        raise UnknownShard(f"{log} has no shard {shown(shard)}: use the number of a shard.")
    return int(shard)


def divide_offsets(range_: ReadRange, parts: int) -> list[ReadRange]:
    """Divide a range of offsets into consecutive parts of equal size, at most `parts`.

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
    """Raise CursorExpired for a position before a shard, and CursorInvalid for one after its end.

    `log` is the subject of the message, and `hint` its end.
    """
    if place < begin:
        raise CursorExpired(
            f"{log} begins at {begin}: retention has removed the records from {place} on."
        )
    if place > end:
        raise CursorInvalid(f"{log} ends at {end}: the cursor {place} lies after it{hint}")


def offsets_left(shard: ShardId, cursor: str, bounds: ShardBounds) -> int:
    """Return the number of offsets from a cursor to the end of a shard, holes included."""
    return max(0, int(bounds.end) - max(parse_offset(shard, cursor), int(bounds.begin)))


def clamped(source: ShardSource, shard: ShardId, cursor: str) -> str:
    """Return a cursor, or the nearest one from which the shard can be read.

    Raises:
        CursorInvalid: the text is not a cursor of the shard.
        SourceError: the source does not answer.
    """
    try:
        source.plan(shard, cursor, Limits(records_max=1, bytes_max=1))
    except CursorExpired:
        return bounds_for(source, {shard: cursor})[shard].begin
    except CursorInvalid:
        end = source.bounds([shard])[shard].end
        # Only decimal cursors can be distinguished from text that is not a cursor.
        if cursor.isdecimal() and end.isdecimal() and int(cursor) > int(end):
            return end
        raise
    return cursor


def was_removed(number: int, listed: Iterable[int]) -> bool:
    """Return True if a shard existed and is no longer listed; numbers rise with creation."""
    numbers = set(listed)
    return number not in numbers and number < max(numbers, default=-1)


def removed_bounds(origin: str) -> ShardBounds:
    """Return the bounds of a removed shard whose first cursor was `origin` or a later one."""
    return ShardBounds(GONE, GONE, finished=True, origin=origin, removed=True)


def removed_error(shard: ShardId) -> CursorExpired:
    """Return the error for records of a removed shard."""
    return CursorExpired(f"Retention has removed shard {shard} as a whole.")


def removed_plan(shard: ShardId, start: str) -> PlannedRange:
    """Return the empty last batch of a removed shard; raise CursorExpired from another start."""
    if start != GONE:
        raise removed_error(shard)
    return PlannedRange(GONE, 0, last=True)


def removed_lag(cursor: str) -> int | None:
    """Return 0 at the end of a removed shard; None before it, where records were possibly lost."""
    return 0 if cursor == GONE else None
