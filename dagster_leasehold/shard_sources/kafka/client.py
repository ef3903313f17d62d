"""Connections to a Kafka cluster: made when they are needed, and replaced with new credentials."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.kafka.failures import AWAY, REFUSED, error_of
from dagster_leasehold.shard_sources.kafka.options import KafkaOptions

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._metadata import ClusterMetadata

_LOG = logging.getLogger(__name__)
GROUP = "leasehold"
"""The client wants the name of a group even where none is joined or committed to."""
BUFFER_KIBIBYTES = 16 * 1024
"""The most that a reader fetches ahead of a partition; all after a range is fetched for nothing."""
MESSAGES_MAX = 1_000
LOG_CRITICAL = 2
"""The lowest level of syslog that librdkafka logs."""
LOOK_S = 0.5
"""The time between two looks, during a wait for records, for a refusal by the brokers."""
IDLE_MAX = 4
WITHOUT_IDS = "_UNSUPPORTED_FEATURE|UNSUPPORTED_VERSION"
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id of a topic whose broker is older than ids."""
# The administrator's client would warn of each of them.
OF_CONSUMERS = frozenset({
    "auto.offset.reset", "enable.auto.commit", "enable.auto.offset.store", "enable.partition.eof",
    "fetch.queue.backoff.ms", "fetch.wait.max.ms", "group.id", "isolation.level",
    "queued.max.messages.kbytes",
})  # fmt: skip


Client = TypeVar("Client")


@dataclass
class _Connection(Generic[Client]):
    """A client of librdkafka's, and the errors that it reported beside its answers."""

    client: Client
    reported: list[KafkaError]

    def refusal(self) -> KafkaError | None:
        """Return the reason why the brokers refuse this client; None where they do not."""
        refused = (report for report in self.reported if re.fullmatch(REFUSED, report.name()))
        return next(refused, None)


class KafkaClient:
    """One process's connections to the cluster of a source; safe to use from several threads.

    A consumer that has read a range is kept for the next: making one takes it a second to find its
    way. One that was refused or got no answer is dropped, so that the next one connects again, with
    the credentials that the environment has then.
    """

    def __init__(self, options: KafkaOptions, topic: str) -> None:
        self.options = options
        self.topic = topic
        self._lock = Lock()
        self._idle: list[_Connection[Consumer]] = []
        self._admin: _Connection[AdminClient] | None = None

    def properties(self) -> dict[str, Any]:
        """The client's properties, secrets included: for the client alone.

        Raises:
            InvalidSetting: a variable that holds a secret is not set.
        """
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
            # A range is never waited for: its records are there. With the client's own figures a
            # look at the end of a partition delays the next range by half a second, and a full
            # buffer by a whole one.
            "fetch.wait.max.ms": 10,
            "fetch.queue.backoff.ms": 20,
            # A failure reaches the caller as an exception. The log would repeat it with each try to
            # connect, several times a second.
            "log_level": LOG_CRITICAL,
            **options.client,
            **secrets,
            "bootstrap.servers": options.bootstrap_servers,
            "isolation.level": options.isolation,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            # An offset that is gone is an error here: never a jump to another one.
            "auto.offset.reset": "error",
        }

    @contextmanager
    def consumer(self, where: str) -> Generator[_Connection[Consumer]]:
        """A consumer of the caller's own; its assignment is gone afterwards.

        Raises:
            LeaseholdError: the client's error, in our types; see `failures`.
        """
        from confluent_kafka import Consumer

        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            reported: list[KafkaError] = []
            properties = self.properties() | {"error_cb": reported.append}
            with self._translated(where, None):
                connection = _Connection(Consumer(properties, logger=_LOG), reported)
        connection.reported.clear()
        try:
            with self._translated(where, connection):
                yield connection
        except GeneratorExit:
            # The caller has read enough.
            self._keep(connection)
            raise
        self._keep(connection)

    def _keep(self, connection: _Connection[Consumer]) -> None:
        connection.client.unassign()
        with self._lock:
            if len(self._idle) < IDLE_MAX:
                self._idle.append(connection)

    @contextmanager
    def admin(self, where: str) -> Generator[AdminClient]:
        """The administrator's client, which asks for many partitions at once; see `consumer`."""
        from confluent_kafka.admin import AdminClient

        with self._lock:
            connection = self._admin
            if connection is None:
                reported: list[KafkaError] = []
                properties = self.properties() | {"error_cb": reported.append}
                own: Any = {k: v for k, v in properties.items() if k not in OF_CONSUMERS}
                with self._translated(where, None):
                    connection = _Connection(AdminClient(own, logger=_LOG), reported)
        connection.reported.clear()
        self._admin = None
        with self._translated(where, connection):
            yield connection.client
        self._admin = connection

    @contextmanager
    def _translated(
        self, where: str, connection: _Connection[Consumer] | _Connection[AdminClient] | None
    ) -> Generator[None]:
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            if connection is not None and re.fullmatch(AWAY, error.name()):
                # A refused log-in reaches a caller as a time-out; the reason is reported aside.
                connection.client.poll(0)
                error = connection.refusal() or error
            raise error_of(error, f"{where} at {shown(self.options.bootstrap_servers)}") from None

    def _silence(self, connection: _Connection[Consumer], where: str) -> errors.LeaseholdError:
        """Return the error for an answer that did not come in time."""
        if refusal := connection.refusal():
            return error_of(refusal, f"{where} at {shown(self.options.bootstrap_servers)}")
        last = connection.reported[-1:]
        reason = f": {shown(last[0].str())}" if last else ""
        return errors.SourceUnavailable(
            f"Kafka has not answered for {where} within {self.options.timeout_s:g} s{reason}."
        )

    # --- For sources and readers ---

    def partitions(self) -> list[int]:
        """The numbers of the topic's partitions."""
        metadata = self._cluster().topics[self.topic]
        if metadata.error is not None:
            where = f"topic {self.topic} at {shown(self.options.bootstrap_servers)}"
            raise error_of(metadata.error, where)
        return sorted(metadata.partitions)

    def topic_id(self) -> str | None:
        """The topic's id; None of a cluster that gives its topics none."""
        from confluent_kafka import KafkaException, TopicCollection

        cluster = self._cluster()
        if cluster.controller_id not in cluster.brokers:
            # Only the controller would be asked, and the client would wait for it in vain.
            return None
        with self.admin(f"the id of topic {self.topic}") as admin:
            asked = TopicCollection([self.topic])
            answers = admin.describe_topics(asked, request_timeout=self.options.timeout_s)
            try:
                id_ = str(answers[self.topic].result().topic_id)
            except KafkaException as raised:
                if re.fullmatch(WITHOUT_IDS, raised.args[0].name()):
                    return None
                raise
        return None if id_ == NO_ID else id_

    def _cluster(self) -> ClusterMetadata:
        with self.consumer(f"topic {self.topic}") as connection:
            # A consumer's look at a topic does not create it, as that of other clients may.
            return connection.client.list_topics(self.topic, timeout=self.options.timeout_s)

    def partition(self, shard: ShardId) -> int:
        """Return the number of the partition that is a shard.

        Raises:
            UnknownShard: the shard's id is no number of a partition.
        """
        if not (shard.isascii() and shard.isdecimal() and str(int(shard)) == shard):
            raise errors.UnknownShard(
                f"Topic {self.topic} has no shard {shown(shard)}: the shards of a topic are the "
                "numbers of its partitions."
            )
        return int(shard)

    def watermarks(self, shard: ShardId) -> tuple[int, int]:
        """The first offset that a partition holds, and the one after its last."""
        from confluent_kafka import TopicPartition

        partition = TopicPartition(self.topic, self.partition(shard))
        where = f"shard {shard} of topic {self.topic}"
        with self.consumer(where) as connection:
            return connection.client.get_watermark_offsets(
                partition, timeout=self.options.timeout_s
            )

    def stream(self, shard: ShardId, offset: int) -> Generator[list[Message]]:
        """Messages of a partition from an offset on, as they come, until the caller has enough.

        An event `_PARTITION_EOF` tells that the end of what can be read was reached.

        Raises:
            CursorExpired: the offset is out of range.
            SourceUnavailable: no broker has answered in time.
        """
        from confluent_kafka import TopicPartition

        where = f"shard {shard} of topic {self.topic}"
        with self.consumer(where) as connection:
            consumer = connection.client
            consumer.assign([TopicPartition(self.topic, self.partition(shard), offset)])
            while True:
                first = self._first(connection, where)
                # Asked for many, the client would wait until it has them all.
                yield [first, *consumer.consume(num_messages=MESSAGES_MAX, timeout=0)]

    def first_messages(self, offsets: Mapping[int, int]) -> dict[int, Message]:
        """The first message of each partition at or after an offset; one fetch goes to each leader.

        A partition is left out where there is none, or where its offset is out of range.
        """
        from confluent_kafka import TopicPartition

        where = f"the first unread records of topic {self.topic}"
        places = {number: TopicPartition(self.topic, number, at) for number, at in offsets.items()}
        first: dict[int, Message] = {}
        with self.consumer(where) as connection:
            connection.client.assign([*places.values()])
            while places:
                message = self._first(connection, where)
                place = places.pop(message.partition() or 0, None)
                if place is not None:
                    # What was fetched beyond the first message of a partition is dropped.
                    connection.client.incremental_unassign([place])
                    if message.error() is None:
                        first[place.partition] = message
        return first

    def _first(self, connection: _Connection[Consumer], where: str) -> Message:
        waited_s = 0.0
        while waited_s < self.options.timeout_s and not connection.refusal():
            if (message := connection.client.poll(LOOK_S)) is not None:
                return message
            waited_s += LOOK_S
        raise self._silence(connection, where)
