"""Reading ranges of offsets as Arrow batches, one row per message."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from dagster_leasehold.lease_store.errors import SourceUnavailable
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.kafka.client import KafkaClient
from dagster_leasehold.shard_sources.kafka.failures import OUT_OF_RANGE, error_of
from dagster_leasehold.shard_sources.kafka.options import KafkaOptions
from dagster_leasehold.shard_sources.positions import check_within, parse_offset
from dagster_leasehold.shard_sources.record_columns import (
    RecordColumns,
    batches_of,
    by_name,
    named_text,
)
from dagster_leasehold.shard_sources.source import ReadRange

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import KafkaError, Message
    from confluent_kafka._types import HeadersType

NO_TIME = 0
"""The type of a missing timestamp (`confluent_kafka.TIMESTAMP_NOT_AVAILABLE`)."""


class KafkaReader:
    """Reads ranges of a topic's partitions, on a Spark worker."""

    def __init__(self, options: KafkaOptions, topic: str) -> None:
        self.topic = topic
        self._options = options
        self._client = KafkaClient(options, topic)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic!r})"

    def read(self, range_: ReadRange) -> Iterator[pa.RecordBatch]:
        """Yield the records whose offsets are in a range, in order.

        Compaction and transactions leave offsets without records. A record that compaction removes
        between two reads of a range is missing from the second.
        """
        shard = range_.shard
        self._client.partition(shard)
        start, end = parse_offset(shard, range_.start), parse_offset(shard, range_.end)
        if start >= end:
            self.check_within(shard, start)
            return
        # Messages are converted at once. If thousands of them stayed alive, Python's garbage
        # collector would scan all objects of the process again and again.
        yield from batches_of(shard, self.messages(shard, start, end), add_messages)

    def check_within(self, shard: ShardId, offset: int) -> int:
        """Check that an offset is within a partition; return the partition's end."""
        begin, end = self._client.bounds([shard])[shard]
        log, hint = f"Shard {shard} of topic {self.topic}", "; was the topic recreated?"
        check_within(log, offset, begin, end, hint=hint)
        return end

    def messages(self, shard: ShardId, start: int, end: int) -> Iterator[list[Message]]:
        """Yield the messages of a partition with offsets in `[start, end)`, in lists.

        Raises:
            CursorExpired, CursorInvalid: `start` is out of the partition's range.
            SourceUnavailable: the partition ended before `end`, or no broker answers.
        """
        for messages in self._client.stream(shard, start):
            errors = [message.error() for message in messages]
            event = next((at for at, error in enumerate(errors) if error is not None), None)
            offsets = [message.offset() or 0 for message in messages[:event]]
            yield messages[: bisect_left(offsets, end)]
            if offsets and offsets[-1] + 1 >= end:
                return
            if event is not None:
                reached = messages[event].offset() or 0
                self._check_end(shard, cast("KafkaError", errors[event]), reached, start, end)
                return

    def _check_end(
        self, shard: ShardId, error: KafkaError, reached: int, start: int, end: int
    ) -> None:
        """Raise unless the stream reached the end of its range."""
        if re.fullmatch(OUT_OF_RANGE, error.name()):
            self.check_within(shard, start)
        if error.name() != "_PARTITION_EOF":
            raise error_of(error, f"offset {start} of shard {shard} of topic {self.topic}")
        if reached < end:
            raise SourceUnavailable(
                f"Shard {shard} of topic {self.topic} ends at {reached} now, although it had "
                f"reached {end}: its leader has lost records or is behind."
            )


def payload(message: Message) -> int:
    """Return the bytes of a message's key and value."""
    return len(message) + len(message.key() or b"")


def add_messages(columns: RecordColumns, messages: Sequence[Message]) -> None:
    """Append messages to the columns of their shard; a tombstone's value is null."""
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
    """Return headers as attributes; see `named_text` and `by_name`."""
    pairs = headers.items() if isinstance(headers, dict) else headers or ()
    return by_name(
        [
            named_text(name, value) if isinstance(value, bytes) else (name, value)
            for name, value in pairs
        ]
    )
