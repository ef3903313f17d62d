"""Reading one shard of a local log: bounds, plans, times and records, without any lock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_leasehold.lease_store.errors import CursorExpired, LogCorrupt
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.event_times import moment_of, readable
from dagster_leasehold.shard_sources.local_log import segments
from dagster_leasehold.shard_sources.local_log.format import (
    IndexEntry,
    microseconds,
    missing_offset,
)
from dagster_leasehold.shard_sources.local_log.heads import Head, HeadsFile
from dagster_leasehold.shard_sources.local_log.tails import Extent, extent_of
from dagster_leasehold.shard_sources.positions import check_within, parse_offset
from dagster_leasehold.shard_sources.source import (
    Limits,
    PlannedRange,
    ReadRange,
    joined,
    record_schema,
)

if TYPE_CHECKING:
    import numpy as np

_FUNCTIONS: Any = pc
_LISTING_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class ShardFolder:
    """The folder of one shard, for reading.

    Attributes:
        root: the log's folder.
    """

    shard: ShardId
    root: Path

    @property
    def folder(self) -> Path:
        """The folder of the shard's segments."""
        return segments.shard_folder(self.root, self.shard)

    def head(self) -> Head:
        """Read the shard's head; raise LogCorrupt if it is damaged."""
        with HeadsFile(self.root) as file:
            return file.read(self.shard)

    def extent(self) -> Extent:
        """Return the extent that the head tells of; missing records show when they are read.

        Raises:
            LogCorrupt: the head, or what is needed in its place, is damaged.
        """
        for _ in range(_LISTING_ATTEMPTS):
            head = self.head()
            names = segments.list_from(self.folder, head.begin)
            try:
                return extent_of(head, names)
            except FileNotFoundError:
                # 1. the listing above saw the last segment; 2. retention put an empty one after
                # it and removed it; 3. the open failed. The next listing sees the empty one.
                continue
            except LogCorrupt:
                if head == self.head():
                    raise
        raise LogCorrupt(f"The log files in {self.folder} change faster than they can be read.")

    def offset(self, cursor: str, extent: Extent) -> int:
        """Return the offset of a cursor; raise CursorExpired or CursorInvalid outside the shard."""
        offset = parse_offset(self.shard, cursor)
        check_within(f"Shard {self.shard}", offset, extent.begin, extent.end)
        return offset

    def _entries(self, start: int, extent: Extent) -> Iterator[tuple[segments.Segment, IndexEntry]]:
        """The messages that hold the offsets from `start` to the end, each in its open segment."""
        expected = start
        for span in extent.segments:
            if span.end <= start:
                continue
            try:
                segment = segments.Segment(span)
            except FileNotFoundError:
                raise self._gone(expected) from None
            with segment:
                for entry in segment.entries(segment.number_of(expected)):
                    if not entry.offset <= expected < entry.end:
                        raise self._gone(expected)
                    expected = entry.end
                    yield segment, entry
            if expected != span.end:
                raise self._gone(expected)
        if expected < extent.end:
            raise self._gone(expected)

    def _gone(self, offset: int) -> CursorExpired | LogCorrupt:
        """The error for an offset that was written and is not there: retention, or damage."""
        begin = self.head().begin
        if begin > offset:
            return CursorExpired(
                f"Retention has removed the records from {offset} of shard {self.shard} on, up to "
                f"{begin}, while they were read."
            )
        return missing_offset(self.folder, offset)

    def at_time(self, moment: datetime) -> int:
        """The first offset whose event time is at or after a time; the end if there is none."""
        time_us = microseconds(moment)
        extent = self.extent()
        expected = extent.begin
        for span in extent.segments:
            if span.name.first > expected:
                self._refuse_damage(expected)
            try:
                segment = segments.Segment(span)
            except FileNotFoundError:
                self._refuse_damage(span.name.first)
                expected = span.end
                continue
            with segment:
                number = segment.number_at_time(time_us)
                if number == segment.count:
                    segment.check_whole()
                    expected = span.end
                    continue
                entry = segment.entry(number)
                times = segment.batch(entry).column("event_time").cast(pa.int64())
                row = pc.index(pc.greater_equal(times, time_us), True).as_py()  # pyright: ignore
                return entry.offset + int(row)
        if expected != extent.end:
            self._refuse_damage(expected)
        return extent.end

    def time_at(self, cursor: str) -> datetime | None:
        """The event time of the record at a cursor; None at the end, or where it has none."""
        extent = self.extent()
        offset = self.offset(cursor, extent)
        for segment, entry in self._entries(offset, extent) if offset < extent.end else ():
            times = segment.batch(entry).column("event_time").cast(pa.int64())
            return moment_of(times[offset - entry.offset].as_py())
        return None

    def _refuse_damage(self, offset: int) -> None:
        """Raise for an offset that is not there, unless retention has removed it."""
        error = self._gone(offset)
        if isinstance(error, LogCorrupt):
            raise error

    def plan(self, start: str, limits: Limits, *, finished: bool) -> PlannedRange:
        """Return the end of a batch: as many records as both limits allow, and at least one."""
        import numpy as np

        extent = self.extent()
        first = self.offset(start, extent)
        stop = min(extent.end, first + limits.records_max)
        end, payload = first, 0
        for segment, entry in self._entries(first, extent) if first < stop else ():
            until = min(entry.end, stop)
            part = entry.payload
            if end > entry.offset or until < entry.end or payload + part > limits.bytes_max:
                # Only the first and the last message of a batch are looked into.
                rows = segment.batch(entry).slice(end - entry.offset, until - end)
                totals = np.cumsum(_payload_sizes(rows))
                fitting = int(np.searchsorted(totals, limits.bytes_max - payload, side="right"))
                part = int(totals[fitting - 1]) if fitting else 0
                until = end + fitting
            payload += part
            end = until
            if end < entry.end or end >= stop:
                break
        end = max(end, min(first + 1, stop))
        return PlannedRange(end=str(end), records=end - first, last=finished and end == extent.end)

    def read(self, range_: ReadRange) -> Iterator[pa.RecordBatch]:
        """The records of a range as `record_schema()`; small messages are put together."""
        extent = self.extent()
        end = self.offset(range_.end, extent)
        start = self.offset(range_.start, extent)
        if start >= end:
            return
        yield from joined(self._rows(start, end, extent))

    def _rows(self, start: int, end: int, extent: Extent) -> Iterator[pa.RecordBatch]:
        for segment, entry in self._entries(start, extent):
            low, high = max(start, entry.offset), min(end, entry.end)
            rows = segment.batch(entry).slice(low - entry.offset, high - low)
            yield self._with_place(rows, low)
            if high == end:
                return
        raise self._gone(end - 1)

    def _with_place(self, rows: pa.RecordBatch, offset: int) -> pa.RecordBatch:
        """Stored columns with the shard and the cursors added."""
        count = rows.num_rows
        # Without numpy, which Spark's workers may lack.
        numbers = _FUNCTIONS.cumulative_sum(pa.repeat(pa.scalar(1), count), start=offset - 1)
        cursors = numbers.cast(pa.string())
        columns = [pa.repeat(pa.scalar(str(self.shard)), count), cursors, *rows.columns]
        return readable(pa.record_batch(columns, schema=record_schema()))


def _payload_sizes(rows: pa.RecordBatch) -> np.ndarray:
    """Return the bytes of each row's key and value."""
    length = _FUNCTIONS.binary_length
    keys, values = (length(rows.column(name)).fill_null(0) for name in ("key", "value"))
    return keys.to_numpy() + values.to_numpy()
