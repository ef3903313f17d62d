"""Topics of Apache Kafka: a partition is a shard, and an offset is a cursor.

Partitions are assigned, never subscribed to: leases replace Kafka's consumer groups. `KafkaSource`
plans, and `KafkaReader` reads in Spark's workers.

`registry` and the commands for checkpoints of other consumers import this package.
"""

from dagster_leasehold.shard_sources.kafka.options import KafkaOptions
from dagster_leasehold.shard_sources.kafka.reader import KafkaReader
from dagster_leasehold.shard_sources.kafka.source import KafkaSource

__all__ = ["KafkaOptions", "KafkaReader", "KafkaSource"]
