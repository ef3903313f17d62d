"""The size that an encoded message declares to expand to, read without expanding it.

Arrow allocates what each compressed buffer declares before it looks at the buffer, so a damaged or
hostile segment of a few kilobytes could ask for any amount of memory. The declarations stand in
the message itself: its metadata is a flatbuffer of the schema in Arrow's `Message.fbs`, and each
compressed buffer of the body begins with its expanded length, a little-endian 64-bit integer that
is -1 where the buffer is stored as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_UINT16 = struct.Struct("<H")
_INT32 = struct.Struct("<i")
_UINT32 = struct.Struct("<I")
_INT64 = struct.Struct("<q")
_BUFFER = struct.Struct("<qq")
_HEADER_TYPE, _HEADER = 1, 2
_BUFFERS, _COMPRESSION = 2, 3
_RECORD_BATCH = 3
STORED_AS_IS = -1


class MessageMalformed(Exception):
    """The metadata does not describe a record batch, or points outside of its message."""


def decoded_size(metadata: bytes | memoryview, body: bytes | memoryview) -> int:
    """Return the bytes that the buffers of a record batch message declare to expand to.

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
    """Return the place to which an offset leads."""
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
