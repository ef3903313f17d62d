"""Records that the Kinesis Producer Library packed into one: found, checked, and unpacked.

The format (awslabs/amazon-kinesis-producer, `aggregation-format.md`): four magic bytes, a protocol
buffers message, and the MD5 of that message. The message holds two tables of keys, and for each
record the indices of its keys, its data, and tags.

What starts with the magic bytes but fails the check is an ordinary record of some producer, and is
passed on as it is: the format says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES = 16
_TYPES = {"uint64": 4, "bytes": 12, "string": 9, "message": 11}
_OPTIONAL, _REPEATED = 1, 3
# Message → its fields: name, number, repeated, type (a message's own name where it is one).
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
        partition_key: by which its shard was chosen.
        data: from the producer.
        explicit_hash_key: the hash that it asked for instead of its partition key's; or None.
        tags: from the producer's library.
    """

    partition_key: str
    data: bytes
    explicit_hash_key: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def hash_key(self) -> int:
        """The 128-bit hash that decides its shard."""
        if self.explicit_hash_key is not None:
            return int(self.explicit_hash_key)
        digest = hashlib.md5(self.partition_key.encode(), usedforsecurity=False).digest()
        return int.from_bytes(digest)


@cache
def message_class() -> type[Any]:
    """The class of the format's message, made of its description: no generated code is kept."""
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
    """The records packed into a record's data; None where it is an ordinary record."""
    if not data.startswith(MAGIC) or len(data) < len(MAGIC) + _DIGEST_BYTES:
        return None
    body, digest = data[len(MAGIC) : -_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.md5(body, usedforsecurity=False).digest() != digest:
        return None
    return _parts(body)


def _parts(body: bytes) -> list[Part] | None:
    from google.protobuf.message import DecodeError

    message: Any = message_class()()
    try:
        message.ParseFromString(body)
        return [_part(message, record) for record in message.records]
    # A body of the right digest that is no such message: another format.
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
        raise ValueError("a hash is no negative number")
    return part
