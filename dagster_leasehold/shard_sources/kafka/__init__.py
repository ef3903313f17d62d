"""Topics of Apache Kafka: a partition is a shard, an offset is a cursor.

Partitions are assigned, never subscribed to: our leases decide who reads one, and Kafka's
consumer groups take no part in it. `KafkaSource` is used where shards are planned, `KafkaReader`
in Spark's workers; neither connects before it is asked.
"""

from dagster_leasehold.shard_sources.kafka.options import KafkaOptions
from dagster_leasehold.shard_sources.kafka.reader import KafkaReader
from dagster_leasehold.shard_sources.kafka.source import KafkaSource

__all__ = ["KafkaOptions", "KafkaReader", "KafkaSource"]
