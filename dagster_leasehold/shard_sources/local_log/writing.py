"""Writing to one shard: appends by one writer at a time, and concurrent retention.

An append has three steps:

1. It writes a draft and flushes it to the disk. A crash leaves a file that the next writer removes.
2. It renames the draft and flushes the folder. A crash leaves a complete file after the head, which
   readers ignore and the next writer keeps.
3. It writes and flushes the head, and returns. From now on a missing record is damage.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Self

from filelock import FileLock, Timeout

from dagster_leasehold.lease_store.errors import (
    LogCorrupt,
    ShardBusy,
    ShardReadOnly,
    SourceUnavailable,
)
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log.catalog import load_catalog
from dagster_leasehold.shard_sources.local_log.files import (
    FileName,
    LogFile,
    all_files,
    each_offset_once,
    shard_folder,
    write_file,
)
from dagster_leasehold.shard_sources.local_log.format import (
    Entry,
    Message,
    Record,
    encode,
    file_header,
    in_messages,
    microseconds,
    missing_offset,
)
from dagster_leasehold.shard_sources.local_log.heads import Head, HeadsFile
from dagster_leasehold.shard_sources.local_log.reading import ShardFolder

_FLUSH_BYTES = 16 * 1024 * 1024
# This number of small files is compacted into one, so that appends of single records do not leave
# a million files. The new file is compacted again until it is large enough.
SMALL_FILES_MAX = 32
_SMALL_BYTES_MAX = 16 * 1024
_GROWN_BYTES_MAX = 1024 * 1024
_RETENTION_WAIT_S = 30.0
_NO_TIME = -(2**63)


class AppendedRange(NamedTuple):
    """The cursors `[begin, end)` of the appended records."""

    begin: str
    end: str


class ShardWriter:
    """The only writer of a shard; a context manager that holds the shard's lock.

    Args:
        clock: returns the event time of records without one.
        wait_s: how long to wait for another writer.

    Raises:
        LogNotFound, UnknownShard: on entry, if the log or the shard does not exist.
        ShardReadOnly: on entry, if the shard was split or merged.
        ShardBusy: on entry, if another process is writing to the shard.
        LogCorrupt: on entry, if acknowledged records are missing or the last ones are damaged.
        SourceUnavailable: on entry, if the folder cannot be written.
    """

    def __init__(
        self, root: Path, shard: ShardId, *, clock: Callable[[], datetime], wait_s: float = 0.0
    ) -> None:
        self._root = root
        self._shard = shard
        self._folder = shard_folder(root, shard)
        self._clock = clock
        self._lock = FileLock(self._folder / "write.lock", timeout=wait_s)
        self._heads = HeadsFile(root, writable=True)
        self._head = Head()
        self._time_max = _NO_TIME
        self._small: list[FileName] = []
        self._broken = False
        self._open = ExitStack()

    def __enter__(self) -> Self:
        load_catalog(self._root).find(self._shard)
        with ExitStack() as stack:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(self._lock)
                # Read under the lock, because a split also takes it before it closes the shard.
                if load_catalog(self._root).find(self._shard).read_only:
                    raise ShardReadOnly(
                        f"Shard {self._shard} of {self._root} is read-only since it was split or "
                        "merged: append to its children."
                    )
                stack.enter_context(self._heads)
                with _retention_lock(self._folder):
                    self._recover()
            except Timeout as timeout:
                work = "written to" if timeout.lock_file == self._lock.lock_file else "retained"
                raise ShardBusy(
                    f"Shard {self._shard} of {self._root} is being {work} by another process: "
                    "try again when it has finished."
                ) from None
            except OSError as error:
                raise self._unwritable(error) from error
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def end(self) -> str:
        """The cursor after the last appended record."""
        return str(self._head.end)

    def append(self, records: Iterable[bytes | Record]) -> AppendedRange:
        """Append records in order, with bounded memory.

        After an error, the records of completed flushes remain appended.

        Raises:
            RecordRefused: a record is too large or has the wrong type.
            SourceUnavailable: the disk cannot be written.
        """
        begin = self._head.end
        messages: list[Message] = []
        size = 0
        for chunk in in_messages(records):
            messages.append(encode(chunk, self._clock()))
            size += len(messages[-1].encoded)
            if size >= _FLUSH_BYTES:
                self._flush(messages)
                messages, size = [], 0
        if messages:
            self._flush(messages)
        return AppendedRange(str(begin), self.end)

    def _flush(self, messages: list[Message]) -> None:
        if self._broken:
            raise SourceUnavailable(
                f"The writer of shard {self._shard} stopped at an earlier error: open another one."
            )
        offset, position, time_max = self._head.end, len(file_header()), self._time_max
        entries: list[Entry] = []
        for message in messages:
            entries.append(message.placed(offset, position, time_max))
            offset, position = entries[-1].end, entries[-1].position_end
            time_max = entries[-1].time_max_so_far
        name = FileName(self._head.end, offset, self._folder)
        try:
            write_file(name, (message.encoded for message in messages), entries)
            self._acknowledge(offset)
        except OSError as error:
            # The file possibly exists, and a second one must not begin at the same offset.
            self._broken = True
            raise self._unwritable(error) from error
        self._time_max = time_max
        self._count_small(name, position)
        if len(self._small) >= SMALL_FILES_MAX:
            self._compact()

    def _acknowledge(self, end: int) -> None:
        """Write the head; afterwards a missing record before `end` is damage."""
        head = self._head._replace(sequence=self._head.sequence + 1, end=end)
        self._heads.write_end(self._shard, head)
        self._head = head

    def _count_small(self, name: FileName, size: int) -> None:
        """Count the newest file towards the next compaction, or start over after a large one."""
        if size < _SMALL_BYTES_MAX:
            self._small.append(name)
        else:
            self._small = [name] if size < _GROWN_BYTES_MAX else []

    def _compact(self) -> None:
        """Replace the small files at the end by one file; after an error, keep them."""
        names, self._small = self._small, []
        name = FileName(names[0].begin, names[-1].end, self._folder)
        messages: list[bytes] = []
        entries: list[Entry] = []
        position = len(file_header())
        try:
            for each in names:
                with LogFile(each) as file:
                    for entry in file.entries:
                        messages.append(file.message(entry))
                        entries.append(entry._replace(position=position))
                        position += entry.length
            write_file(name, messages, entries)
            for each in names:
                each.path.unlink(missing_ok=True)
        except (OSError, LogCorrupt):
            # The append itself has succeeded. Retention can remove files at any time, the disk can
            # be full, and readers report damage.
            return
        self._count_small(name, position)

    def _unwritable(self, error: OSError) -> SourceUnavailable:
        return SourceUnavailable(
            f"Shard {self._shard} of {self._root} cannot be written: {error.strerror}."
        )

    def _recover(self) -> None:
        """Check that no acknowledged record is missing, and keep complete files after the head."""
        for name in os.listdir(self._folder):
            if name.endswith(".draft"):
                (self._folder / name).unlink()
        head = self._heads.read(self._shard)
        end = head.begin
        listed = [*all_files(self._folder, after=end)]
        names: list[FileName] = []
        for name in each_offset_once(listed, end):
            above = end >= head.end
            if name.begin > end or (above and not self._is_complete(name)):
                break
            names.append(name)
            end = name.end
            if not above and end >= head.end:
                # Damage of the last record must be noticed before new ones follow it.
                with LogFile(name) as file:
                    file.batch(file.entries[-1])
                    self._time_max = file.time_max_so_far
        if end < head.end:
            raise missing_offset(self._folder, end)
        for name in set(listed).difference(names):
            name.path.unlink()
        self._head = head._replace(end=end)
        if not head.certain or end != head.end:
            self._acknowledge(end)
        for name in names[-SMALL_FILES_MAX:]:
            self._count_small(name, name.path.stat().st_size)

    def _is_complete(self, name: FileName) -> bool:
        try:
            with LogFile(name) as file:
                for entry in file.entries:
                    file.batch(entry)
                self._time_max = file.time_max_so_far
        except LogCorrupt:
            return False
        return True


def retain(folder: ShardFolder, before: datetime | str) -> str:
    """Remove the files whose records all lie before a time or a cursor; return the new beginning.

    The head's beginning moves before files are removed. A crash in between leaves files that are
    no longer read, and the next retention removes them.
    """
    extent = folder.extent()
    limit_us = microseconds(before) if isinstance(before, datetime) else None
    limit = extent.end if isinstance(before, datetime) else folder.offset(before, extent)
    begin = extent.begin
    with suppress(FileNotFoundError):  # retention or a compaction removed it
        for name in folder.files(extent):
            with LogFile(name) as file:
                late = limit_us is not None and file.time_max >= limit_us
            if name.end > limit or late:
                break
            begin = name.end
    with _retention_lock(folder.folder):
        begin = max(begin, folder.head().begin)
        if begin > extent.begin:
            with HeadsFile(folder.root, writable=True) as heads:
                heads.write_begin(folder.shard, begin)
        for name in all_files(folder.folder):
            if name.end <= begin:
                name.path.unlink(missing_ok=True)
    return str(folder.extent().begin)


def _retention_lock(folder: Path) -> FileLock:
    return FileLock(folder / "retain.lock", timeout=_RETENTION_WAIT_S)
