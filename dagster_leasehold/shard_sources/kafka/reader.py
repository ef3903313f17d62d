"""Reading ranges of offsets as Arrow batches, one row a message."""

from __future__ import annotations

import re
from base64 import b64encode
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from dagster_leasehold.lease_store.errors import SourceUnavailable
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.kafka.client import KafkaClient
from dagster_leasehold.shard_sources.kafka.failures import OUT_OF_RANGE, error_of
from dagster_leasehold.shard_sources.kafka.options import KafkaOptions
from dagster_leasehold.shard_sources.positions import check_within, parse_offset
from dagster_leasehold.shard_sources.record_columns import RecordColumns, by_name
from dagster_leasehold.shard_sources.source import ReadRange

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import KafkaError, Message
    from confluent_kafka._types import HeadersType

BASE64_SUFFIX = "_base64"
NO_TIME = 0
"""The type of a time stamp that is none (`confluent_kafka.TIMESTAMP_NOT_AVAILABLE`)."""


class KafkaReader:
    """Reads ranges of a topic's partitions, on a Spark worker."""

    def __init__(self, options: KafkaOptions, topic: str) -> None:
        self.topic = topic
        self._options = options
        self._client = KafkaClient(options, topic)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic!r})"

    def read(self, range_: ReadRange) -> Iterator[pa.RecordBatch]:
        """The records whose offsets are in a range, in order.

        Compaction and transactions leave holes, so they can be fewer than there are offsets. What
        compaction removes between two reads of a range is missing from the second.
        """
        shard = range_.shard
        self._client.partition(shard)
        start, end = parse_offset(shard, range_.start), parse_offset(shard, range_.end)
        if start >= end:
            self.check_within(shard, start, *self._client.watermarks(shard))
            return
        columns = RecordColumns(shard)
        for messages in self.messages(shard, start, end):
            # Taken apart at once: thousands of messages that live on would make Python's garbage
            # collector look at all objects of the process, again and again.
            add_messages(columns, messages)
            if columns.full:
                yield columns.batch()
                columns = RecordColumns(shard)
        if len(columns):
            yield columns.batch()

    def check_within(self, shard: ShardId, offset: int, begin: int, end: int) -> None:
        """Refuse an offset outside of a partition, `[begin, end]`."""
        log, hint = f"Shard {shard} of topic {self.topic}", "; was the topic recreated?"
        check_within(log, offset, begin, end, hint=hint)

    def messages(self, shard: ShardId, start: int, end: int) -> Iterator[list[Message]]:
        """The messages of a partition with offsets in `[start, end)`, as they come.

        Raises:
            CursorExpired, CursorInvalid: `start` is out of the partition's range.
            SourceUnavailable: the partition ended before `end`, or no broker answers.
        """
        for messages in self._client.stream(shard, start):
            errors = [message.error() for message in messages]
            event = next((at for at, error in enumerate(errors) if error is not None), None)
            offsets = [message.offset() or 0 for message in messages[:event]]
            in_range = messages[: bisect_left(offsets, end)]
            yield in_range
            if offsets and offsets[-1] + 1 >= end:
                return
            if event is not None:
                reached = messages[event].offset() or 0
                self._check_end(shard, cast("KafkaError", errors[event]), reached, start, end)
                return

    def _check_end(
        self, shard: ShardId, error: KafkaError, reached: int, start: int, end: int
    ) -> None:
        """Raise for a reading that has stopped before the end of its range."""
        if re.fullmatch(OUT_OF_RANGE, error.name()):
            self.check_within(shard, start, *self._client.watermarks(shard))
        if error.name() != "_PARTITION_EOF":
            raise error_of(error, f"offset {start} of shard {shard} of topic {self.topic}")
        if reached < end:
            raise SourceUnavailable(
                f"Shard {shard} of topic {self.topic} ends at {reached} now, before {end}, which "
                "it had reached: its leader has lost records or is behind."
            )


def payload(message: Message) -> int:
    """The bytes of a message's key and value."""
    return len(message) + len(message.key() or b"")


def add_messages(columns: RecordColumns, messages: Sequence[Message]) -> None:
    """Append messages to the columns of their shard.

    A tombstone's value is null. A header's value is its text; one that is not UTF-8 goes under its
    name with `_base64` added. All headers with one name are kept: see `by_name`.
    """
    columns.cursors += [message.offset() for message in messages]
    columns.times += [
        None if (stamp := message.timestamp())[0] == NO_TIME else stamp[1] * 1000
        for message in messages
    ]
    columns.keys += [message.key() for message in messages]
    columns.add_values([message.value() for message in messages])
    headers = [message.headers() for message in messages]
    if any(headers):
        for each in headers:
            columns.add_attributes(attributes(each))
    else:
        columns.add_no_attributes(len(messages))


def attributes(headers: HeadersType | None) -> dict[str, str | None]:
    """Return headers as attributes: texts by name."""
    pairs = headers.items() if isinstance(headers, dict) else headers or ()
    return by_name([_named_text(name, value) for name, value in pairs])


def _named_text(name: str, value: str | bytes | None) -> tuple[str, str | None]:
    if not isinstance(value, bytes):
        return name, value
    try:
        return name, value.decode("utf-8")
    except UnicodeDecodeError:
        return name + BASE64_SUFFIX, b64encode(value).decode("ascii")
