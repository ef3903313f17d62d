"""Kafka as settings name it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from dagster_leasehold.shard_sources.kafka.options import KafkaOptions
from dagster_leasehold.shard_sources.kafka.reading import KafkaReader
from dagster_leasehold.shard_sources.kafka.source import KafkaSource
from dagster_leasehold.shard_sources.source import ShardReader
from dagster_leasehold.shard_sources.source_kind import SourceKind, StreamPlace


def _open(options: KafkaOptions, place: StreamPlace) -> KafkaSource:
    return KafkaSource(options, options.topic or place.stream)


READERS_MAX = 8


@lru_cache(maxsize=READERS_MAX)
def _kept_reader(options: str, topic: str) -> KafkaReader:
    return KafkaReader(KafkaOptions.model_validate_json(options), topic)


def _reader(options: Mapping[str, str]) -> ShardReader:
    """A reader whose connections are kept for the next task of this Spark worker."""
    return _kept_reader(options["options"], options["topic"])


KIND = SourceKind(
    KafkaOptions,
    _open,
    _reader,
    library="confluent_kafka",
    install="pip install 'dagster-leasehold[kafka]'",
)
