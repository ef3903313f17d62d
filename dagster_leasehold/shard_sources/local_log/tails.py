"""The tail of a shard: how much of its last segment counts, and what was never acknowledged.

Above its head a shard may end in anything: a crash leaves bytes without an entry, half an entry,
or whole entries that nobody was told of. Below its head everything must be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from dagster_leasehold.lease_store.errors import LogCorrupt
from dagster_leasehold.shard_sources.local_log.format import (
    damaged_file,
    missing_offset,
    segment_header,
)
from dagster_leasehold.shard_sources.local_log.heads import Head, Point
from dagster_leasehold.shard_sources.local_log.segments import (
    Segment,
    SegmentName,
    SegmentSpan,
    list_from,
)


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets that a shard holds now: `[begin, end)`, and the segments that hold them."""

    begin: int
    end: int
    segments: tuple[SegmentSpan, ...]


def extent_of(head: Head, names: Sequence[SegmentName]) -> Extent:
    """The offsets of a shard that has this head and these segments.

    Raises:
        FileNotFoundError: retention has removed a segment that had to be looked at.
    """
    if head.certain and head.appended == head.flushed:
        last, end = None, head.appended.end
    else:
        last = _unproved_tail(head, names)
        end = max(head.flushed.end, last.end if last else 0)
    spans = [
        SegmentSpan(name, following.first)
        for name, following in pairwise(names)
        if following.first <= end
    ]
    if last is None:
        last = _last_span(head.appended, names)
    return Extent(head.begin, end, (*spans, last) if last else ())


def _last_span(appended: Point, names: Sequence[SegmentName]) -> SegmentSpan | None:
    """The last segment, up to what was appended and no further."""
    name = next((name for name in reversed(names) if name.first <= appended.end), None)
    if name is None:
        return None
    if name.first == appended.first:
        return SegmentSpan(name, appended.end, appended.entries)
    # One that was begun after the head was written has nothing in it that counts yet.
    return SegmentSpan(name, appended.end, 0 if name.first == appended.end else None)


def _unproved_tail(head: Head, names: Sequence[SegmentName]) -> SegmentSpan | None:
    """The last segment where the head may say too little, or more than a power failure left."""
    appended = head.appended
    for name in names:
        if head.certain and name.first == appended.first:
            tail = acknowledged_tail(name, appended)
            if tail is not None:
                return tail
    return whole_tail(names[-1], head.flushed, verify=False) if names else None


def acknowledged_tail(name: SegmentName, point: Point) -> SegmentSpan | None:
    """The segment up to a point of it, or None where it does not reach there any more."""
    span = SegmentSpan(name, point.end, point.entries)
    with Segment(span) as segment:
        if segment.count < point.entries or segment.size < point.size:
            return None
        last = segment.stored_entry(point.entries - 1)[1] if point.entries else None
        return span if (last.end if last else name.first) == point.end else None


def whole_tail(name: SegmentName, flushed: Point, *, verify: bool) -> SegmentSpan:
    """The segment up to the last entry that is whole, above what was flushed of it.

    `verify` reads the messages, too, so that nothing is taken for whole whose bytes a power
    failure took away.

    Raises:
        FileNotFoundError: retention has removed the segment.
        LogCorrupt: what was flushed is not all there.
    """
    floor = flushed if flushed.first == name.first else Point(name.first, end=name.first)
    with Segment(SegmentSpan(name, floor.end, floor.entries)) as segment:
        segment.check_whole()
    with Segment(SegmentSpan(name, 0)) as segment:
        count, end = floor.entries, floor.end
        position = floor.size or len(segment_header())
        while count < segment.count:
            _, entry = segment.stored_entry(count)
            if entry is None or (entry.offset, entry.position) != (end, position):
                break
            if entry.position_end > segment.size or (verify and not _is_whole(segment, count)):
                break
            count, end, position = count + 1, entry.end, entry.position_end
    return SegmentSpan(name, end, count)


def _is_whole(segment: Segment, number: int) -> bool:
    try:
        segment.batch(segment.entry(number))
    except LogCorrupt:
        return False
    return True


def writable_tail(folder: Path, head: Head) -> SegmentSpan | None:
    """Return the tail that a writer goes on from; prove that nothing acknowledged is missing.

    Returns:
        The last segment up to what is whole, or None where nothing was ever appended.

    Raises:
        LogCorrupt: something is missing or damaged.
    """
    names = list_from(folder, head.begin)
    flushed = head.flushed
    if not names and flushed.is_origin:
        return None
    first = names[0].first if names else None
    if first != head.begin:
        raise missing_offset(folder, head.begin)
    _check_sealed(names)
    last = names[-1]
    if not flushed.is_origin and last.first < max(flushed.first, head.begin):
        raise missing_offset(folder, last.first)
    if last.first == flushed.first:
        with Segment(SegmentSpan(last, flushed.end, flushed.entries)) as segment:
            segment.check_whole()
            if segment.index_checksum != flushed.index_checksum:
                raise damaged_file(last.index, f"is damaged before offset {flushed.end}")
    elif last.first < flushed.end:
        raise missing_offset(folder, last.first)
    return whole_tail(last, flushed, verify=True)


def _check_sealed(names: Sequence[SegmentName]) -> None:
    for name, following in pairwise(names):
        try:
            with Segment(SegmentSpan(name, following.first)) as segment:
                segment.check_whole()
        except FileNotFoundError:
            continue  # retention goes on beside the writer
