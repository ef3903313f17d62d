"""Reading one shard of a local log without a lock: bounds, plans, times and records."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from dagster_leasehold.lease_store.errors import CursorExpired, LogCorrupt
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.event_times import moment_of, readable
from dagster_leasehold.shard_sources.local_log.catalog import Catalog, load_catalog
from dagster_leasehold.shard_sources.local_log.files import (
    FileName,
    LogFile,
    contiguous_end,
    files_between,
    list_files,
    shard_folder,
)
from dagster_leasehold.shard_sources.local_log.format import Entry, microseconds, missing_offset
from dagster_leasehold.shard_sources.local_log.heads import Head, HeadsFile
from dagster_leasehold.shard_sources.positions import (
    GONE,
    check_within,
    parse_offset,
    removed_error,
)
from dagster_leasehold.shard_sources.source import Limits, PlannedRange, ReadRange, record_schema

if TYPE_CHECKING:
    import numpy as np

_FUNCTIONS: Any = pc
_LISTINGS_MAX = 5
_COMBINED_RECORDS = 8192
_COMBINED_BYTES = 4 * 1024 * 1024


class Extent(NamedTuple):
    """The offsets `[begin, end)` that a shard has now."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class ShardFolder:
    """One shard's folder in the log's `root`; `finished` if the shard is read-only."""

    shard: ShardId
    root: Path
    finished: bool = False

    @property
    def folder(self) -> Path:
        """The folder of the shard's files."""
        return shard_folder(self.root, self.shard)

    def head(self) -> Head:
        """Read the shard's head; raise LogCorrupt if it is damaged."""
        with HeadsFile(self.root) as file:
            return file.read(self.shard)

    def extent(self) -> Extent:
        """Return the head's extent; missing files are noticed only when they are read."""
        head = self.head()
        end = max(head.begin, head.end)
        if not head.certain:
            # The torn slot possibly acknowledged the files above the other slot's end.
            end = contiguous_end(list_files(self.folder, end), end)
        return Extent(head.begin, end)

    def offset(self, cursor: str, extent: Extent) -> int:
        """Return the offset of a cursor; raise CursorExpired or CursorInvalid outside the shard."""
        offset = parse_offset(self.shard, cursor)
        check_within(f"Shard {self.shard}", offset, extent.begin, extent.end)
        return offset

    def _messages(self, start: int, end: int) -> Iterator[tuple[LogFile, Entry]]:
        """Yield the messages with offsets in `[start, end)`, each with its open file."""
        expected, listings = start, 0
        while expected < end:
            if listings == _LISTINGS_MAX:
                raise self._missing(expected)
            listings += 1
            for file in _opened(list_files(self.folder, expected), expected):
                for entry in file.entries_from(expected):
                    expected, listings = entry.end, 0
                    yield file, entry
                    if expected >= end:
                        return

    def _missing(self, offset: int) -> CursorExpired | LogCorrupt:
        """Return the error for a missing offset: expired or damaged."""
        begin = self.head().begin
        if begin > offset:
            return CursorExpired(
                f"Retention has removed the records from {offset} of shard {self.shard} on, up to "
                f"{begin}, while they were read."
            )
        return missing_offset(self.folder, offset)

    def at_time(self, moment: datetime) -> int:
        """Return the first offset with an event time at or after a time, or the end."""
        time_us = microseconds(moment)
        for _ in range(_LISTINGS_MAX):
            try:
                return self._at_time(time_us, self.extent())
            except (CursorExpired, FileNotFoundError):
                continue  # retention or a compaction removed files
        raise LogCorrupt(
            f"The log files in {self.folder} change faster than they can be read: try again."
        )

    def _at_time(self, time_us: int, extent: Extent) -> int:
        names = self.files(extent)
        number = bisect_left(names, time_us, key=_time_max_so_far)
        start = max(extent.begin, names[number].begin) if number < len(names) else extent.end
        for file, entry in self._messages(start, extent.end):
            if entry.time_max >= time_us:
                low = max(start, entry.offset)
                times = file.batch(entry).column("event_time").cast(pa.int64())
                late = _FUNCTIONS.greater_equal(times.slice(low - entry.offset), time_us)
                row: int = _FUNCTIONS.index(late, True).as_py()
                if row >= 0:
                    return low + row
        return extent.end

    def files(self, extent: Extent) -> list[FileName]:
        """Return the files of an extent; raise CursorExpired or LogCorrupt if one is missing."""
        try:
            return files_between(self.folder, *extent)
        except LogCorrupt as damage:
            error = self._missing(extent.begin)
            raise (error if isinstance(error, CursorExpired) else damage) from None

    def time_at(self, cursor: str) -> datetime | None:
        """Return the event time of the record at a cursor; None at the end or if it is unknown."""
        extent = self.extent()
        offset = self.offset(cursor, extent)
        for file, entry in self._messages(offset, extent.end):
            times = file.batch(entry).column("event_time").cast(pa.int64())
            return moment_of(times[offset - entry.offset].as_py())
        return None

    def plan(self, start: str, limits: Limits) -> PlannedRange:
        """Return the end of a batch: as many records as both limits allow, and at least one."""
        import numpy as np

        extent = self.extent()
        first = self.offset(start, extent)
        stop = min(extent.end, first + limits.records_max)
        end, payload = first, 0
        for file, entry in self._messages(first, stop):
            until = min(entry.end, stop)
            part = entry.payload
            if end > entry.offset or until < entry.end or payload + part > limits.bytes_max:
                # Only the first and the last message of a batch are decoded.
                rows = file.batch(entry).slice(end - entry.offset, until - end)
                totals = np.cumsum(_payload_sizes(rows))
                fitting = int(np.searchsorted(totals, limits.bytes_max - payload, side="right"))
                part = int(totals[fitting - 1]) if fitting else 0
                until = end + fitting
            payload += part
            end = until
            if end < entry.end or end >= stop:
                break
        end = max(end, min(first + 1, stop))
        return PlannedRange(
            end=str(end), records=end - first, last=self.finished and end == extent.end
        )

    def read(self, range_: ReadRange) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range as `record_schema()`, with small messages combined."""
        extent = self.extent()
        end = self.offset(range_.end, extent)
        start = self.offset(range_.start, extent)
        if start >= end:
            return
        yield from combined(self._rows(start, end))

    def _rows(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        for file, entry in self._messages(start, end):
            low, high = max(start, entry.offset), min(end, entry.end)
            yield self._with_place(file.batch(entry).slice(low - entry.offset, high - low), low)

    def _with_place(self, rows: pa.RecordBatch, offset: int) -> pa.RecordBatch:
        """Return stored rows with their shard and cursors; Spark's workers can lack numpy."""
        count = rows.num_rows
        numbers = _FUNCTIONS.cumulative_sum(pa.repeat(pa.scalar(1), count), start=offset - 1)
        cursors = numbers.cast(pa.string())
        columns = [pa.repeat(pa.scalar(str(self.shard)), count), cursors, *rows.columns]
        return readable(pa.record_batch(columns, schema=record_schema()))


class LocalLogReader:
    """Reads ranges of a local log, on a Spark worker; picklable."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.root)!r})"

    def _open(self, shard: str, catalog: Catalog | None = None) -> ShardFolder | None:
        """Return a shard's folder; None if retention has removed the shard."""
        catalog = catalog or load_catalog(self.root)
        if catalog.removed(shard):
            return None
        entry = catalog.find(shard)
        return ShardFolder(entry.shard, self.root, entry.read_only)

    def read(self, range_: ReadRange) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range in order, in batches of `record_schema()`."""
        folder = self._open(range_.shard)
        if folder is not None:
            yield from folder.read(range_)
        elif not range_.start == range_.end == GONE:
            raise removed_error(range_.shard)


def reader_of(options: Mapping[str, str]) -> LocalLogReader:
    """Return the reader that `LocalLog.spark_options` describes."""
    return LocalLogReader(options["root"])


def combined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Combine small batches, in order, to some thousand records or a few megabytes each."""
    pending: list[pa.RecordBatch] = []
    records = size = 0
    for batch in batches:
        pending.append(batch)
        records, size = records + batch.num_rows, size + batch.nbytes
        if records >= _COMBINED_RECORDS or size >= _COMBINED_BYTES:
            yield from _one_batch(pending)
            pending, records, size = [], 0, 0
    if pending:
        yield from _one_batch(pending)


def _one_batch(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the records in one batch, or in several if one cannot hold them."""
    return pa.Table.from_batches(batches).combine_chunks().to_batches()


def _opened(names: Iterable[FileName], at: int) -> Iterator[LogFile]:
    """Yield the files from an offset on, up to a missing one; one file is open at a time."""
    for name in names:
        if name.begin > at:
            return
        try:
            file = LogFile(name)
        except FileNotFoundError:
            return  # retention or a compaction removed it
        with file:
            yield file
        at = name.end


def _time_max_so_far(name: FileName) -> int:
    with LogFile(name) as file:
        return file.time_max_so_far


def _payload_sizes(rows: pa.RecordBatch) -> np.ndarray:
    length = _FUNCTIONS.binary_length
    keys, values = (length(rows.column(name)).fill_null(0) for name in ("key", "value"))
    return keys.to_numpy() + values.to_numpy()
