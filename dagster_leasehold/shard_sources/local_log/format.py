"""The bytes of a segment and of its index.

A segment is an Arrow IPC stream without its end mark: one schema message, then one message per
record batch, compressed with LZ4. Its index holds one entry of fixed size per message. An entry
is written after the bytes it describes are on the disk, and the head of the shard after the entry
is (`shard_sources.local_log.heads`): what lies above the head was never acknowledged, and no reader
looks at it. Each entry carries a checksum of its message and one of itself.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Self

import pyarrow as pa

from dagster_leasehold.lease_store.errors import LogCorrupt, RecordRefused
from dagster_leasehold.lease_store.times import time_text
from dagster_leasehold.shard_sources.event_times import moment_of
from dagster_leasehold.shard_sources.local_log.decoded_size import MessageMalformed, decoded_size
from dagster_leasehold.shard_sources.source import no_attributes

RECORD_BYTES_MAX = 64 * 1024 * 1024
MESSAGE_RECORDS_MAX = 8192
MESSAGE_BYTES_MAX = 1024 * 1024
# A message is closed when it reaches its size; offsets and flags take less than as much again.
DECODED_BYTES_MAX = RECORD_BYTES_MAX + 2 * MESSAGE_BYTES_MAX

_ENTRY = struct.Struct("<QQIIQqqI")
_CHECKSUM = struct.Struct("<I")
ENTRY_BYTES = _ENTRY.size + _CHECKSUM.size
_ATTRIBUTE_OVERHEAD = 8
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_END_MARK_BYTES = 8


@dataclass(frozen=True, slots=True)
class Record:
    """A record to append.

    Attributes:
        value: its bytes, at most 64 MiB.
        key: its key, or None.
        event_time: when it happened, with a time zone; None takes the time of the append.
        attributes: names and texts that travel with it.
    """

    value: bytes
    key: bytes | None = None
    event_time: datetime | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One message of a segment.

    Attributes:
        offset: the offset of its first record within the shard.
        position: where it begins in the segment, in bytes.
        length: how long it is, in bytes.
        records: how many records it holds.
        payload: bytes of keys and values before compression.
        time_max: the largest event time in it, in microseconds since 1970.
        time_max_so_far: the largest event time in the segment up to and including it.
        checksum: CRC-32 of its bytes.
    """

    offset: int
    position: int
    length: int
    records: int
    payload: int
    time_max: int
    time_max_so_far: int
    checksum: int

    @property
    def end(self) -> int:
        """The offset after its last record."""
        return self.offset + self.records

    @property
    def position_end(self) -> int:
        """The place where it ends in the segment, in bytes."""
        return self.position + self.length

    def pack(self) -> bytes:
        """Return the entry in its stored form."""
        body = _ENTRY.pack(*astuple(self))
        return body + _CHECKSUM.pack(zlib.crc32(body))

    @classmethod
    def unpack(cls, stored: bytes) -> Self | None:
        """The entry, or None when its own checksum does not match."""
        body = stored[: _ENTRY.size]
        if len(stored) != ENTRY_BYTES or _CHECKSUM.pack(zlib.crc32(body)) != stored[_ENTRY.size :]:
            return None
        return cls(*_ENTRY.unpack(body))


@dataclass(frozen=True, slots=True)
class Message:
    """An encoded record batch, not yet placed in a segment."""

    encoded: bytes
    records: int
    payload: int
    time_max: int

    def placed(self, offset: int, position: int, time_max_before: int) -> IndexEntry:
        """The index entry of this message once it stands at `position` of a segment."""
        return IndexEntry(
            offset=offset,
            position=position,
            length=len(self.encoded),
            records=self.records,
            payload=self.payload,
            time_max=self.time_max,
            time_max_so_far=max(self.time_max, time_max_before),
            checksum=zlib.crc32(self.encoded),
        )


def microseconds(moment: datetime) -> int:
    """Return a time as microseconds since 1970; raise RecordRefused if it has no time zone."""
    if moment.tzinfo is None:
        raise RecordRefused(f"The time {time_text(moment)} has no time zone: give it one.")
    return (moment - _EPOCH) // _MICROSECOND


def _event_us(moment: datetime) -> int:
    """Return the time of a record as microseconds since 1970; raise RecordRefused if none can be.

    Its own offset may put a time of the year 9999 into the year after, which cannot be read back.
    """
    time_us = microseconds(moment)
    if moment_of(time_us) is None:
        raise RecordRefused(
            f"The time {time_text(moment)} lies outside the years 1 to 9999 in UTC: give the "
            "record another one."
        )
    return time_us


@cache
def segment_schema() -> pa.Schema:
    """The columns of a segment: those of a record that its place does not tell."""
    return pa.schema(
        [
            pa.field("event_time", pa.timestamp("us", tz="UTC")),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("attributes", pa.map_(pa.string(), pa.string())),
        ]
    )


@cache
def segment_header() -> bytes:
    """The first bytes of every segment: its schema message."""
    return segment_schema().serialize().to_pybytes()


def in_messages(records: Iterable[bytes | Record]) -> Iterator[list[bytes | Record]]:
    """Records in lists that become one message each."""
    chunk: list[bytes | Record] = []
    size = 0
    for record in records:
        size += _checked_size(record)
        chunk.append(record)
        if size >= MESSAGE_BYTES_MAX or len(chunk) == MESSAGE_RECORDS_MAX:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _attribute_size(name: str, text: str) -> int:
    return len(name.encode()) + len(text.encode()) + _ATTRIBUTE_OVERHEAD


def _checked_size(record: object) -> int:
    value = record.value if isinstance(record, Record) else record
    if not isinstance(value, bytes):
        raise RecordRefused(f"A record is of type {type(value).__name__}: give its bytes.")
    size = len(value)
    if isinstance(record, Record):
        size += len(record.key or b"")
        size += sum(_attribute_size(*attribute) for attribute in record.attributes.items())
    if size > RECORD_BYTES_MAX:
        raise RecordRefused(
            f"A record has {size} bytes: the local log takes at most {RECORD_BYTES_MAX}."
        )
    return size


def encode(records: Sequence[bytes | Record], now: datetime) -> Message:
    """Records as one message; `now` is the event time of those that have none."""
    now_us = microseconds(now)
    count = len(records)
    time_type, _, _, attribute_type = segment_schema().types
    times: pa.Array = pa.repeat(pa.scalar(now_us, time_type), count)
    time_max = now_us
    if not any(isinstance(record, Record) for record in records):
        # Plain values, the bulk of every load: no object per record.
        values = pa.array(records, pa.binary())
        keys = pa.nulls(count, pa.binary())
        attributes = no_attributes(count)
    else:
        whole = [item if isinstance(item, Record) else Record(item) for item in records]
        moments = [_event_us(item.event_time) if item.event_time else now_us for item in whole]
        times, time_max = pa.array(moments, time_type), max(moments)
        values = pa.array([item.value for item in whole], pa.binary())
        keys = pa.array([item.key for item in whole], pa.binary())
        attributes = pa.array([list(item.attributes.items()) for item in whole], attribute_type)
    payload = values.total_values_length + keys.total_values_length
    batch = pa.record_batch([times, keys, values, attributes], schema=segment_schema())
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, segment_schema(), options=options) as stream:
        stream.write_batch(batch)
    encoded = sink.getvalue().to_pybytes()[len(segment_header()) : -_END_MARK_BYTES]
    return Message(encoded=encoded, records=count, payload=payload, time_max=time_max)


def decode(encoded: bytes, entry: IndexEntry, where: str) -> pa.RecordBatch:
    """The record batch of a message, after its checksum was found right.

    Raises:
        LogCorrupt: the bytes are not those that were written, or not of the form of any that are.
    """
    if zlib.crc32(encoded) != entry.checksum:
        raise _damaged(entry, where, "is damaged")
    # A checksum does not keep anybody from writing a segment of his own: nothing below may
    # allocate more than a message can hold, or go on with other records than the index counts.
    try:
        message = pa.ipc.read_message(pa.py_buffer(encoded))
        size = decoded_size(memoryview(message.metadata), memoryview(message.body or b""))
        if size > DECODED_BYTES_MAX:
            raise _damaged(entry, where, f"declares {size} bytes, more than any message holds,")
        rows = pa.ipc.read_record_batch(message, segment_schema())
        rows.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, MessageMalformed):
        raise _damaged(entry, where, "is no message") from None
    if rows.num_rows != entry.records:
        raise _damaged(entry, where, f"holds {rows.num_rows} records, not {entry.records},")
    return rows


def _damaged(entry: IndexEntry, where: str, what: str) -> LogCorrupt:
    place = f"in the {entry.length} bytes from {entry.position}"
    return damaged_file(where, f"{what} {place}, offsets {entry.offset} to {entry.end - 1}")


def damaged_file(file: Path | str, what: str) -> LogCorrupt:
    """Return the error for a log file that is not as it was written; `what` is wrong with it."""
    return LogCorrupt(f"The log file {file} {what}: restore it from a backup.")


def missing_offset(folder: Path, offset: int) -> LogCorrupt:
    """Return the error for a shard's folder that lacks an offset below the head."""
    return LogCorrupt(
        f"The log files in {folder} do not hold offset {offset}, which was written: restore them "
        "from a backup."
    )
