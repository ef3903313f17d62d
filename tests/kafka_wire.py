"""Bytes of Kafka's protocol: primitive types and record batches of format 2.

Source: the protocol guide of Apache Kafka (versions 3 to 4) and KIP-98 for transactions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

TRANSACTIONAL, CONTROL = 0x10, 0x20
ABORT, COMMIT = 0, 1


@dataclass(frozen=True, slots=True)
class Stored:
    """A record at its offset, with its time in milliseconds."""

    offset: int
    time_ms: int
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = field(default_factory=tuple)


def varint(number: int) -> bytes:
    """A signed number, zigzag and seven bits a byte."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def sized(part: bytes | None) -> bytes:
    return varint(-1) if part is None else varint(len(part)) + part


def text(value: str | None) -> bytes:
    if value is None:
        return struct.pack(">h", -1)
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded


def blob(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def array(parts: Iterable[bytes]) -> bytes:
    encoded = list(parts)
    return struct.pack(">i", len(encoded)) + b"".join(encoded)


def record_batch(
    records: Sequence[Stored], base: int, last: int, *, producer: int = -1, attributes: int = 0
) -> bytes:
    """Return a batch of the offsets `[base, last]`, without those that compaction removed."""
    first_ms = records[0].time_ms if records else 0
    encoded = bytearray()
    for record in records:
        headers = b"".join(sized(name.encode()) + sized(value) for name, value in record.headers)
        body = b"".join(
            (
                b"\0",
                varint(record.time_ms - first_ms),
                varint(record.offset - base),
                sized(record.key),
                sized(record.value),
                varint(len(record.headers)),
                headers,
            )
        )
        encoded += varint(len(body)) + body
    newest = max((record.time_ms for record in records), default=0)
    sequence = 0 if producer >= 0 else -1
    after_checksum = struct.pack(
        ">hiqqqhii",
        attributes,
        last - base,
        first_ms,
        newest,
        producer,
        0 if producer >= 0 else -1,
        sequence,
        len(records),
    )
    # The checksum stays 0: the client checks it only if it is configured to.
    rest = struct.pack(">ibI", 0, 2, 0) + after_checksum + bytes(encoded)
    return struct.pack(">qi", base, len(rest)) + rest


def control_batch(offset: int, producer: int, kind: int) -> bytes:
    """The marker that ends a transaction."""
    marker = Stored(offset, 0, struct.pack(">hi", 0, 0), struct.pack(">hh", 0, kind))
    flags = TRANSACTIONAL | CONTROL
    return record_batch([marker], offset, offset, producer=producer, attributes=flags)


class Reading:
    """A request's bytes, read from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(f">{form}")
        return value

    def bytes_(self, size: int) -> bytes:
        self._at += max(0, size)
        return self._data[self._at - size : self._at] if size > 0 else b""

    def text(self) -> str:
        return self.bytes_(self.number("h")).decode()

    def blob(self) -> bytes:
        return self.bytes_(self.number("i"))

    def count(self) -> int:
        """The length of an array; -1 is null."""
        return self.number("i")
