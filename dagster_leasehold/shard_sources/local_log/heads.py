"""The heads of a log's shards: how much of each was acknowledged, and where each begins.

The files of a shard cannot say by themselves that the last one is missing: it looks like one that
was never written. So the file `heads` in the log's folder holds a record of fixed size for each
shard. An append returns once its head is on the disk, after the file that the head speaks of;
retention moves the beginning before it removes a file. A file below a head that is not there
is damage; files above it were never acknowledged.

A record has two slots, written by turns, so that a torn write leaves the one before:

1. slot A says that 10 records were acknowledged;
2. the writer appends 5 more: their file is on the disk;
3. the power fails while slot B is written: A counts, and the file is whole, so that the next writer
   keeps the 5 records.
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
RECORD_BYTES = 128
_SLOT = struct.Struct("<QQ")
_BEGIN = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_SLOT_AT = (0, 32)
_BEGIN_AT = (64, 96)
_SLOT_BYTES = _SLOT.size + _CHECKSUM.size
_BEGIN_BYTES = _BEGIN.size + _CHECKSUM.size
_READS_MAX = 3


@dataclass(frozen=True, slots=True)
class Head:
    """The head of one shard.

    Attributes:
        sequence: +1 at each append.
        end: the offset after the last record that was acknowledged.
        begin: the offset where retention lets the shard begin.
        certain: both slots are whole, so that this is certainly the newest.
    """

    sequence: int = 0
    end: int = 0
    begin: int = 0
    certain: bool = True

    def slot(self, shard: ShardId) -> bytes:
        """Return the bytes of one slot."""
        return _sealed(shard, _SLOT.pack(self.sequence, self.end))

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
        whole = [_SLOT.unpack(body) for body in slots if body is not None]
        beginnings = [_BEGIN.unpack(body)[0] for body in begins if body is not None]
        if not whole or not beginnings:
            return None
        sequence, end = max(whole)
        return cls(sequence, end, max(beginnings), certain=len(whole) == len(slots))


def _sealed(shard: ShardId, body: bytes) -> bytes:
    return body + _CHECKSUM.pack(zlib.crc32(shard.encode() + body))


def _body(shard: ShardId, stored: bytes) -> bytes | None:
    """Return the content that a checksum is right for, or None where it is wrong."""
    body = stored[: -_CHECKSUM.size]
    return body if stored == _sealed(shard, body) else None


def make_heads(root: Path, shards: Iterable[ShardId]) -> None:
    """Write a new file with the head of an empty shard for each of these; durable."""
    with replacing(root / HEADS_FILE, durable=True) as file:
        for shard in shards:
            file.seek(int(shard) * RECORD_BYTES)
            file.write(Head().record(shard))


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
            # Again, since a reader can look while a slot is written, and then at the other one.
            record = os.pread(self._file, RECORD_BYTES, int(shard) * RECORD_BYTES)
            head = Head.parse(shard, record)
            if head is not None:
                return head
        place = f"in the {RECORD_BYTES} bytes from {int(shard) * RECORD_BYTES}"
        raise damaged_file(self._path, f"is damaged {place}, the head of shard {shard}")

    def write(self, shard: ShardId, head: Head) -> None:
        """Write a head over the one before the last; its `begin` is not looked at; durable."""
        at = int(shard) * RECORD_BYTES + _SLOT_AT[head.sequence % 2]
        os.pwrite(self._file, head.slot(shard), at)
        os.fdatasync(self._file)

    def add(self, shards: Iterable[ShardId]) -> None:
        """Write the heads of new shards, which have no writer or reader yet; durable."""
        for shard in shards:
            os.pwrite(self._file, Head().record(shard), int(shard) * RECORD_BYTES)
        os.fsync(self._file)

    def write_begin(self, shard: ShardId, begin: int) -> None:
        """Move the beginning of a shard; one of its two copies is whole at any time; durable."""
        for at in _BEGIN_AT:
            content = _sealed(shard, _BEGIN.pack(begin))
            os.pwrite(self._file, content, int(shard) * RECORD_BYTES + at)
            os.fdatasync(self._file)
