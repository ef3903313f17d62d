"""A topic as a source: its partitions, their bounds, and where a batch ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from dagster_leasehold.lease_store.errors import SourceError, UnknownShard
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.shard_sources.event_times import moment_of
from dagster_leasehold.shard_sources.kafka.client import KafkaClient
from dagster_leasehold.shard_sources.kafka.consumer_groups import KafkaConsumerGroup
from dagster_leasehold.shard_sources.kafka.failures import error_of
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

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

SOURCE_NAME = "kafka"
ORIGIN = "0"
READERS_MAX = 8
PEEKED_BYTES = 64 * 1024
"""The bytes of a partition that are fetched to see one record; the client asks for more of them
where that record is larger."""


class KafkaSource(KafkaReader):
    """A topic of Apache Kafka."""

    def __init__(self, options: KafkaOptions, topic: str) -> None:
        super().__init__(options, topic)
        # Of each partition one record is looked at: the rest of a fetch comes for nothing.
        fetched = {**options.client, "fetch.message.max.bytes": PEEKED_BYTES}
        self._peeking = KafkaClient(options.model_copy(update={"client": fetched}), topic)

    def list_shards(self) -> list[ShardListing]:
        """The topic's partitions. A topic that grows gains shards, which have no parents."""
        return [ShardListing(ShardId(str(number))) for number in self._client.partitions()]

    def bounds(self, shards: Sequence[ShardId]) -> dict[ShardId, ShardBounds]:
        """The bounds of these shards, in two requests to the leaders of their partitions.

        The end is the high watermark, or the last stable offset where open transactions are left
        out.
        """
        if not shards:
            return {}
        begins, ends = self._offsets(shards, Position.BEGIN), self._offsets(shards, Position.END)
        return {
            shard: ShardBounds(str(begins[shard]), str(ends[shard]), finished=False, origin=ORIGIN)
            for shard in shards
        }

    def _offsets(self, shards: Sequence[ShardId], position: Position | int) -> dict[ShardId, int]:
        """The offsets of a position or of a time in milliseconds, -1 where no record is so late.

        One request goes to each leader, for all its partitions.
        """
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # pyright: ignore[reportPrivateImportUsage]

        if isinstance(position, int):
            spec = OffsetSpec.for_timestamp(position)
        else:
            spec = OffsetSpec.latest() if position is Position.END else OffsetSpec.earliest()
        numbers = {self._client.partition(shard): shard for shard in shards}
        request = {TopicPartition(self.topic, number): cast(OffsetSpec, spec) for number in numbers}
        committed = self._options.isolation == "read_committed"
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        timeout_s = self._options.timeout_s
        offsets: dict[ShardId, int] = {}
        where = f"the offsets of topic {self.topic}"
        with self._client.admin(where) as admin:
            answers: Mapping[TopicPartition, object] = admin.list_offsets(
                request, isolation_level=level, request_timeout=timeout_s
            )
            for partition, answer in answers.items():
                shard = numbers[partition.partition]
                offsets[shard] = self._answered(shard, answer)
        return offsets

    def _answered(self, shard: ShardId, answer: object) -> int:
        from confluent_kafka import KafkaException

        try:
            return answer.result().offset  # pyright: ignore[reportAttributeAccessIssue]
        except KafkaException as raised:
            error = raised.args[0]
            if error.name() in ("_TIMED_OUT", "_TRANSPORT"):
                raise
            number = self._client.partition(shard)
            if error.name() == "_NOENT" and number not in self._client.partitions():
                raise UnknownShard(f"Topic {self.topic} has no shard {shard}.") from None
            raise error_of(error, f"shard {shard} of topic {self.topic}") from None

    def cursor_at(self, shard: ShardId, position: Position | datetime) -> str:
        """The cursor of the first record at or after a position; the end where there is none."""
        if isinstance(position, datetime):
            # Rounded up: a record of the millisecond before is not at or after the time.
            milliseconds = -(-round(position.timestamp() * 1_000_000) // 1_000)
            at = self._offsets([shard], max(0, milliseconds))[shard]
            if at >= 0:
                return str(at)
            position = Position.END
        return str(self._offsets([shard], position)[shard])

    def times_at(self, cursors: Mapping[ShardId, str]) -> dict[ShardId, datetime]:
        """The timestamps of the records at these cursors, by one fetch from each leader."""
        shards = {self._client.partition(shard): shard for shard in cursors}
        offsets = {number: parse_offset(shard, cursors[shard]) for number, shard in shards.items()}
        stamps = {
            shards[number]: message.timestamp()
            for number, message in self._peeking.first_messages(offsets).items()
        }
        times = {
            shard: None if kind == NO_TIME else moment_of(milliseconds * 1000)
            for shard, (kind, milliseconds) in stamps.items()
        }
        return {shard: time for shard, time in times.items() if time is not None}

    def plan(self, shard: ShardId, start: str, limits: Limits) -> PlannedRange:
        """Fix the end of a batch that starts at `start`.

        The record limit counts offsets. For the byte limit the first `probe_records` records are
        looked at: it is exact among them, and beyond them counts on records of their mean size.
        """
        first = parse_offset(shard, start)
        bounds = self.bounds([shard])[shard]
        self.check_within(shard, first, int(bounds.begin), int(bounds.end))
        most = min(int(bounds.end), first + limits.records_max)
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
        """Return the topic's id; None of a cluster that gives its topics none."""
        return self._client.topic_id()

    def divide(self, range_: ReadRange, parts: int) -> list[ReadRange]:
        """Cut a range by its offsets; holes between them can make parts unequal."""
        return divide_offsets(range_, parts)

    def lag(self, shard: ShardId, cursor: str, bounds: ShardBounds) -> int:
        """Offsets between a cursor and the end; holes count."""
        return offsets_left(shard, cursor, bounds)

    def spark_options(self) -> Mapping[str, str]:
        """Return the options of the reader in a Spark worker.

        Of secrets they hold the names of the environment variables.
        """
        return {
            "source": SOURCE_NAME,
            "topic": self.topic,
            "options": self._options.model_dump_json(exclude_defaults=True),
        }

    def consumer_group(self, name: str) -> KafkaConsumerGroup:
        """Return one of Kafka's own consumer groups, as far as it concerns the topic."""
        return KafkaConsumerGroup(self._client, name)

    @property
    def mirrors(self) -> bool:
        """True if Kafka is to be told the checkpoints."""
        return self._options.mirror_group is not None

    def mirror(self, checkpoints: Mapping[ShardId, str]) -> None:
        """Tell a consumer group of Kafka's how far these shards are committed."""
        group = self._options.mirror_group
        if group is None or not checkpoints:
            return
        offsets = {
            self._client.partition(shard): parse_offset(shard, cursor)
            for shard, cursor in checkpoints.items()
        }
        refusal = self.consumer_group(group).commit(offsets)
        if refusal:
            raise SourceError(
                f"Kafka did not take the progress of topic {self.topic} for its group {group}: "
                f"{refusal}."
            )


def _open(options: KafkaOptions, place: StreamPlace) -> KafkaSource:
    return KafkaSource(options, options.topic or place.stream)


@lru_cache(maxsize=READERS_MAX)
def _cached_reader(options: str, topic: str) -> KafkaReader:
    return KafkaReader(KafkaOptions.model_validate_json(options), topic)


def _reader(options: Mapping[str, str]) -> ShardReader:
    """A reader whose connections are kept for the next task of this Spark worker."""
    return _cached_reader(options["options"], options["topic"])


KIND = SourceKind(
    KafkaOptions,
    _open,
    _reader,
    library="confluent_kafka",
    install="pip install 'dagster-leasehold[kafka]'",
)
