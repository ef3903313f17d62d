"""Messages become the columns of every source, also without key, value, time or headers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.kafka.reader import NO_TIME, add_messages
from dagster_leasehold.shard_sources.record_columns import RecordColumns
from dagster_leasehold.shard_sources.source import record_schema

AT = 1_767_225_600_123
CREATED = 1


@dataclass
class StoredMessage:
    """A message with the methods of the client's that the reader calls."""

    place: int
    content: bytes | None = b"value"
    name: bytes | None = None
    stamp: tuple[int, int] = (CREATED, AT)
    head: Any = None

    def offset(self) -> int:
        return self.place

    def value(self) -> bytes | None:
        return self.content

    def key(self) -> bytes | None:
        return self.name

    def timestamp(self) -> tuple[int, int]:
        return self.stamp

    def headers(self) -> Any:
        return self.head


def columns_of(*messages: Any) -> dict[str, list[Any]]:
    columns = RecordColumns(ShardId("3"))
    add_messages(columns, messages)
    batch = columns.batch()
    assert batch.schema.equals(record_schema())
    batch.validate(full=True)
    return batch.to_pydict()


def test_the_same_messages_give_the_same_columns() -> None:
    columns = columns_of(
        StoredMessage(7, b"\xff\x00", b"key"),
        StoredMessage(9, None, None, (NO_TIME, 0)),
        StoredMessage(2**62, b"", b"", (CREATED, 0), [("a", b"1"), ("b", b"\xff"), ("a", b"2")]),
        StoredMessage(2**62 + 1, head={"none": None, "text": "t"}),
        StoredMessage(2**62 + 2, head=[]),
    )
    at = datetime(2026, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC)
    assert columns == {
        "shard_id": ["3"] * 5,
        "cursor": ["7", "9", "4611686018427387904", "4611686018427387905", "4611686018427387906"],
        "event_time": [at, None, datetime(1970, 1, 1, tzinfo=UTC), at, at],
        "key": [b"key", None, b"", None, None],
        "value": [b"\xff\x00", None, b"", b"value", b"value"],
        "attributes": [
            [],
            [],
            [("a#1", "1"), ("b_base64", "/w=="), ("a", "2")],
            [("none", None), ("text", "t")],
            [],
        ],
    }


def test_messages_without_headers_have_empty_attributes_not_missing_ones() -> None:
    columns = columns_of(StoredMessage(0), StoredMessage(1, head=[]))
    assert columns["attributes"] == [[], []]


@pytest.mark.parametrize(
    ("headers", "attributes"),
    [
        ([("a", b"1"), ("a", None), ("a", b"1")], [("a#1", "1"), ("a#2", None), ("a", "1")]),
        # Names that other headers have already are passed over.
        ([("a", b"1"), ("a#1", b"2"), ("a", b"3")], [("a#2", "1"), ("a#1", "2"), ("a", "3")]),
        ([("a_base64", b"1"), ("a", b"\xff")], [("a_base64#1", "1"), ("a_base64", "/w==")]),
        ([("a", b"\xff"), ("a", b"1")], [("a_base64", "/w=="), ("a", "1")]),
    ],
)
def test_all_headers_with_one_name_are_kept(headers: Any, attributes: list[Any]) -> None:
    assert columns_of(StoredMessage(0, head=headers))["attributes"] == [attributes]


def test_the_time_for_headers_with_one_name_follows_their_number() -> None:
    def seconds(number: int) -> float:
        # Each of the names that would come next is taken.
        head = [(f"a#{each}", b"") for each in range(number)] + [("a", b"")] * number
        started = time.perf_counter()
        [attributes] = columns_of(StoredMessage(0, head=head))["attributes"]
        assert len(attributes) == len(dict(attributes)) == 2 * number
        return time.perf_counter() - started

    seconds(100)
    assert seconds(40_000) < 40 * seconds(4_000) + 0.1


def test_a_time_outside_the_calendar_is_null_and_kept_as_an_attribute() -> None:
    """Goal: a producer that sends microseconds or nanoseconds stops no partition."""
    stamps = [2**63 - 1, -(2**63), AT * 1_000, AT * 1_000_000, AT]
    columns = columns_of(
        *[StoredMessage(at, stamp=(CREATED, stamp)) for at, stamp in enumerate(stamps)]
    )
    assert columns["event_time"][:4] == [None] * 4
    assert columns["event_time"][4] == datetime(2026, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC)
    texts = [[("event_time_us", str(stamp * 1_000))] for stamp in stamps[:4]]
    assert columns["attributes"] == [*texts, []]
