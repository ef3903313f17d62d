"""The heads of a log's shards: how much of each was acknowledged, and where each begins.

The files of a shard cannot say by themselves that something is missing from them: an index that
was cut looks like one whose last entries were never written. So the file `heads` in the log's
folder holds a record of fixed size for each shard. An append returns once its head is on the disk,
after what the head speaks of; retention moves the beginning before it removes a file. Whatever
lies below a head and is not there is damage, whatever lies above it was never acknowledged.

A record has two slots, written by turns, so that a torn write leaves the one before:

1. slot A says that 10 records were acknowledged;
2. the writer appends 5 more: their bytes, then their index entries, are on the disk;
3. the power fails while slot B is written: A counts, and the 5 records are whole, so that the next
   writer keeps them.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from dagster_leasehold.lease_store.durable_files import replacing
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log.format import damaged_file

HEADS_FILE = "heads"
RECORD_BYTES = 256
_POINT = struct.Struct("<QQQQI")
_SLOT = struct.Struct("<Q")
_BEGIN = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_SLOT_AT = (0, 96)
_BEGIN_AT = (192, 224)
_SLOT_BYTES = _SLOT.size + 2 * _POINT.size + _CHECKSUM.size
_BEGIN_BYTES = _BEGIN.size + _CHECKSUM.size
_NO_SEGMENT = 2**64 - 1
_READS_MAX = 3


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a shard up to which records were appended.

    Attributes:
        first: the offset after which the segment is named; `_NO_SEGMENT` before the first one.
        entries: entries of the segment's index.
        size: bytes of the segment.
        end: the offset after the last record.
        index_checksum: CRC-32 of these entries.
    """

    first: int = _NO_SEGMENT
    entries: int = 0
    size: int = 0
    end: int = 0
    index_checksum: int = 0

    @property
    def is_origin(self) -> bool:
        """True if nothing was appended yet."""
        return self.first == _NO_SEGMENT

    def pack(self) -> bytes:
        """Return the point in its stored form."""
        return _POINT.pack(self.first, self.entries, self.size, self.end, self.index_checksum)


@dataclass(frozen=True, slots=True)
class Head:
    """The head of one shard.

    Attributes:
        sequence: +1 at each write.
        appended: up to where appends have returned.
        flushed: up to where they are on the disk, too; less only after appends that did not wait.
        begin: the offset at which retention lets the shard begin.
        certain: both slots are whole, so that this is certainly the newest.
    """

    sequence: int = 0
    appended: Point = Point()
    flushed: Point = Point()
    begin: int = 0
    certain: bool = True

    def slot(self, shard: ShardId) -> bytes:
        """Return the bytes of one slot."""
        body = _SLOT.pack(self.sequence)
        return _sealed(shard, body + self.appended.pack() + self.flushed.pack())

    def record(self, shard: ShardId) -> bytes:
        """Return a whole new record, with the same in both slots."""
        record = bytearray(RECORD_BYTES)
        begin = _sealed(shard, _BEGIN.pack(self.begin))
        for turn, (slot_at, begin_at) in enumerate(zip(_SLOT_AT, _BEGIN_AT, strict=True)):
            slot = replace(self, sequence=self.sequence + turn).slot(shard)
            record[slot_at : slot_at + _SLOT_BYTES] = slot
            record[begin_at : begin_at + _BEGIN_BYTES] = begin
        return bytes(record)

    @classmethod
    def parse(cls, shard: ShardId, record: bytes) -> Self | None:
        """The newest head in a record, or None where nothing of it is whole."""
        slots = [_body(shard, record[at : at + _SLOT_BYTES]) for at in _SLOT_AT]
        begins = [_body(shard, record[at : at + _BEGIN_BYTES]) for at in _BEGIN_AT]
        whole = [body for body in slots if body is not None]
        beginnings = [_BEGIN.unpack(body)[0] for body in begins if body is not None]
        if not whole or not beginnings:
            return None
        newest = max(whole, key=_SLOT.unpack_from)
        (sequence,) = _SLOT.unpack_from(newest)
        return cls(
            sequence=sequence,
            appended=Point(*_POINT.unpack_from(newest, _SLOT.size)),
            flushed=Point(*_POINT.unpack_from(newest, _SLOT.size + _POINT.size)),
            begin=max(beginnings),
            certain=len(whole) == len(slots),
        )


def _sealed(shard: ShardId, body: bytes) -> bytes:
    return body + _CHECKSUM.pack(zlib.crc32(shard.encode() + body))


def _body(shard: ShardId, stored: bytes) -> bytes | None:
    """Return the content that a checksum is right for, or None where it is wrong."""
    body = stored[: -_CHECKSUM.size]
    return body if stored == _sealed(shard, body) else None


def make_heads(root: Path, shards: Iterable[ShardId], head: Head) -> None:
    """Write a new file in which each of these shards, all of a log, has this head; durable."""
    with replacing(root / HEADS_FILE, durable=True) as file:
        for shard in shards:
            file.seek(int(shard) * RECORD_BYTES)
            file.write(head.record(shard))


class HeadsFile:
    """The open file of heads of a log; a context manager."""

    def __init__(self, root: Path, *, writable: bool = False) -> None:
        self._path = root / HEADS_FILE
        self._flags = os.O_RDWR if writable else os.O_RDONLY
        self._file = -1

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Open the file; raise LogCorrupt if it is missing."""
        try:
            self._file = os.open(self._path, self._flags)
        except FileNotFoundError:
            raise damaged_file(self._path, "is missing") from None

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def read(self, shard: ShardId) -> Head:
        """Return the newest head of a shard; raise LogCorrupt if its record is damaged."""
        for _ in range(_READS_MAX):
            # Twice, since a reader may look while a slot is written, and then at the other one.
            record = os.pread(self._file, RECORD_BYTES, int(shard) * RECORD_BYTES)
            head = Head.parse(shard, record)
            if head is not None:
                return head
        place = f"in the {RECORD_BYTES} bytes from {int(shard) * RECORD_BYTES}"
        raise damaged_file(self._path, f"is damaged {place}, the head of shard {shard}")

    def write(self, shard: ShardId, head: Head, *, durable: bool) -> None:
        """Write a head over the one before the last; its `begin` is not looked at."""
        at = int(shard) * RECORD_BYTES + _SLOT_AT[head.sequence % 2]
        os.pwrite(self._file, head.slot(shard), at)
        if durable:
            os.fdatasync(self._file)

    def write_whole(self, shards: Iterable[ShardId], head: Head) -> None:
        """Write whole records, for shards that nobody writes to or reads yet; durable."""
        for shard in shards:
            os.pwrite(self._file, head.record(shard), int(shard) * RECORD_BYTES)
        os.fsync(self._file)

    def write_begin(self, shard: ShardId, begin: int) -> None:
        """Move the beginning of a shard; one of its two copies is whole at any time; durable."""
        for at in _BEGIN_AT:
            content = _sealed(shard, _BEGIN.pack(begin))
            os.pwrite(self._file, content, int(shard) * RECORD_BYTES + at)
            os.fdatasync(self._file)
