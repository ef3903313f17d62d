"""The files of one shard.

Each flush of a writer is one file, named by its offsets. It is renamed to this name when it is
complete and on the disk, and never changes. Readers take no lock:

1. The writer writes a draft, flushes it, renames it, and flushes the folder.
2. A reader reads the old head, and so the old end of the shard.
3. The writer writes the head.
4. A reader reads the new end, and every file before it is complete.

Small files are compacted into one. For a short time both exist: of files with the same first
offset, the larger one counts.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Self

import pyarrow as pa

from dagster_leasehold.lease_store.durable_files import replacing
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log.format import (
    DECODED_BYTES_MAX,
    END_MARK,
    FOOTER_END_BYTES,
    Entry,
    damaged_file,
    decode,
    file_header,
    footer_bytes,
    missing_offset,
    packed_footer,
    parse_footer,
)

_NAME = re.compile(r"(\d{20})-(\d{20})\.arrow", re.ASCII)
_LISTINGS_MAX = 5


class FileName(NamedTuple):
    """The name of a file with the offsets `[begin, end)`."""

    begin: int
    end: int
    folder: Path

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / f"{self.begin:020d}-{self.end:020d}.arrow"


def shard_folder(root: Path, shard: ShardId) -> Path:
    """Return the folder of a shard's files."""
    return root / "shards" / shard


def all_files(folder: Path, after: int = 0) -> Iterator[FileName]:
    """Yield the files with offsets from `after` on, in order of first and last offset."""
    try:
        listed = sorted(filter(_NAME.fullmatch, os.listdir(folder)))
    except FileNotFoundError:
        return
    ended = f"{after:020d}"
    for name in listed:
        # Numbers of equal width compare as text. Most files of a long shard are skipped here.
        if name[21:41] > ended:
            yield FileName(int(name[:20]), int(name[21:41]), folder)


def list_files(folder: Path, begin: int) -> Iterator[FileName]:
    """Yield the files with offsets from `begin` on, each offset once."""
    return each_offset_once(all_files(folder, begin), begin)


def each_offset_once(names: Iterable[FileName], begin: int) -> Iterator[FileName]:
    """Omit files that a larger file includes, and files before `begin`."""
    for _, alike in groupby(names, key=attrgetter("begin")):
        *_, largest = alike
        if largest.end > begin:
            yield largest
            begin = largest.end


def contiguous_end(names: Iterable[FileName], begin: int) -> int:
    """Return the end of the files that follow `begin` without a hole."""
    for name in names:
        if not name.begin <= begin < name.end:
            break
        begin = name.end
    return begin


def files_between(folder: Path, begin: int, end: int) -> list[FileName]:
    """Return the files with the offsets `[begin, end)`; raise LogCorrupt if one is missing."""
    names: list[FileName] = []
    for _ in range(_LISTINGS_MAX):
        # A listing during a compaction can lack both the small files and the large one.
        names = [*list_files(folder, begin)]
        if contiguous_end(names, begin) >= end:
            return [name for name in names if name.begin < end]
    raise missing_offset(folder, contiguous_end(names, begin))


def write_file(name: FileName, messages: Iterable[bytes], entries: Iterable[Entry]) -> None:
    """Write a file durably, with its name."""
    with replacing(name.path, durable=True) as file:
        file.writelines((file_header(), *messages, END_MARK, packed_footer(entries)))


class LogFile:
    """An open file; opening raises FileNotFoundError if it was removed, LogCorrupt if damaged."""

    def __init__(self, name: FileName) -> None:
        self.name = name
        self._descriptor = os.open(name.path, os.O_RDONLY)
        try:
            self.entries = self._footer()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _footer(self) -> list[Entry]:
        size = os.fstat(self._descriptor).st_size
        end = os.pread(self._descriptor, FOOTER_END_BYTES, max(0, size - FOOTER_END_BYTES))
        length = footer_bytes(end) if len(end) == FOOTER_END_BYTES else 0
        # A damaged length can be gigabytes, so it is checked before the read.
        if FOOTER_END_BYTES < length < size:
            entries = parse_footer(os.pread(self._descriptor, length, size - length))
            if entries is not None and entries[-1].position_end == size - length - len(END_MARK):
                if (entries[0].offset, entries[-1].end) == (self.name.begin, self.name.end):
                    return entries
                raise damaged_file(self.name.path, "holds other offsets than its name says")
        raise damaged_file(self.name.path, "is damaged at its end")

    @property
    def time_max(self) -> int:
        """The latest event time in the file, in microseconds since 1970."""
        return max(entry.time_max for entry in self.entries)

    @property
    def time_max_so_far(self) -> int:
        """The latest event time in the shard up to the end of the file, in microseconds."""
        return self.entries[-1].time_max_so_far

    def entries_from(self, offset: int) -> Iterator[Entry]:
        """Yield the entries from the one with `offset` on; raise LogCorrupt at a hole."""
        after = bisect_right(self.entries, offset, key=lambda entry: entry.offset)
        for number in range(max(0, after - 1), len(self.entries)):
            entry = self.entries[number]
            if not entry.offset <= offset < entry.end:
                raise damaged_file(self.name.path, f"does not hold offset {offset}")
            yield entry
            offset = entry.end

    def message(self, entry: Entry) -> bytes:
        """Return the bytes of a message; raise LogCorrupt if it is too long."""
        if entry.length > DECODED_BYTES_MAX:
            message = f"a message of {entry.length} bytes at {entry.position}, above the limit"
            raise damaged_file(self.name.path, f"names {message}")
        return os.pread(self._descriptor, entry.length, entry.position)

    def batch(self, entry: Entry) -> pa.RecordBatch:
        """Return the records of a message; raise LogCorrupt if it is damaged."""
        return decode(self.message(entry), entry, self.name.path)
