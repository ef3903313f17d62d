from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime

import pytest

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.kinesis.cursors import after, at
from dagster_leasehold.shard_sources.kinesis.paging import StoredRecord
from dagster_leasehold.shard_sources.kinesis.user_records import (
    MAGIC,
    HashRange,
    Part,
    add_record,
    unpack,
    user_records,
)
from dagster_leasehold.shard_sources.record_columns import batches_of
from dagster_leasehold.shard_sources.source import record_schema
from tests.unit.shard_sources.kinesis.packing import pack

# By hand, after the format's description: keys "a" and "b"; explicit hash "7"; a tag "t" of "v".
BODY = bytes.fromhex(
    "0a0161"
    "0a0162"
    "120137"  # the tables
    "1a07"
    "0800"
    "1a03"
    "6f6e65"  # "one" with key 0
    "1a11"
    "0801"
    "1000"
    "1a03"
    "74776f"
    "2206"
    "0a0174"
    "120176"  # "two" with key 1, hash 0, a tag
)
# What another implementation of the format packed: aggregator.py of aws_kinesis_agg 1.2.3.
PACKED_ELSEWHERE = base64.b64decode(
    "84mawgoFa2V5LWEKBWtleS1iEicxNzAxNDExODM0NjA0NjkyMzE3MzE2ODczMDM3MTU4ODQxMDU3MjgaBwgAGgNvbmUa"
    "CwgBEAAaBXR3byD/GgQIABoABtIUCLiT9+ZA8d/E7gnm6g=="
)
ARRIVED = datetime(2026, 1, 1, tzinfo=UTC)
ALL_HASHES = HashRange(0, (1 << 128) - 1)


def packed(body: bytes) -> bytes:
    return MAGIC + body + hashlib.md5(body).digest()


def stored(data: bytes, number: int = 5) -> StoredRecord:
    return StoredRecord(number, ARRIVED, "outer", data)


def test_the_documented_example_is_unpacked() -> None:
    assert unpack(packed(BODY)) == [Part("a", b"one"), Part("b", b"two", "7", {"t": "v"})]


def test_records_of_another_implementation_are_unpacked() -> None:
    assert unpack(PACKED_ELSEWHERE) == [
        Part("key-a", b"one"),
        Part("key-b", b"two \xff", str(1 << 127)),
        Part("key-a", b""),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"plain",
        MAGIC,
        MAGIC + b"short",
        MAGIC + BODY + b"\0" * 16,
        packed(b"\xff\xff"),
        packed(bytes.fromhex("1a020805")),  # an index beyond the table
        packed(bytes.fromhex("0a01611201781a07080010001a0178")),  # hash "x"
    ],
)
def test_data_of_another_form_is_an_ordinary_record(data: bytes) -> None:
    assert unpack(data) is None
    (record,) = user_records(stored(data), ALL_HASHES)
    assert (record.part.data, record.part.partition_key) == (data, "outer")
    assert (record.place, record.next_place) == (at(5), after(5, int(ARRIVED.timestamp())))


def test_each_packed_record_has_its_own_position() -> None:
    records = user_records(stored(pack([Part("k", b"%d" % n) for n in range(3)])), ALL_HASHES)
    places = [at(5), at(5, 1), at(5, 2)]
    assert [record.place for record in records] == places
    assert [record.next_place for record in records] == [*places[1:], after(5, 1767225600)]


def test_a_packed_record_of_another_shard_is_omitted_and_keeps_its_index() -> None:
    """Its producer gets an error, because the record came to another shard, and resends it."""
    parts = [Part("k", b"mine", "1"), Part("k", b"not mine", "9"), Part("k", b"mine too", "2")]
    records = user_records(stored(pack(parts)), HashRange(0, 5))
    assert [record.part.data for record in records] == [b"mine", b"mine too"]
    assert [record.place for record in records] == [at(5), at(5, 2)]


def test_a_partition_key_s_hash_is_its_md5() -> None:
    assert Part("key", b"").hash_key == int(hashlib.md5(b"key").hexdigest(), 16)


def test_data_without_packed_records_unpacks_to_nothing() -> None:
    assert user_records(stored(pack([])), ALL_HASHES) == []


def test_columns_contain_all_known_attributes() -> None:
    data = pack([Part("k", b"v", "1", {"t": "x"})])
    records = user_records(stored(data), ALL_HASHES)
    [batch] = batches_of(ShardId("shardId-000000000000"), records, add_record)
    assert batch.schema.equals(record_schema())
    (row,) = batch.to_pylist()
    assert (row["cursor"], row["event_time"]) == ("5", ARRIVED)
    assert (row["key"], row["value"]) == (b"k", b"v")
    assert dict(row["attributes"]) == {
        "t": "x",
        "partition_key": "k",
        "sequence_number": "5",
        "sub_sequence_number": "0",
        "explicit_hash_key": "1",
    }
