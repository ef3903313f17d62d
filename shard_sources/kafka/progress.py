"""Checkpoints told to a consumer group of Kafka's, for dashboards that look there."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.shard_sources.kafka.client import KafkaClient


def commit_progress(client: KafkaClient, group: str, offsets: Mapping[int, int]) -> str:
    """Commit these offsets for a group that nobody has joined.

    Args:
        client: of the cluster.
        group: Kafka's group.
        offsets: for each partition, the offset of the next record to read.

    Returns:
        Why Kafka refused, in its words; empty when it did not.

    Raises:
        SourceError: nobody answered, or the credentials were refused.
    """
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    partitions = [
        TopicPartition(client.topic, partition, offset) for partition, offset in offsets.items()
    ]
    with client.admin(f"group {group}") as admin:
        asked = admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, partitions)],
            request_timeout=client.options.timeout_s,
        )
        outcome = asked[group].result()
    errors = [part.error for part in outcome.topic_partitions or () if part.error is not None]
    return shown(errors[0].str()) if errors else ""
