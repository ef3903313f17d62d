"""The heads of a log's shards: how many records were acknowledged, and where each shard begins.

A missing last file looks like a file that was never written. So the file `heads` in the log's
folder has a record of fixed size for each shard. An append returns when first its file and then its
head are on the disk. Retention moves the beginning before it removes a file. A missing file before
the head is damage, and files after it were never acknowledged.

A record has two slots for the end, written alternately, so that a torn write leaves the previous
one:

1. In slot A, 10 records are acknowledged.
2. The writer appends 5 more, and their file is on the disk.
3. The power fails while slot B is written. Slot A counts, and the file is complete, so the next
   writer keeps the 5 records.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

from dagster_leasehold.lease_store.durable_files import replacing
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log.format import damaged_file

HEADS_FILE = "heads"
RECORD_BYTES = 128
_CELL_BYTES = 32
_SLOT_AT = (0, 32)
_BEGIN_AT = (64, 96)
_READS_MAX = 3


class Head(NamedTuple):
    """The head of one shard.

    Attributes:
        sequence: the number of the append.
        end: the offset after the last acknowledged record.
        begin: the shard's first offset after retention.
        certain: True if both slots are complete, so that this is the newest head.
    """

    sequence: int = 0
    end: int = 0
    begin: int = 0
    certain: bool = True

    @classmethod
    def parse(cls, shard: ShardId, record: bytes) -> Self | None:
        """Return the newest head in a record; None if both slots or both beginnings are damaged."""
        slots = [slot for at in _SLOT_AT if (slot := _unsealed(shard, record, at, 2))]
        begins = [begin for at in _BEGIN_AT if (begin := _unsealed(shard, record, at, 1))]
        if not slots or not begins:
            return None
        sequence, end = max(slots)
        return cls(sequence, end, max(begins)[0], certain=len(slots) == len(_SLOT_AT))


def _sealed(shard: ShardId, *numbers: int) -> bytes:
    body = struct.pack(f"<{len(numbers)}Q", *numbers)
    return body + struct.pack("<I", zlib.crc32(shard.encode() + body))


def _unsealed(shard: ShardId, record: bytes, at: int, count: int) -> tuple[int, ...] | None:
    """Return the numbers in a cell of a record; None if their checksum is wrong."""
    cell = record[at : at + _CELL_BYTES].ljust(_CELL_BYTES, b"\0")
    numbers = struct.unpack_from(f"<{count}Q", cell)
    return numbers if cell.startswith(_sealed(shard, *numbers)) else None


def _new_record(shard: ShardId) -> bytes:
    cells = ((0, 0), (1, 0), (0,), (0,))
    return b"".join(_sealed(shard, *cell).ljust(_CELL_BYTES, b"\0") for cell in cells)


def make_heads(root: Path, shards: Iterable[ShardId]) -> None:
    """Write a new durable file with the heads of empty shards."""
    with replacing(root / HEADS_FILE, durable=True) as file:
        for shard in shards:
            file.seek(int(shard) * RECORD_BYTES)
            file.write(_new_record(shard))


class HeadsFile:
    """The file of a log's heads; a context manager that raises LogCorrupt if it is missing."""

    def __init__(self, root: Path, *, writable: bool = False) -> None:
        self._path = root / HEADS_FILE
        self._flags = os.O_RDWR if writable else os.O_RDONLY
        self._file = -1

    def __enter__(self) -> Self:
        try:
            self._file = os.open(self._path, self._flags)
        except FileNotFoundError:
            raise damaged_file(self._path, "is missing") from None
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def read(self, shard: ShardId) -> Head:
        """Return the newest head of a shard; raise LogCorrupt if its record is damaged."""
        at = int(shard) * RECORD_BYTES
        for _ in range(_READS_MAX):
            # A read can hit one slot during its write, and the next read the other slot.
            head = Head.parse(shard, os.pread(self._file, RECORD_BYTES, at))
            if head is not None:
                return head
        place = f"in the {RECORD_BYTES} bytes from {at}"
        raise damaged_file(self._path, f"is damaged {place}, the head of shard {shard}")

    def write_end(self, shard: ShardId, head: Head) -> None:
        """Write the end of a head durably, into the slot of the head before the last."""
        at = int(shard) * RECORD_BYTES + _SLOT_AT[head.sequence % 2]
        os.pwrite(self._file, _sealed(shard, head.sequence, head.end), at)
        os.fdatasync(self._file)

    def write_begin(self, shard: ShardId, begin: int) -> None:
        """Move the beginning of a shard durably; one of its two copies is always complete."""
        for at in _BEGIN_AT:
            os.pwrite(self._file, _sealed(shard, begin), int(shard) * RECORD_BYTES + at)
            os.fdatasync(self._file)

    def add(self, shards: Iterable[ShardId]) -> None:
        """Write the heads of new shards durably, before they have a writer or a reader."""
        for shard in shards:
            os.pwrite(self._file, _new_record(shard), int(shard) * RECORD_BYTES)
        os.fsync(self._file)
