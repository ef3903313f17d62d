"""Appending to one shard: one writer at a time, and a tail that a crash cannot leave half-written.

The order of an append, and what a crash at each point leaves:

1. messages are written to the segment: bytes that no index entry names, cut off by the next writer;
2. the segment is flushed to the disk: the same;
3. entries are written to the index: whole ones are taken over by the next writer, a torn one is
   cut off; readers look no further than the head;
4. the index is flushed to the disk: the same;
5. the head is written and flushed, and only now the append returns: the records stay, and what is
   missing of them is damage.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Self

from filelock import FileLock, Timeout

from dagster_leasehold.lease_store.errors import ShardBusy, ShardReadOnly, SourceUnavailable
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log import segments
from dagster_leasehold.shard_sources.local_log.catalog import load_catalog
from dagster_leasehold.shard_sources.local_log.format import (
    IndexEntry,
    Message,
    Record,
    encode,
    in_messages,
    segment_header,
)
from dagster_leasehold.shard_sources.local_log.heads import Head, HeadsFile, Point
from dagster_leasehold.shard_sources.local_log.tails import writable_tail

SEGMENT_BYTES_MAX = 128 * 1024 * 1024
# What opening a writer costs is bounded by it: the index of the last segment is read as a whole.
SEGMENT_ENTRIES_MAX = 16_384
_FLUSH_BYTES = 16 * 1024 * 1024
_NO_TIME = -(2**63)


class AppendedRange(NamedTuple):
    """The cursors `[begin, end)` of what was appended."""

    begin: str
    end: str


class ShardWriter:
    """The one writer of a shard; a context manager that holds the shard's lock.

    Args:
        root: the log's folder.
        shard: the shard to append to.
        clock: the event time of records that have none.
        durable: wait for the disk at each append. Without it an append survives the death of
            this process; a power failure before the writer is closed may cut it off.
        segment_bytes_max: a segment is closed when it has grown to this size.
        wait_s: how long to wait for another writer to finish.
        closing: open a read-only shard as well, to repair its tail.

    Raises:
        LogNotFound, UnknownShard: on entry: there is no such log or shard.
        ShardReadOnly: on entry: the shard was split or merged.
        ShardBusy: on entry: somebody else is writing to the shard.
        LogCorrupt: on entry: acknowledged records are missing, or the last ones are damaged.
        SourceUnavailable: on entry: the folder cannot be written to.
    """

    def __init__(
        self,
        root: Path,
        shard: ShardId,
        *,
        clock: Callable[[], datetime],
        durable: bool = True,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        wait_s: float = 0.0,
        closing: bool = False,
    ) -> None:
        self._root = root
        self._shard = shard
        self._folder = segments.shard_folder(root, shard)
        self._clock = clock
        self._durable = durable
        self._segment_bytes_max = segment_bytes_max
        self._closing = closing
        self._lock = FileLock(self._folder / "write.lock", timeout=wait_s)
        self._segment: segments.AppendableSegment | None = None
        self._heads = HeadsFile(root, writable=True)
        self._head = Head()
        self._at = Point()
        self._time_max = _NO_TIME
        self._broken = False

    def __enter__(self) -> Self:
        load_catalog(self._root).find(self._shard)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout:
            raise ShardBusy(
                f"Shard {self._shard} of {self._root} is being written to by another process: "
                "try again when it has finished."
            ) from None
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            # Looked at under the lock: a split takes it too before it makes the shard read-only.
            if load_catalog(self._root).find(self._shard).read_only and not self._closing:
                raise ShardReadOnly(
                    f"Shard {self._shard} of {self._root} is read-only since it was split or "
                    "merged: append to its children."
                )
            self._heads.open()
            self._open_last()
        except OSError as error:
            self._close()
            raise self._unwritable(error) from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if not self._broken and self._segment:
            # Without waiting for the disk, nobody was promised that this goes well.
            with suppress(OSError):
                self._settle(self._segment)
        self._heads.close()
        if self._segment:
            self._segment.close()
        self._segment = None
        self._lock.release()

    @property
    def end(self) -> str:
        """The cursor after the last record appended."""
        return str(self._at.end)

    def append(self, records: Iterable[bytes | Record]) -> AppendedRange:
        """Append records in order; memory stays bounded however many there are.

        When this raises, the records before the failure that fill whole flushes stay appended.

        Raises:
            RecordRefused: a record is too large or of another type.
            SourceUnavailable: the disk did not take them.
        """
        begin = self._at.end
        messages: list[Message] = []
        size = 0
        for chunk in in_messages(records):
            messages.append(encode(chunk, self._clock()))
            size += len(messages[-1].encoded)
            if size >= min(_FLUSH_BYTES, self._segment_bytes_max):
                self._commit(messages)
                messages, size = [], 0
        if messages:
            self._commit(messages)
        return AppendedRange(str(begin), str(self._at.end))

    def roll(self) -> None:
        """Close the segment and begin an empty one, unless the last one is empty already."""
        if self._at.entries:
            self._begin_segment()

    def _commit(self, messages: list[Message]) -> None:
        segment = self._segment
        if self._broken or segment is None:
            raise SourceUnavailable(
                f"The writer of shard {self._shard} stopped at an earlier error: open it again."
            )
        try:
            if self._is_full():
                segment = self._begin_segment()
            entries: list[IndexEntry] = []
            offset, position, time_max = self._at.end, self._at.size, self._time_max
            for message in messages:
                entry = message.placed(offset, position, time_max)
                entries.append(entry)
                offset, position = entry.end, entry.position_end
                time_max = entry.time_max_so_far
            index = b"".join(entry.pack() for entry in entries)
            encoded = b"".join(message.encoded for message in messages)
            segment.append(encoded, index, durable=self._durable)
            point = Point(
                first=self._at.first,
                entries=self._at.entries + len(entries),
                size=position,
                end=offset,
                index_checksum=zlib.crc32(index, self._at.index_checksum),
            )
            self._acknowledge(point, durable=self._durable)
        except OSError as error:
            # Part of it may be written, so positions kept here are no longer those of the files.
            self._broken = True
            raise self._unwritable(error) from error
        self._at, self._time_max = point, time_max

    def _is_full(self) -> bool:
        at = self._at
        return at.size >= self._segment_bytes_max or at.entries >= SEGMENT_ENTRIES_MAX

    def _acknowledge(self, point: Point, *, durable: bool) -> None:
        """Write the head: from now on all that lies before a point must be there."""
        head = Head(
            sequence=self._head.sequence + 1,
            appended=point,
            flushed=point if durable else self._head.flushed,
        )
        self._heads.write(self._shard, head, durable=durable)
        self._head = head

    def _settle(self, segment: segments.AppendableSegment) -> None:
        """Put on the disk what was appended without waiting for it."""
        if self._head.flushed != self._head.appended:
            segment.sync()
            self._acknowledge(self._at, durable=True)

    def _unwritable(self, error: OSError) -> SourceUnavailable:
        return SourceUnavailable(
            f"Shard {self._shard} of {self._root} cannot be written: {error.strerror}."
        )

    def _open_last(self) -> None:
        self._head = head = self._heads.read(self._shard)
        tail = writable_tail(self._folder, head)
        if tail is None:
            self._begin_segment()
            return
        name, count = tail.name, tail.count or 0
        with segments.Segment(tail) as segment:
            last = segment.entry(count - 1) if count else None
            if last is not None:
                # Damaged bytes must not be buried under new ones.
                segment.batch(last)
            checksum = segment.index_checksum
        size = last.position_end if last else len(segment_header())
        self._at = Point(name.first, count, size, tail.end, checksum)
        self._time_max = last.time_max_so_far if last else _NO_TIME
        self._segment = segments.AppendableSegment.reopen(name, size, count)
        if self._at == head.appended == head.flushed and head.certain:
            return
        # Even for a writer that does not wait for the disk: what was acknowledged before must not
        # depend on what this one does.
        self._segment.sync()
        self._acknowledge(self._at, durable=True)

    def _begin_segment(self) -> segments.AppendableSegment:
        if self._segment:
            self._settle(self._segment)
            self._segment.close()
            self._segment = None
        name = segments.SegmentName(self._at.end, self._folder)
        self._segment = segments.AppendableSegment.begin(name)
        self._at = Point(name.first, size=len(segment_header()), end=name.first)
        self._time_max = _NO_TIME
        return self._segment
