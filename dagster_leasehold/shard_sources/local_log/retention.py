"""Retention: whole segments at the head of a shard go, the rest stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from filelock import FileLock

from dagster_leasehold.lease_store.errors import ShardBusy
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log.format import microseconds
from dagster_leasehold.shard_sources.local_log.heads import HeadsFile
from dagster_leasehold.shard_sources.local_log.segments import Segment, SegmentSpan, list_segments
from dagster_leasehold.shard_sources.local_log.shard_reading import ShardFolder
from dagster_leasehold.shard_sources.local_log.writing import ShardWriter

_LOCK_WAIT_S = 30.0


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
    if gone and gone[-1].name == extent.segments[-1].name:
        try:
            with open_writer(folder.shard) as writer:
                writer.roll()
        except ShardBusy:
            gone = gone[:-1]
        else:
            # Looked at again: records may have come between the look and the lock.
            gone = _removable(folder, before)
            gone = [span for span in gone if span.name != folder.extent().segments[-1].name]
    if gone:
        _remove_before(folder, gone[-1].end)
    return str(folder.extent().begin)


def _remove_before(folder: ShardFolder, begin: int) -> None:
    """Move the beginning of a shard, and only then remove what lies before it.

    A crash in between leaves files that nobody reads, and that the next retention removes.
    """
    with FileLock(folder.folder / "retain.lock", timeout=_LOCK_WAIT_S):
        head = folder.head()
        if begin > head.begin:
            with HeadsFile(folder.root, writable=True) as heads:
                heads.write_begin(folder.shard, begin)
        for name in list_segments(folder.folder):
            if name.first < max(begin, head.begin):
                # The bytes first: an index alone is nothing, a segment without it is damage.
                name.data.unlink(missing_ok=True)
                name.index.unlink(missing_ok=True)


def _removable(folder: ShardFolder, before: datetime | str) -> list[SegmentSpan]:
    extent = folder.extent()
    limit_us = microseconds(before) if isinstance(before, datetime) else None
    limit = extent.end if isinstance(before, datetime) else folder.offset(before, extent)
    gone: list[SegmentSpan] = []
    for span in extent.segments:
        try:
            with Segment(span) as segment:
                segment.check_whole()
                time_max = segment.time_max
        except FileNotFoundError:
            # Somebody else retains the same shard and was faster.
            continue
        if span.end > limit or span.end == span.name.first:
            break
        if limit_us is not None and time_max is not None and time_max >= limit_us:
            break
        gone.append(span)
    return gone
