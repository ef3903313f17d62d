"""Kafka's protocol of the fake broker in `tests.kafka_broker`, with a login."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.kafka import KafkaOptions, KafkaSource
from tests.kafka_broker import KafkaBroker, Partition
from tests.kafka_wire import Stored
from tests.ports import free_port
from tests.sources.world import NewRecord, Notion, SourceWorld
from tests.sources.worlds.kafka_mock import BROKER_STORES, CLIENT_WAITS, NO_LINEAGE, TOPIC

USER, PASSWORD, NEW_PASSWORD = "reader", "hunter2-first", "hunter2-second"
VARIABLE = "TEST_KAFKA_PASSWORD"
ASKED_TWICE_S = 6
"""The client's library asks again only after 3 s, should its first question be lost."""
WRONG_VARIABLE = "TEST_KAFKA_WRONG_PASSWORD"


def stored(record: NewRecord) -> Stored:
    time_ms = round(record.at.timestamp() * 1000) if record.at else 0
    headers = [(name, value.encode()) for name, value in record.attributes.items()]
    return Stored(0, time_ms, record.value, record.key, headers)


class KafkaFakeWorld(SourceWorld):
    lacks: ClassVar[Mapping[Notion, str]] = {
        Notion.LINEAGE: NO_LINEAGE,
        Notion.REMOVAL: "a partition goes only with its topic",
        Notion.DAMAGE: BROKER_STORES,
        Notion.THROTTLING: CLIENT_WAITS,
    }
    source: KafkaSource

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        os.environ[VARIABLE], os.environ[WRONG_VARIABLE] = PASSWORD, "hunter2-wrong"
        self.broker = KafkaBroker({USER: PASSWORD})
        self.broker.topics[TOPIC] = [Partition(), Partition(), Partition()]
        self.broker.__enter__()
        self.source = KafkaSource(self.options(), TOPIC)

    def options(self, variable: str = VARIABLE, **given: object) -> KafkaOptions:
        log_in = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "reconnect.backoff.max.ms": 200,
        }
        return KafkaOptions.model_validate(
            {
                "bootstrap_servers": self.broker.address,
                "client": log_in,
                "secrets": {"sasl.password": variable},
                **given,
            }
        )

    def partition(self, shard: ShardId) -> Partition:
        return self.broker.topics[TOPIC][int(shard)]

    def put(self, shard: ShardId, records: Sequence[NewRecord]) -> None:
        """Batches of three records, so that ranges begin and end within them."""
        for first in range(0, len(records), 3):
            self.partition(shard).append(map(stored, records[first : first + 3]))

    def grow(self) -> ShardId:
        self.broker.topics[TOPIC].append(Partition())
        return ShardId(str(len(self.broker.topics[TOPIC]) - 1))

    def trim(self, shard: ShardId) -> None:
        self.fill(shard)
        self.partition(shard).retain(10)

    def unreachable(self) -> KafkaSource:
        address = f"127.0.0.1:{free_port()}"
        return KafkaSource(self.options(bootstrap_servers=address, timeout_s=2), TOPIC)

    def wrong_credentials(self) -> KafkaSource:
        return KafkaSource(self.options(variable=WRONG_VARIABLE, timeout_s=ASKED_TWICE_S), TOPIC)

    def change_credentials(self) -> None:
        self.broker.users = {USER: NEW_PASSWORD}
        self.source = KafkaSource(self.options(timeout_s=ASKED_TWICE_S), TOPIC)
        self.broker.drop_connections()

    def learn_credentials(self) -> None:
        os.environ[VARIABLE] = NEW_PASSWORD

    def secrets(self) -> Sequence[str]:
        return (PASSWORD, NEW_PASSWORD, "hunter2-wrong")

    def close(self) -> None:
        self.broker.__exit__()
        os.environ[VARIABLE] = PASSWORD
        os.environ.pop(WRONG_VARIABLE, None)
