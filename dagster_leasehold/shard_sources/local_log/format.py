"""The bytes of a log file.

A file is an Arrow IPC stream: one schema message, one message per record batch, compressed with
LZ4, and the end mark. Behind it stands a footer that Arrow does not look at: an entry of fixed size
per message, then their number and a checksum of them. Each entry carries a checksum of its message.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import NamedTuple, overload

import pyarrow as pa
from typing_extensions import override

from dagster_leasehold.lease_store.errors import LogCorrupt, RecordRefused
from dagster_leasehold.lease_store.times import time_text
from dagster_leasehold.shard_sources.event_times import moment_of
from dagster_leasehold.shard_sources.source import no_attributes

RECORD_BYTES_MAX = 64 * 1024 * 1024
MESSAGE_RECORDS_MAX = 8192
MESSAGE_BYTES_MAX = 1024 * 1024
# A message is closed when it reaches its size; offsets and flags take less than as much again.
DECODED_BYTES_MAX = RECORD_BYTES_MAX + 2 * MESSAGE_BYTES_MAX

END_MARK = b"\xff\xff\xff\xff\0\0\0\0"
_ENTRY = struct.Struct("<QQIIQqqI")
_UINT32 = struct.Struct("<I")
FOOTER_END_BYTES = 2 * _UINT32.size
_ATTRIBUTE_OVERHEAD = 8
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# What a message says of itself: a flatbuffer of Arrow's `Message.fbs`.
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
        key: its key, or None.
        event_time: when it happened, with a time zone; None takes the time of the append.
        attributes: names and texts that travel with it.

    Examples:
        >>> Record(b"one", key=b"k").attributes
        {}
    """

    value: bytes
    key: bytes | None = None
    event_time: datetime | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


class Entry(NamedTuple):
    """One message of a file, as its footer describes it.

    Attributes:
        offset: the offset of its first record within the shard.
        position: where it begins in the file, in bytes.
        length: how long it is, in bytes.
        records: how many records it holds.
        payload: bytes of keys and values before compression.
        time_max: the largest event time in it, in microseconds since 1970.
        time_max_so_far: the largest event time in the shard up to and including it.
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
        """The place where it ends in the file, in bytes."""
        return self.position + self.length


class Footer(Sequence[Entry]):
    """The entries of a file, each taken apart when it is asked for."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    @override
    def __len__(self) -> int:
        return len(self._packed) // _ENTRY.size

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    @override
    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return Entry(*_ENTRY.unpack_from(self._packed, range(len(self))[index] * _ENTRY.size))


def packed_footer(entries: Iterable[Entry]) -> bytes:
    """Return the footer of a file in its stored form."""
    packed = b"".join(_ENTRY.pack(*entry) for entry in entries)
    counted = packed + _UINT32.pack(len(packed) // _ENTRY.size)
    return counted + _UINT32.pack(zlib.crc32(counted))


def footer_bytes(stored_end: bytes) -> int:
    """Return the size of a footer that ends in these `FOOTER_END_BYTES`."""
    return _UINT32.unpack_from(stored_end)[0] * _ENTRY.size + FOOTER_END_BYTES


def parse_footer(stored: bytes) -> Footer | None:
    """Return the entries of a whole footer, or None where its checksum is another."""
    counted = stored[: -_UINT32.size]
    if stored[-_UINT32.size :] != _UINT32.pack(zlib.crc32(counted)):
        return None
    return Footer(counted[: -_UINT32.size])


@dataclass(frozen=True, slots=True)
class Message:
    """An encoded record batch, not yet placed in a file."""

    encoded: bytes
    records: int
    payload: int
    time_max: int

    def placed(self, offset: int, position: int, time_max_before: int) -> Entry:
        """The entry of this message once it stands at `position` of a file."""
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
    """Return a time as microseconds since 1970; raise RecordRefused if it has no time zone."""
    if moment.tzinfo is None:
        raise RecordRefused(f"The time {time_text(moment)} has no time zone: give it one.")
    return (moment - _EPOCH) // _MICROSECOND


def _event_us(moment: datetime) -> int:
    """Return the time of a record as microseconds since 1970; raise RecordRefused if none can be.

    Its own offset can put a time of the year 9999 into the year after, which cannot be read back.
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
    """The columns of a file: a record's, except what its place tells."""
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
    """The first bytes of every file: its schema message."""
    return file_schema().serialize().to_pybytes()


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
    """Records as one message; `now` is the event time of records without one."""
    now_us = microseconds(now)
    count = len(records)
    time_type, _, _, attribute_type = file_schema().types
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
    batch = pa.record_batch([times, keys, values, attributes], schema=file_schema())
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, file_schema(), options=options) as stream:
        stream.write_batch(batch)
    encoded = sink.getvalue().to_pybytes()[len(file_header()) : -len(END_MARK)]
    return Message(encoded=encoded, records=count, payload=payload, time_max=time_max)


def decode(encoded: bytes, entry: Entry, where: Path | str) -> pa.RecordBatch:
    """The record batch of a message, after its checksum was found right.

    Raises:
        LogCorrupt: the bytes were changed, or have no known form.
    """
    if zlib.crc32(encoded) != entry.checksum:
        raise _damaged(entry, where, "is damaged")
    # A checksum does not keep anybody from writing a file of his own: nothing below may
    # allocate more than a message can hold, or continue with other records than the footer counts.
    try:
        message = pa.ipc.read_message(pa.py_buffer(encoded))
        size = decoded_size(memoryview(message.metadata), memoryview(message.body or b""))
        if size > DECODED_BYTES_MAX:
            raise _damaged(entry, where, f"declares {size} bytes, more than any message holds,")
        rows = pa.ipc.read_record_batch(message, file_schema())
        rows.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, MessageMalformed):
        raise _damaged(entry, where, "is no message") from None
    if rows.num_rows != entry.records:
        raise _damaged(entry, where, f"holds {rows.num_rows} records, not {entry.records},")
    return rows


def _damaged(entry: Entry, where: Path | str, what: str) -> LogCorrupt:
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


class MessageMalformed(Exception):
    """The metadata does not describe a record batch, or points outside of its message."""


def decoded_size(metadata: bytes | memoryview, body: bytes | memoryview) -> int:
    """Return the bytes that the buffers of a record batch message declare to expand to.

    Arrow allocates what each compressed buffer declares before it looks at the buffer, so a damaged
    or hostile file of a few kilobytes could ask for any amount of memory. Each buffer begins with
    its expanded length, a little-endian 64-bit integer that is -1 where it is stored as it is.

    Raises:
        MessageMalformed: the message is not one of a record batch.
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
        raise MessageMalformed("it is no record batch")
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
            raise MessageMalformed("a buffer lies outside of its body")
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
    """Return the place that an offset names."""
    (offset,) = _UINT32.unpack_from(metadata, at)
    return at + offset


def _field(metadata: memoryview, table: int, number: int) -> int | None:
    """Return the place of a field of a table, or None where the table leaves it out."""
    (back,) = _INT32.unpack_from(metadata, table)
    names = table - back
    if names < 0:
        raise MessageMalformed("a table lies outside of its metadata")
    (size,) = _UINT16.unpack_from(metadata, names)
    entry = 4 + 2 * number
    if entry + 2 > size:
        return None
    (offset,) = _UINT16.unpack_from(metadata, names + entry)
    if offset and table + offset >= len(metadata):
        raise MessageMalformed("a field lies outside of its metadata")
    return table + offset if offset else None
