"""A topic as a source: its partitions, their bounds, and the ends of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache

from dagster_leasehold.lease_store.errors import SourceError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.shard_sources.event_times import moment_of
from dagster_leasehold.shard_sources.kafka.client import KafkaClient
from dagster_leasehold.shard_sources.kafka.consumer_groups import KafkaConsumerGroup
from dagster_leasehold.shard_sources.kafka.options import KafkaOptions
from dagster_leasehold.shard_sources.kafka.reader import NO_TIME, KafkaReader, payload
from dagster_leasehold.shard_sources.positions import divide_offsets, offsets_left, parse_offset
from dagster_leasehold.shard_sources.registry import SourceKind, StreamPlace
from dagster_leasehold.shard_sources.source import (
    Limits,
    PlannedRange,
    Position,
    ReadRange,
    ShardBounds,
    ShardReader,
)

SOURCE_NAME = "kafka"
ORIGIN = "0"
READERS_MAX = 8
PEEKED_BYTES = 64 * 1024
"""The size of a fetch for one record; the client repeats it if the record is larger."""


class KafkaSource(KafkaReader):
    """A topic of Apache Kafka."""

    def __init__(self, options: KafkaOptions, topic: str) -> None:
        super().__init__(options, topic)
        small = {**options.client, "fetch.message.max.bytes": PEEKED_BYTES}
        self._peeking = KafkaClient(options.model_copy(update={"client": small}), topic)

    def list_shards(self) -> list[ShardListing]:
        """Return the topic's partitions; partitions that are added later have no parents."""
        return [ShardListing(ShardId(str(number))) for number in self._client.partitions()]

    def bounds(self, shards: Sequence[ShardId]) -> dict[ShardId, ShardBounds]:
        """Return the bounds of shards, by two requests to each leader."""
        return {
            shard: ShardBounds(str(begin), str(end), finished=False, origin=ORIGIN)
            for shard, (begin, end) in self._client.bounds(shards).items()
        }

    def cursor_at(self, shard: ShardId, position: Position | datetime) -> str:
        """Return the cursor of the first record at or after a position, or the end."""
        if isinstance(position, datetime):
            # Rounded up, because a record of the millisecond before the time is too early.
            milliseconds = -(-round(position.timestamp() * 1_000_000) // 1_000)
            offset = self._client.offsets([shard], max(0, milliseconds))[shard]
            if offset >= 0:
                return str(offset)
            position = Position.END
        return str(self._client.offsets([shard], position)[shard])

    def times_at(self, cursors: Mapping[ShardId, str]) -> dict[ShardId, datetime]:
        """Return the timestamps of the records at these cursors, by one fetch from each leader."""
        shards = {self._client.partition(shard): shard for shard in cursors}
        offsets = {number: parse_offset(shard, cursors[shard]) for number, shard in shards.items()}
        times: dict[ShardId, datetime] = {}
        for number, message in self._peeking.first_messages(offsets).items():
            kind, milliseconds = message.timestamp()
            time = None if kind == NO_TIME else moment_of(milliseconds * 1000)
            if time is not None:
                times[shards[number]] = time
        return times

    def plan(self, shard: ShardId, start: str, limits: Limits) -> PlannedRange:
        """Return the end of a batch.

        The record limit counts offsets. The byte limit is exact within the first `probe_records`
        records, which are read; for later records it assumes their mean size.
        """
        first = parse_offset(shard, start)
        most = min(self.check_within(shard, first), first + limits.records_max)
        if most == first:
            return PlannedRange(start, 0, last=False)
        return self._probe(shard, first, most, limits)

    def _probe(self, shard: ShardId, first: int, most: int, limits: Limits) -> PlannedRange:
        records = bytes_ = 0
        last = first - 1
        for messages in self.messages(shard, first, most):
            for message in messages:
                size, offset = payload(message), message.offset() or 0
                if records and bytes_ + size > limits.bytes_max:
                    return PlannedRange(str(offset), records, last=False)
                records, bytes_, last = records + 1, bytes_ + size, offset
                if bytes_ >= limits.bytes_max:
                    return PlannedRange(str(last + 1), records, last=False)
                if records >= self._options.probe_records:
                    room = (limits.bytes_max - bytes_) * records // max(1, bytes_)
                    end = min(most, last + 1 + room)
                    return PlannedRange(str(end), records + end - last - 1, last=False)
        return PlannedRange(str(most), records, last=False)

    def log_identity(self) -> str | None:
        """Return the topic's id; None in a cluster without topic ids."""
        return self._client.topic_id()

    def divide(self, range_: ReadRange, parts: int) -> list[ReadRange]:
        """Divide a range by its offsets; offsets without records can make the parts unequal."""
        return divide_offsets(range_, parts)

    def lag(self, shard: ShardId, cursor: str, bounds: ShardBounds) -> int:
        """Return the offsets from a cursor to the end, including offsets without records."""
        return offsets_left(shard, cursor, bounds)

    def spark_options(self) -> Mapping[str, str]:
        """Return the reader's options, with the environment variables of secrets."""
        return {
            "source": SOURCE_NAME,
            "topic": self.topic,
            "options": self._options.model_dump_json(exclude_defaults=True),
        }

    def consumer_group(self, name: str) -> KafkaConsumerGroup:
        """Return one of Kafka's consumer groups, limited to this topic."""
        return KafkaConsumerGroup(self._client, name)

    @property
    def mirrors(self) -> bool:
        """True if checkpoints are committed to a consumer group of Kafka."""
        return self._options.mirror_group is not None

    def mirror(self, checkpoints: Mapping[ShardId, str]) -> None:
        """Commit the checkpoints of these shards to a consumer group of Kafka."""
        group = self._options.mirror_group
        if group is None or not checkpoints:
            return
        if refusal := self.consumer_group(group).commit(checkpoints):
            raise SourceError(
                f"Kafka did not store the progress of topic {self.topic} for its group {group}: "
                f"{refusal}."
            )


def _open(options: KafkaOptions, place: StreamPlace) -> KafkaSource:
    return KafkaSource(options, options.topic or place.stream)


@lru_cache(maxsize=READERS_MAX)
def _cached_reader(options: str, topic: str) -> KafkaReader:
    return KafkaReader(KafkaOptions.model_validate_json(options), topic)


def _reader(options: Mapping[str, str]) -> ShardReader:
    """Return a reader whose connections the next task of this Spark worker reuses."""
    return _cached_reader(options["options"], options["topic"])


KIND = SourceKind(
    KafkaOptions,
    _open,
    _reader,
    library="confluent_kafka",
    install="pip install 'dagster-leasehold[kafka]'",
)
