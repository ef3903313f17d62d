"""Kafka's protocol of librdkafka's mock broker, over TCP.

The mock keeps about 5 MB a partition. It creates any topic with four partitions, does not add
any, answers no seek by time, has no login and no stable offset; `kafka_fake` has these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from confluent_kafka import Producer  # noqa: TID253

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.kafka import KafkaOptions, KafkaSource
from tests.ports import free_port
from tests.sources.world import NewRecord, Notion, SourceWorld

TOPIC = "orders"
NO_LINEAGE = "partitions are added, never split or merged"
BROKER_STORES = "brokers check what they store, and the client what it receives"
CLIENT_WAITS = "brokers delay their answers, and the client waits by itself"
MILLISECONDS = 1000


class MockBroker:
    """A broker on the loopback, in a thread of the producer that owns it."""

    def __init__(self) -> None:
        self.producer = Producer({"test.mock.num.brokers": 1, "message.max.bytes": 10_000_000})
        brokers = self.producer.list_topics(timeout=10).brokers.values()
        self.address = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def produce(self, topic: str, partition: int, record: NewRecord) -> None:
        """Queue a record; `flush` sends it."""
        self.producer.produce(
            topic,
            partition=partition,
            key=record.key,
            value=record.value,
            headers=dict(record.attributes),
            timestamp=round(record.at.timestamp() * MILLISECONDS) if record.at else 0,
        )

    def flush(self) -> None:
        assert self.producer.flush(10) == 0


class KafkaMockWorld(SourceWorld):
    lacks: ClassVar[Mapping[Notion, str]] = {
        Notion.LINEAGE: NO_LINEAGE,
        Notion.REMOVAL: "a partition goes only with its topic",
        Notion.DAMAGE: BROKER_STORES,
        Notion.THROTTLING: CLIENT_WAITS,
        Notion.GROWTH: "the mock broker adds no partition",
        Notion.TIME_SEEK: "the mock broker does not look for times",
        Notion.CREDENTIALS: "the mock broker has no log-in",
    }
    source: KafkaSource

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.broker = MockBroker()
        self.broker.producer.list_topics(TOPIC, timeout=10)
        self.source = KafkaSource(self.options(), TOPIC)

    def options(self, **given: object) -> KafkaOptions:
        return KafkaOptions.model_validate({"bootstrap_servers": self.broker.address, **given})

    def put(self, shard: ShardId, records: Sequence[NewRecord]) -> None:
        for record in records:
            self.broker.produce(TOPIC, int(shard), record)
            self.broker.producer.poll(0)
        self.broker.flush()

    def trim(self, shard: ShardId) -> None:
        self.fill(shard)
        for _ in range(8):
            self.fill(shard, [b"x" * 900_000])

    def unreachable(self) -> KafkaSource:
        address = f"127.0.0.1:{free_port()}"
        return KafkaSource(self.options(bootstrap_servers=address, timeout_s=2), TOPIC)
