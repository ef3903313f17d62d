"""Retention: whole segments at the head of a shard go, the rest stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from lease_store.errors import ShardBusy
from lease_store.identifiers import ShardId
from shard_sources.local_log.format import microseconds
from shard_sources.local_log.segments import Segment, SegmentName
from shard_sources.local_log.shard_reading import ShardFolder
from shard_sources.local_log.writing import ShardWriter


def retain(
    folder: ShardFolder, before: datetime | str, open_writer: Callable[[ShardId], ShardWriter]
) -> str:
    """Remove the segments whose records all lie before a time or a cursor.

    A shard never loses its end: when the last segment goes too, an empty one takes its place
    first. That needs the writer's lock; while somebody is writing, the last segment stays.

    Returns:
        The cursor at which the shard now begins.
    """
    gone = _removable(folder, before)
    extent = folder.extent()
    if gone and gone[-1] == extent.segments[-1]:
        try:
            with open_writer(folder.shard) as writer:
                writer.roll()
        except ShardBusy:
            gone = gone[:-1]
        else:
            # Looked at again: records may have come between the look and the lock.
            gone = _removable(folder, before)
            gone = [name for name in gone if name != folder.extent().segments[-1]]
    for name in gone:
        # The bytes first: an index alone is nothing, a segment without its index is damage.
        name.data.unlink(missing_ok=True)
        name.index.unlink(missing_ok=True)
    return str(folder.extent().begin)


def _removable(folder: ShardFolder, before: datetime | str) -> list[SegmentName]:
    extent = folder.extent()
    limit_us = microseconds(before) if isinstance(before, datetime) else None
    limit = extent.end if isinstance(before, datetime) else folder.offset(before, extent)
    gone: list[SegmentName] = []
    for name in extent.segments:
        try:
            with Segment(name, last=name == extent.segments[-1]) as segment:
                end, time_max = segment.end, segment.time_max
        except FileNotFoundError:
            # Somebody else retains the same shard and was faster.
            continue
        if end > limit or end == name.first:
            break
        if limit_us is not None and time_max is not None and time_max >= limit_us:
            break
        gone.append(name)
    return gone
