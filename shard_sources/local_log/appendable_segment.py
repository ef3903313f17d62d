"""The segment at the end of a shard, open for appending: its two files, and their order on disk.

Messages are written before the entries that name them, and are on the disk before these are
written, so that whatever an entry names is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from dagster_leasehold.lease_store.durable_files import sync_folder
from dagster_leasehold.shard_sources.local_log.format import ENTRY_BYTES, segment_header
from dagster_leasehold.shard_sources.local_log.segments import SegmentName

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
