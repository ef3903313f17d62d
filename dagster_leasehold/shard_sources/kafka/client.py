"""Connections to a Kafka cluster: opened on use, pooled, and replaced after an error."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.kafka.failures import REFUSED, UNAVAILABLE, error_of
from dagster_leasehold.shard_sources.kafka.options import KafkaOptions
from dagster_leasehold.shard_sources.positions import shard_number
from dagster_leasehold.shard_sources.source import Position

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._metadata import ClusterMetadata

_LOG = logging.getLogger(__name__)
GROUP = "leasehold"
"""librdkafka requires a group's name even if no group is joined."""
BUFFER_KIBIBYTES = 16 * 1024
"""How far a consumer fetches ahead; bytes beyond a range are fetched in vain."""
MESSAGES_MAX = 1_000
LOG_CRITICAL = 2
"""The least severe syslog level that librdkafka logs."""
POLL_S = 0.5
"""How often a wait for records checks for a refusal by the brokers."""
IDLE_MAX = 4
WITHOUT_IDS = "_UNSUPPORTED_FEATURE|UNSUPPORTED_VERSION"
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The topic id that brokers without topic ids return."""
# The admin client warns about each of these.
OF_CONSUMERS = frozenset({
    "auto.offset.reset", "enable.auto.commit", "enable.auto.offset.store", "enable.partition.eof",
    "fetch.queue.backoff.ms", "fetch.wait.max.ms", "group.id", "isolation.level",
    "queued.max.messages.kbytes",
})  # fmt: skip


Client = TypeVar("Client", "Consumer", "AdminClient")


@dataclass
class _Connection(Generic[Client]):
    """A client of librdkafka, and the errors that it reported by its callback."""

    client: Client
    reported: list[KafkaError]

    def refusal(self) -> KafkaError | None:
        refusals = (report for report in self.reported if re.fullmatch(REFUSED, report.name()))
        return next(refusals, None)


class KafkaClient:
    """One process's connections to the cluster of a source; safe for several threads.

    Connections are reused, because a new consumer needs a second to find its brokers. A failed one
    is dropped, so that the next one reads the credentials from the environment again.
    """

    def __init__(self, options: KafkaOptions, topic: str) -> None:
        self.options = options
        self.topic = topic
        self._lock = Lock()
        self._consumers: list[_Connection[Consumer]] = []
        self._admins: list[_Connection[AdminClient]] = []

    def properties(self) -> dict[str, Any]:
        """Return the client's properties, with secrets; raise InvalidSetting if one is not set."""
        options = self.options
        secrets: dict[str, str] = {}
        for name, variable in options.secrets.items():
            if variable not in os.environ:
                raise errors.InvalidSetting(
                    f"The environment variable {shown(variable)}, which holds {shown(name)} of "
                    f"topic {self.topic}, is not set here."
                )
            secrets[name] = os.environ[variable]
        return {
            "group.id": GROUP,
            "client.id": "leasehold",
            "log.connection.close": False,
            "queued.max.messages.kbytes": BUFFER_KIBIBYTES,
            # The records of a range exist, so waiting for more is useless. With librdkafka's
            # defaults, a fetch at the end of a partition delays the next range by half a second,
            # and a full buffer by one second.
            "fetch.wait.max.ms": 10,
            "fetch.queue.backoff.ms": 20,
            # Failures are raised; the log would repeat each one several times a second.
            "log_level": LOG_CRITICAL,
            **options.client,
            **secrets,
            "bootstrap.servers": options.bootstrap_servers,
            "isolation.level": options.isolation,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            # A removed offset is an error, never a jump to another one.
            "auto.offset.reset": "error",
        }

    @contextmanager
    def consumer(self, where: str) -> Generator[_Connection[Consumer]]:
        """Lend a consumer without an assignment; `where` is the subject of its errors."""
        from confluent_kafka import Consumer

        with self._pooled(self._consumers, Consumer, where) as connection:
            try:
                yield connection
            finally:
                connection.client.unassign()

    @contextmanager
    def admin(self, where: str) -> Generator[AdminClient]:
        """Lend an admin client, for requests about many partitions at once; see `consumer`."""
        from confluent_kafka.admin import AdminClient

        with self._pooled(self._admins, AdminClient, where, OF_CONSUMERS) as connection:
            yield connection.client

    @contextmanager
    def _pooled(
        self,
        pool: list[_Connection[Client]],
        kind: Callable[..., Client],
        where: str,
        exclusions: Collection[str] = (),
    ) -> Generator[_Connection[Client]]:
        with self._lock:
            connection = pool.pop() if pool else None
        if connection is None:
            reported: list[KafkaError] = []
            properties = {k: v for k, v in self.properties().items() if k not in exclusions}
            with self._translated(where, None):
                client = kind(properties | {"error_cb": reported.append}, logger=_LOG)
            connection = _Connection(client, reported)
        connection.reported.clear()
        failed = True
        try:
            with self._translated(where, connection):
                yield connection
            failed = False
        except GeneratorExit:
            # The caller has read enough.
            failed = False
            raise
        finally:
            with self._lock:
                if not failed and len(pool) < IDLE_MAX:
                    pool.append(connection)

    @contextmanager
    def _translated(self, where: str, connection: _Connection[Any] | None) -> Generator[None]:
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            if connection is not None and re.fullmatch(UNAVAILABLE, error.name()):
                # After a refused login the client raises a timeout; the callback gets the reason.
                connection.client.poll(0)
                error = connection.refusal() or error
            raise error_of(error, self._at_brokers(where)) from None

    def _at_brokers(self, where: str) -> str:
        return f"{where} at {shown(self.options.bootstrap_servers)}"

    # --- Requests ---

    def partitions(self) -> list[int]:
        """Return the numbers of the topic's partitions."""
        metadata = self._cluster().topics[self.topic]
        if metadata.error is not None:
            raise error_of(metadata.error, self._at_brokers(f"topic {self.topic}"))
        return sorted(metadata.partitions)

    def topic_id(self) -> str | None:
        """Return the topic's id; None in a cluster without topic ids."""
        from confluent_kafka import KafkaException, TopicCollection

        cluster = self._cluster()
        if cluster.controller_id not in cluster.brokers:
            # Only the controller can answer; without one, the client would wait until its timeout.
            return None
        with self.admin(f"the id of topic {self.topic}") as admin:
            topics = TopicCollection([self.topic])
            answers = admin.describe_topics(topics, request_timeout=self.options.timeout_s)
            try:
                id_ = str(answers[self.topic].result().topic_id)
            except KafkaException as raised:
                if re.fullmatch(WITHOUT_IDS, raised.args[0].name()):
                    return None
                raise
        return None if id_ == NO_ID else id_

    def _cluster(self) -> ClusterMetadata:
        with self.consumer(f"topic {self.topic}") as connection:
            # The same request of an admin client can create the topic.
            return connection.client.list_topics(self.topic, timeout=self.options.timeout_s)

    def partition(self, shard: ShardId) -> int:
        """Return the number of a shard's partition; raise UnknownShard if the id is no number."""
        return shard_number(shard, f"Topic {self.topic}")

    def bounds(self, shards: Sequence[ShardId]) -> dict[ShardId, tuple[int, int]]:
        """Return the first offset of each partition, and the one after its last.

        The end is the high watermark, or the last stable offset if open transactions are skipped.
        """
        begins, ends = self.offsets(shards, Position.BEGIN), self.offsets(shards, Position.END)
        return {shard: (begins[shard], ends[shard]) for shard in shards}

    def offsets(self, shards: Sequence[ShardId], position: Position | int) -> dict[ShardId, int]:
        """Return the offset at a position or a time in milliseconds; -1 if all records are earlier.

        Each leader gets one request for all its partitions.
        """
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # pyright: ignore[reportPrivateImportUsage]

        if not shards:
            return {}
        if isinstance(position, int):
            spec = OffsetSpec.for_timestamp(position)
        else:
            spec = OffsetSpec.latest() if position is Position.END else OffsetSpec.earliest()
        shard_of = {self.partition(shard): shard for shard in shards}
        request = {
            TopicPartition(self.topic, number): cast(OffsetSpec, spec) for number in shard_of
        }
        committed = self.options.isolation == "read_committed"
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        with self.admin(f"the offsets of topic {self.topic}") as admin:
            answers: Mapping[TopicPartition, object] = admin.list_offsets(
                request, isolation_level=level, request_timeout=self.options.timeout_s
            )
            return {
                shard_of[partition.partition]: self._offset(shard_of[partition.partition], answer)
                for partition, answer in answers.items()
            }

    def _offset(self, shard: ShardId, answer: object) -> int:
        from confluent_kafka import KafkaException

        try:
            return answer.result().offset  # pyright: ignore[reportAttributeAccessIssue]
        except KafkaException as raised:
            error = raised.args[0]
            if error.name() in ("_TIMED_OUT", "_TRANSPORT"):
                raise
            if error.name() == "_NOENT" and self.partition(shard) not in self.partitions():
                raise errors.UnknownShard(f"Topic {self.topic} has no shard {shard}.") from None
            raise error_of(error, f"shard {shard} of topic {self.topic}") from None

    def stream(self, shard: ShardId, offset: int) -> Generator[list[Message]]:
        """Yield the messages of a partition from an offset on, until the caller stops.

        A message with the error `_PARTITION_EOF` marks the end of the readable records.

        Raises:
            CursorExpired: the offset is out of range.
            SourceUnavailable: no broker answered in time.
        """
        from confluent_kafka import TopicPartition

        where = f"shard {shard} of topic {self.topic}"
        with self.consumer(where) as connection:
            consumer = connection.client
            consumer.assign([TopicPartition(self.topic, self.partition(shard), offset)])
            while True:
                first = self._first(connection, where)
                # With a timeout, `consume` would wait until it has this number of messages.
                yield [first, *consumer.consume(num_messages=MESSAGES_MAX, timeout=0)]

    def first_messages(self, offsets: Mapping[int, int]) -> dict[int, Message]:
        """Return the first message of each partition at or after an offset.

        Each leader gets one fetch. Partitions without such a message, or with an offset out of
        range, are omitted.
        """
        from confluent_kafka import TopicPartition

        where = f"the first unread records of topic {self.topic}"
        places = {number: TopicPartition(self.topic, number, at) for number, at in offsets.items()}
        messages: dict[int, Message] = {}
        with self.consumer(where) as connection:
            connection.client.assign([*places.values()])
            while places:
                message = self._first(connection, where)
                place = places.pop(message.partition() or 0, None)
                if place is not None:
                    # This drops the other messages of the fetch.
                    connection.client.incremental_unassign([place])
                    if message.error() is None:
                        messages[place.partition] = message
        return messages

    def _first(self, connection: _Connection[Consumer], where: str) -> Message:
        waited_s = 0.0
        while waited_s < self.options.timeout_s and not connection.refusal():
            if (message := connection.client.poll(POLL_S)) is not None:
                return message
            waited_s += POLL_S
        if refusal := connection.refusal():
            raise error_of(refusal, self._at_brokers(where))
        last = connection.reported[-1:]
        reason = f": {shown(last[0].str())}" if last else ""
        raise errors.SourceUnavailable(
            f"Kafka has not answered for {where} within {self.options.timeout_s:g} s{reason}."
        )
