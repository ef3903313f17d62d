"""The segments of one shard, as every reader sees them.

Readers take no lock. They look at the head first, at the index then and at the bytes last, and only
the writer writes, the other way round; so whatever the head speaks of is already there:

1. the writer appends messages to the segment, then their entries to the index, and flushes both;
2. a reader that looks now sees the old head, hence the old end of the shard;
3. the writer writes the head;
4. a reader that looks now sees the new end, and all that lies below it is complete.

Messages are on the disk before the entries that name them are written, so that whatever an entry
names is there.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa

from dagster_leasehold.lease_store.durable_files import sync_folder
from dagster_leasehold.lease_store.errors import LogCorrupt
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log.format import (
    DECODED_BYTES_MAX,
    ENTRY_BYTES,
    IndexEntry,
    damaged_file,
    decode,
    segment_header,
)

SEGMENT_SUFFIX = ".arrow"
INDEX_SUFFIX = ".index"
_ENTRIES_PER_READ = 512
_FLAGS = os.O_RDWR | os.O_APPEND


class AppendableSegment:
    """The files of the last segment of a shard, for the one writer that holds the shard's lock.

    Args:
        data: the descriptor of the file of messages.
        index: the descriptor of the file of entries.
    """

    def __init__(self, data: int, index: int) -> None:
        self._data = data
        self._index = index

    @classmethod
    def begin(cls, name: SegmentName) -> Self:
        """Make an empty segment; it and its name are durable when this returns."""
        flags = _FLAGS | os.O_CREAT | os.O_TRUNC
        # The index first: a segment without its index is damage, an index alone is nothing.
        index = os.open(name.index, flags, 0o644)
        segment = cls(_opened_beside(index, lambda: os.open(name.data, flags, 0o644)), index)
        try:
            _write(segment._data, segment_header())
            os.fsync(segment._data)
            sync_folder(name.folder)
        except OSError:
            segment.close()
            raise
        return segment

    @classmethod
    def reopen(cls, name: SegmentName, size: int, entries: int) -> Self:
        """Open a segment, and cut off what lies behind its last acknowledged message.

        Args:
            name: of the segment.
            size: the bytes of its file of messages that stay, its header included.
            entries: the entries that stay; without any, the header is written again.
        """
        data = os.open(name.data, _FLAGS)
        segment = cls(data, _opened_beside(data, lambda: os.open(name.index, _FLAGS)))
        try:
            os.ftruncate(segment._data, size if entries else 0)
            if not entries:
                _write(segment._data, segment_header())
            os.ftruncate(segment._index, entries * ENTRY_BYTES)
        except OSError:
            segment.close()
            raise
        return segment

    def append(self, messages: bytes, entries: bytes, *, durable: bool) -> None:
        """Append messages, then their entries; with `durable`, each waits for the disk."""
        for descriptor, content in ((self._data, messages), (self._index, entries)):
            _write(descriptor, content)
            if durable:
                os.fsync(descriptor)

    def sync(self) -> None:
        """Wait until all that was appended is on the disk."""
        os.fsync(self._data)
        os.fsync(self._index)

    def close(self) -> None:
        """Close both files."""
        for descriptor in (self._data, self._index):
            with suppress(OSError):
                os.close(descriptor)


def _opened_beside(first: int, open_second: Callable[[], int]) -> int:
    """Open a second file; where that fails, close the first."""
    try:
        return open_second()
    except OSError:
        os.close(first)
        raise


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """A segment by the offset of its first record, which is what its files are named after."""

    first: int
    folder: Path

    @property
    def data(self) -> Path:
        """The file of messages."""
        return self.folder / f"{self.first:020d}{SEGMENT_SUFFIX}"

    @property
    def index(self) -> Path:
        """The file of index entries."""
        return self.folder / f"{self.first:020d}{INDEX_SUFFIX}"


def shard_folder(root: Path, shard: ShardId) -> Path:
    """Return the folder of a shard's segments."""
    return root / "shards" / shard


def list_segments(folder: Path) -> list[SegmentName]:
    """The segments in a shard's folder, oldest first; none while nothing was appended."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(
        SegmentName(int(name.removesuffix(SEGMENT_SUFFIX)), folder)
        for name in names
        if name.endswith(SEGMENT_SUFFIX) and name.removesuffix(SEGMENT_SUFFIX).isdecimal()
    )


def list_from(folder: Path, begin: int) -> list[SegmentName]:
    """The segments in a shard's folder that hold `begin` or what comes after it, oldest first."""
    names = list_segments(folder)
    while len(names) > 1 and names[1].first <= begin:
        del names[0]
    return names


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """A segment, and how much of it counts.

    Attributes:
        end: the offset after its last record.
        count: the entries that lead there, or None for all.
    """

    name: SegmentName
    end: int
    count: int | None = None


class Segment:
    """An open segment: its entries as they stood when it was opened, and their messages.

    Raises:
        FileNotFoundError: retention has removed it.
        LogCorrupt: it has no index.
    """

    def __init__(self, span: SegmentSpan) -> None:
        self.name = name = span.name
        self.span = span
        self._data = os.open(name.data, os.O_RDONLY)
        try:
            self._index = os.open(name.index, os.O_RDONLY)
        except FileNotFoundError:
            os.close(self._data)
            if name.data.exists():
                raise damaged_file(name.index, "is missing") from None
            raise
        self.size = os.fstat(self._data).st_size
        present = os.fstat(self._index).st_size // ENTRY_BYTES
        self.count = present if span.count is None else min(span.count, present)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close both files."""
        os.close(self._data)
        os.close(self._index)

    @property
    def index_checksum(self) -> int:
        """CRC-32 of the entries that count."""
        return zlib.crc32(self._stored(0, self.count))

    def check_whole(self) -> None:
        """Raise LogCorrupt if entries or bytes are missing at its end."""
        if self.end != self.span.end:
            reason = f"ends at offset {self.end}, and {self.span.end} was written"
            raise damaged_file(self.name.index, reason)
        if self.count and self.entry(self.count - 1).position_end > self.size:
            raise damaged_file(self.name.data, "ends before its last record")

    def _stored(self, number: int, count: int) -> bytes:
        return os.pread(self._index, count * ENTRY_BYTES, number * ENTRY_BYTES)

    def entry(self, number: int) -> IndexEntry:
        """Return entry `number`, counted from 0; raise LogCorrupt if it is damaged."""
        entry = IndexEntry.unpack(self._stored(number, 1))
        if entry is None:
            raise self.damaged_entry(number)
        return entry

    def stored_entry(self, number: int) -> tuple[bytes, IndexEntry | None]:
        """The bytes of entry `number`, and the entry, or None where its checksum does not fit."""
        stored = self._stored(number, 1)
        return stored, IndexEntry.unpack(stored)

    def damaged_entry(self, number: int) -> LogCorrupt:
        """The error for entry `number`."""
        place = f"in the {ENTRY_BYTES} bytes from {number * ENTRY_BYTES}"
        return damaged_file(self.name.index, f"is damaged {place}")

    @property
    def end(self) -> int:
        """The offset after the segment's last record."""
        return self.entry(self.count - 1).end if self.count else self.name.first

    @property
    def time_max(self) -> int | None:
        """The largest event time in the segment in microseconds, or None when it is empty."""
        return self.entry(self.count - 1).time_max_so_far if self.count else None

    def number_of(self, offset: int) -> int:
        """The number of the entry that holds `offset`, or of the first one after it."""
        return max(
            0, bisect_right(range(self.count), offset, key=lambda n: self.entry(n).offset) - 1
        )

    def number_at_time(self, time_us: int) -> int:
        """The number of the first entry with a record at or after a time; `count` if none."""
        return bisect_left(range(self.count), time_us, key=lambda n: self.entry(n).time_max_so_far)

    def entries(self, number: int) -> Iterator[IndexEntry]:
        """The entries from `number` on; raise LogCorrupt at one that does not follow the last."""
        follows: IndexEntry | None = None
        while number < self.count:
            amount = min(_ENTRIES_PER_READ, self.count - number)
            stored = self._stored(number, amount)
            for at in range(0, amount * ENTRY_BYTES, ENTRY_BYTES):
                entry = IndexEntry.unpack(stored[at : at + ENTRY_BYTES])
                if entry is None or (follows is not None and entry.offset != follows.end):
                    raise self.damaged_entry(number)
                yield entry
                follows = entry
                number += 1

    def batch(self, entry: IndexEntry) -> pa.RecordBatch:
        """Return the records of one message; raise LogCorrupt if its bytes are others."""
        if entry.length > DECODED_BYTES_MAX:
            message = f"a message of {entry.length} bytes at {entry.position}, more than any has"
            raise damaged_file(self.name.index, f"names {message}")
        encoded = os.pread(self._data, entry.length, entry.position)
        return decode(encoded, entry, str(self.name.data))
