"""A shard's records as producers sent them, and how the Producer Library packs them.

The format (awslabs/amazon-kinesis-producer, `aggregation-format.md`) is four magic bytes, a
protocol buffers message, and the MD5 of that message. The message has two tables of keys, and for
each record the indices of its keys, its data, and tags. As the format requires, data that begins
with the magic bytes and fails the check is an ordinary record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from dagster_leasehold.shard_sources.kinesis.cursors import Place, at
from dagster_leasehold.shard_sources.kinesis.paging import StoredRecord
from dagster_leasehold.shard_sources.record_columns import RecordColumns

MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES = 16
_TYPES = {"uint64": 4, "bytes": 12, "string": 9, "message": 11}
_OPTIONAL, _REPEATED = 1, 3
# The fields of each message: name, number, repeated, and a type or the name of a message.
_MESSAGES: dict[str, list[tuple[str, int, bool, str]]] = {
    "Tag": [("key", 1, False, "string"), ("value", 2, False, "string")],
    "Record": [
        ("partition_key_index", 1, False, "uint64"),
        ("explicit_hash_key_index", 2, False, "uint64"),
        ("data", 3, False, "bytes"),
        ("tags", 4, True, "Tag"),
    ],
    "AggregatedRecord": [
        ("partition_key_table", 1, True, "string"),
        ("explicit_hash_key_table", 2, True, "string"),
        ("records", 3, True, "Record"),
    ],
}


@dataclass(frozen=True, slots=True)
class Part:
    """One record of a producer.

    Attributes:
        partition_key: its hash selects the shard.
        data: the producer's data.
        explicit_hash_key: the hash that the producer chose instead, if it did.
        tags: the tags of the producer's library.
    """

    partition_key: str
    data: bytes
    explicit_hash_key: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def hash_key(self) -> int:
        """The 128-bit hash that selects the shard."""
        if self.explicit_hash_key is not None:
            return int(self.explicit_hash_key)
        digest = hashlib.md5(self.partition_key.encode(), usedforsecurity=False).digest()
        return int.from_bytes(digest)


@dataclass(frozen=True, slots=True)
class HashRange:
    """The hashes of a shard, both ends included."""

    first: int
    last: int

    def holds(self, hash_key: int) -> bool:
        """Return True if a record with this hash belongs to the shard."""
        return self.first <= hash_key <= self.last


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A record as its producer sent it, its position, and the position after it."""

    place: Place
    next_place: Place
    arrived: datetime
    part: Part
    aggregated: bool = False
    encryption: str = ""

    @property
    def size(self) -> int:
        """The bytes of key and value."""
        return len(self.part.partition_key.encode()) + len(self.part.data)

    def attributes(self) -> dict[str, str]:
        """Return everything but key, value and time."""
        own = {"partition_key": self.part.partition_key, "sequence_number": str(self.place.number)}
        if self.aggregated:
            own["sub_sequence_number"] = str(self.place.part)
        if self.part.explicit_hash_key is not None:
            own["explicit_hash_key"] = self.part.explicit_hash_key
        if self.encryption and self.encryption != "NONE":
            own["encryption_type"] = self.encryption
        return {**self.part.tags, **own}


@cache
def message_class() -> type[Any]:
    """Return the class of the format's message, without generated code."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    package = "leasehold.kinesis"
    file = descriptor_pb2.FileDescriptorProto(name="leasehold_kpl.proto", package=package)
    file.syntax = "proto2"
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, repeated, kind in fields:
            message.field.add(
                name=field_name,
                number=number,
                label=_REPEATED if repeated else _OPTIONAL,
                type=_TYPES.get(kind, _TYPES["message"]),
                type_name=None if kind in _TYPES else f".{package}.{kind}",
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName(f"{package}.AggregatedRecord")
    return message_factory.GetMessageClass(descriptor)


def unpack(data: bytes) -> list[Part] | None:
    """Return the records packed into a record's data; None for an ordinary record."""
    if not data.startswith(MAGIC) or len(data) < len(MAGIC) + _DIGEST_BYTES:
        return None
    body, digest = data[len(MAGIC) : -_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.md5(body, usedforsecurity=False).digest() != digest:
        return None
    from google.protobuf.message import DecodeError

    message: Any = message_class()()
    try:
        message.ParseFromString(body)
        return [_part(message, record) for record in message.records]
    # The digest is right, but the body has another format.
    except (DecodeError, UnicodeDecodeError, IndexError, ValueError):
        return None


def _part(message: Any, record: Any) -> Part:
    explicit: str | None = None
    if record.HasField("explicit_hash_key_index"):
        explicit = message.explicit_hash_key_table[record.explicit_hash_key_index]
    part = Part(
        partition_key=message.partition_key_table[record.partition_key_index],
        data=record.data,
        explicit_hash_key=explicit,
        tags={tag.key: tag.value for tag in record.tags},
    )
    if part.hash_key < 0:
        raise ValueError("the hash is negative")
    return part


def user_records(stored: StoredRecord, hashes: HashRange | None) -> list[UserRecord]:
    """Return the producers' records in a stored one.

    A packed record whose hash belongs to another shard is omitted. It was packed before a split or
    merge; the service notified its producer, which sends it again.
    """
    parts = unpack(stored.data)
    if parts is None:
        own = Part(stored.partition_key, stored.data)
        place, next_place = at(stored.number), stored.next_place
        return [UserRecord(place, next_place, stored.arrived, own, encryption=stored.encryption)]
    last = len(parts) - 1
    return [
        UserRecord(
            place=at(stored.number, index),
            next_place=stored.next_place if index == last else at(stored.number, index + 1),
            arrived=stored.arrived,
            part=part,
            aggregated=True,
            encryption=stored.encryption,
        )
        for index, part in enumerate(parts)
        if hashes is None or hashes.holds(part.hash_key)
    ]


def add_record(columns: RecordColumns, record: UserRecord) -> None:
    """Append a record to the columns of its shard."""
    columns.cursors.append(str(record.place))
    columns.times.append(record.arrived)
    columns.keys.append(record.part.partition_key.encode())
    columns.add_values([record.part.data])
    columns.add_attributes(record.attributes())
