"""The bytes of a log file.

A file is an Arrow IPC stream: a schema message, one LZ4-compressed message per record batch, and
the end mark. A footer follows, which Arrow ignores: an entry of fixed size per message, the number
of entries, and a checksum. Each entry has a checksum of its message.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from dagster_leasehold.lease_store.errors import LogCorrupt, RecordRefused
from dagster_leasehold.lease_store.times import time_text
from dagster_leasehold.shard_sources.event_times import moment_of

RECORD_BYTES_MAX = 64 * 1024 * 1024
MESSAGE_RECORDS_MAX = 8192
MESSAGE_BYTES_MAX = 1024 * 1024
# A message ends when it reaches its size limit. Its offsets and flags need less than that limit.
DECODED_BYTES_MAX = RECORD_BYTES_MAX + 2 * MESSAGE_BYTES_MAX

END_MARK = b"\xff\xff\xff\xff\0\0\0\0"
_ENTRY = struct.Struct("<QQIIQqqI")
_UINT32 = struct.Struct("<I")
FOOTER_END_BYTES = 2 * _UINT32.size
_ATTRIBUTE_OVERHEAD = 8
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# The metadata of a message, a flatbuffer of Arrow's `Message.fbs`.
_UINT16 = struct.Struct("<H")
_INT32 = struct.Struct("<i")
_INT64 = struct.Struct("<q")
_BUFFER = struct.Struct("<qq")
_HEADER_TYPE, _HEADER = 1, 2
_BUFFERS, _COMPRESSION = 2, 3
_RECORD_BATCH = 3
STORED_AS_IS = -1


@dataclass(frozen=True, slots=True)
class Record:
    """A record to append.

    Attributes:
        value: its bytes, at most 64 MiB.
        event_time: its time, with a time zone; None means the time of the append.
        attributes: texts by name.

    Examples:
        >>> Record(b"one", key=b"k").attributes
        {}
    """

    value: bytes
    key: bytes | None = None
    event_time: datetime | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


class Entry(NamedTuple):
    """The footer's description of one message.

    Attributes:
        position: its first byte in the file.
        payload: the bytes of keys and values before compression.
        time_max: the latest event time in it, in microseconds since 1970.
        time_max_so_far: the latest event time in the shard up to its end.
        checksum: the CRC-32 of its bytes.
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
        """The first byte after it in the file."""
        return self.position + self.length


def packed_footer(entries: Iterable[Entry]) -> bytes:
    """Return the bytes of a footer."""
    packed = b"".join(_ENTRY.pack(*entry) for entry in entries)
    counted = packed + _UINT32.pack(len(packed) // _ENTRY.size)
    return counted + _UINT32.pack(zlib.crc32(counted))


def footer_bytes(last_bytes: bytes) -> int:
    """Return the size of a footer from its last `FOOTER_END_BYTES`."""
    return _UINT32.unpack_from(last_bytes)[0] * _ENTRY.size + FOOTER_END_BYTES


def parse_footer(footer: bytes) -> list[Entry] | None:
    """Return the entries of a footer; None if its checksum is wrong."""
    counted = footer[: -_UINT32.size]
    if footer[-_UINT32.size :] != _UINT32.pack(zlib.crc32(counted)):
        return None
    return [Entry(*fields) for fields in _ENTRY.iter_unpack(counted[: -_UINT32.size])]


@dataclass(frozen=True, slots=True)
class Message:
    """An encoded record batch without a place in a file."""

    encoded: bytes
    records: int
    payload: int
    time_max: int

    def placed(self, offset: int, position: int, time_max_before: int) -> Entry:
        """Return the entry of this message at a position of a file."""
        return Entry(
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
    """Return microseconds since 1970; raise RecordRefused if the time has no time zone."""
    if moment.tzinfo is None:
        raise RecordRefused(f"The time {time_text(moment)} has no time zone: give it one.")
    return (moment - _EPOCH) // _MICROSECOND


def _event_us(moment: datetime) -> int:
    """Return a record's time in microseconds since 1970; raise RecordRefused if it is out of range.

    The UTC offset can move a time of the year 9999 into the next year.
    """
    time_us = microseconds(moment)
    if moment_of(time_us) is None:
        raise RecordRefused(
            f"The time {time_text(moment)} lies outside the years 1 to 9999 in UTC: give the "
            "record another one."
        )
    return time_us


@cache
def file_schema() -> pa.Schema:
    """Return the columns of a file: a record's, without the shard and the cursor."""
    return pa.schema(
        [
            pa.field("event_time", pa.timestamp("us", tz="UTC")),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("attributes", pa.map_(pa.string(), pa.string())),
        ]
    )


@cache
def file_header() -> bytes:
    """Return the first bytes of every file, its schema message."""
    return file_schema().serialize().to_pybytes()


def in_messages(records: Iterable[bytes | Record]) -> Iterator[list[bytes | Record]]:
    """Yield records in lists, one for each message."""
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
        raise RecordRefused(f"A record has the type {type(value).__name__}: use bytes.")
    size = len(value)
    if isinstance(record, Record):
        size += len(record.key or b"")
        size += sum(_attribute_size(*attribute) for attribute in record.attributes.items())
    if size > RECORD_BYTES_MAX:
        raise RecordRefused(
            f"A record has {size} bytes: the local log takes at most {RECORD_BYTES_MAX}."
        )
    return size


def _no_attributes(count: int) -> pa.Array:
    no_text = pa.array([], pa.string())
    starts = pa.repeat(pa.scalar(0, pa.int32()), count + 1)
    return pa.MapArray.from_arrays(starts, no_text, no_text)


def encode(records: Sequence[bytes | Record], now: datetime) -> Message:
    """Return records as one message; `now` is the event time of records without one."""
    now_us = microseconds(now)
    count = len(records)
    time_type, _, _, attribute_type = file_schema().types
    times: pa.Array = pa.repeat(pa.scalar(now_us, time_type), count)
    time_max = now_us
    if not any(isinstance(record, Record) for record in records):
        # Most loads append plain values, which need no object per record.
        values = pa.array(records, pa.binary())
        keys = pa.nulls(count, pa.binary())
        attributes = _no_attributes(count)
    else:
        whole = [item if isinstance(item, Record) else Record(item) for item in records]
        moments = [_event_us(item.event_time) if item.event_time else now_us for item in whole]
        times, time_max = pa.array(moments, time_type), max(moments)
        values = pa.array([item.value for item in whole], pa.binary())
        keys = pa.array([item.key for item in whole], pa.binary())
        attributes = pa.array([list(item.attributes.items()) for item in whole], attribute_type)
    payload = values.total_values_length + keys.total_values_length
    batch = pa.record_batch([times, keys, values, attributes], schema=file_schema())
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, file_schema(), options=options) as stream:
        stream.write_batch(batch)
    encoded = sink.getvalue().to_pybytes()[len(file_header()) : -len(END_MARK)]
    return Message(encoded=encoded, records=count, payload=payload, time_max=time_max)


def decode(encoded: bytes, entry: Entry, where: Path | str) -> pa.RecordBatch:
    """Return the record batch of a message; raise LogCorrupt if it is damaged."""
    if zlib.crc32(encoded) != entry.checksum:
        raise _damaged(entry, where, "is damaged")
    # A forged file can have a valid checksum. So nothing below allocates more than a message can
    # hold, or accepts another number of records than the footer has.
    try:
        message = pa.ipc.read_message(pa.py_buffer(encoded))
        size = decoded_size(memoryview(message.metadata), memoryview(message.body or b""))
        if size > DECODED_BYTES_MAX:
            raise _damaged(entry, where, f"declares {size} bytes, more than the limit,")
        rows = pa.ipc.read_record_batch(message, file_schema())
        rows.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, MessageMalformed):
        raise _damaged(entry, where, "is not a message") from None
    if rows.num_rows != entry.records:
        raise _damaged(entry, where, f"holds {rows.num_rows} records, not {entry.records},")
    return rows


def _damaged(entry: Entry, where: Path | str, what: str) -> LogCorrupt:
    place = f"in the {entry.length} bytes from {entry.position}"
    return damaged_file(where, f"{what} {place}, offsets {entry.offset} to {entry.end - 1}")


def damaged_file(file: Path | str, what: str) -> LogCorrupt:
    """Return the error for a damaged log file; `what` is the damage."""
    return LogCorrupt(f"The log file {file} {what}: restore it from a backup.")


def missing_offset(folder: Path, offset: int) -> LogCorrupt:
    """Return the error for a shard without the file of an acknowledged offset."""
    return LogCorrupt(
        f"The log files in {folder} do not hold offset {offset}, which was written: restore them "
        "from a backup."
    )


class MessageMalformed(Exception):
    """The metadata does not describe a record batch, or points outside the message."""


def decoded_size(metadata: bytes | memoryview, body: bytes | memoryview) -> int:
    """Return the declared size of a message's expanded buffers, or raise MessageMalformed.

    Arrow allocates the declared size of a compressed buffer before it reads the buffer, so a forged
    file of a few kilobytes could allocate any amount of memory. Each buffer begins with its
    expanded length, a little-endian 64-bit integer that is -1 if the buffer is not compressed.
    """
    try:
        return sum(_sizes(memoryview(metadata), memoryview(body)))
    except struct.error as error:
        raise MessageMalformed(str(error)) from None


def _sizes(metadata: memoryview, body: memoryview) -> Iterator[int]:
    message = _follow(metadata, 0)
    kind = _field(metadata, message, _HEADER_TYPE)
    header = _field(metadata, message, _HEADER)
    if kind is None or header is None or metadata[kind] != _RECORD_BATCH:
        raise MessageMalformed("it is not a record batch")
    batch = _follow(metadata, header)
    compressed = _field(metadata, batch, _COMPRESSION) is not None
    buffers = _field(metadata, batch, _BUFFERS)
    if buffers is None:
        return
    vector = _follow(metadata, buffers)
    (count,) = _UINT32.unpack_from(metadata, vector)
    for number in range(count):
        offset, length = _BUFFER.unpack_from(metadata, vector + 4 + number * _BUFFER.size)
        if not 0 <= offset <= offset + length <= len(body):
            raise MessageMalformed("a buffer lies outside its body")
        if not compressed or not length:
            yield length
            continue
        if length < _INT64.size:
            raise MessageMalformed("a compressed buffer has no length")
        (expanded,) = _INT64.unpack_from(body, offset)
        if expanded < STORED_AS_IS:
            raise MessageMalformed("a buffer declares a negative length")
        yield length - _INT64.size if expanded == STORED_AS_IS else expanded


def _follow(metadata: memoryview, at: int) -> int:
    """Return the position that an offset refers to."""
    (offset,) = _UINT32.unpack_from(metadata, at)
    return at + offset


def _field(metadata: memoryview, table: int, number: int) -> int | None:
    """Return the position of a table's field; None if the table omits it."""
    (back,) = _INT32.unpack_from(metadata, table)
    names = table - back
    if names < 0:
        raise MessageMalformed("a table lies outside its metadata")
    (size,) = _UINT16.unpack_from(metadata, names)
    entry = 4 + 2 * number
    if entry + 2 > size:
        return None
    (offset,) = _UINT16.unpack_from(metadata, names + entry)
    if offset and table + offset >= len(metadata):
        raise MessageMalformed("a field lies outside its metadata")
    return table + offset if offset else None
