"""The cost of reading a topic, next to the plain client on the same broker, in one run.

python -m benchmarks.kafka_source [--records 80000] [--shards 4] [--repeats 3] [--json]

A topic is read from its beginning to its end:

* `confluent-kafka`: partition by partition over a kept connection, with the source's own pauses
  between fetches; keys and values are put into a list;
* `plan`: the source finds the ends of all batches, which reads a sample of each;
* `read`: ranges that were planned before are read in this process, into Arrow batches;
* `plan + read`: they are planned, and read in this process;
* `plan + Spark`: then they go through Spark into committed form, one Parquet file a shard.

The broker is librdkafka's mock, in this process, which keeps 5 MB a partition of at most 4.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures import print_rows
from benchmarks.figures.source_reading import (
    Way,
    arguments_of,
    in_process,
    in_spark,
    plan_and_read,
    planned,
    read_alone,
    rows_of,
    scratch_folder,
    spark_session,
)
from dagster_leasehold.assets.spark.spark_session import cores
from dagster_leasehold.shard_sources.kafka import KafkaOptions, KafkaSource
from tests.sources.world import NewRecord
from tests.sources.worlds.kafka_mock import MockBroker

if TYPE_CHECKING:
    from confluent_kafka import Consumer

TOPIC = "benchmark"
VALUE_BYTES = 200
MESSAGES = 1_000


def fill(broker: MockBroker, shards: int, records: int) -> None:
    """Write records of one size, spread evenly."""
    record = NewRecord(b"v" * VALUE_BYTES, key=b"key")
    broker.producer.list_topics(TOPIC, timeout=10)
    for number in range(records):
        broker.produce(TOPIC, number % shards, record)
        broker.producer.poll(0)
    broker.flush()


def plain_consumer(address: str) -> Consumer:
    """Return the client alone, with the pauses that the source sets: its own would dominate."""
    from confluent_kafka import Consumer

    pauses = {"fetch.wait.max.ms": 10, "fetch.queue.backoff.ms": 20}
    return Consumer(
        {"bootstrap.servers": address, "group.id": "benchmark", "enable.auto.commit": False}
        | pauses
    )


def plainly(consumer: Consumer, shards: int) -> int:
    """Read all records with it, over the connection that it has."""
    from confluent_kafka import TopicPartition

    read: list[tuple[bytes | None, bytes | None]] = []
    for number in range(shards):
        partition = TopicPartition(TOPIC, number, 0)
        _, end = consumer.get_watermark_offsets(partition, timeout=10)
        consumer.assign([partition])
        last = -1
        while last + 1 < end:
            # Asked for many at once, the client would wait for the last of them.
            first = consumer.poll(10)
            assert first is not None
            for message in [first, *consumer.consume(MESSAGES, timeout=0)]:
                read.append((message.key(), message.value()))
                last = message.offset() or 0
    consumer.unassign()
    return len(read)


def ways(address: str, shards: int, folder: Path, session: Any) -> dict[str, Way]:
    """Return each way to read everything once."""
    source = KafkaSource(KafkaOptions(bootstrap_servers=address), TOPIC)
    consumer = plain_consumer(address)
    here, spark = in_process(source), in_spark(session, source, folder / "output")
    return {
        "confluent-kafka": lambda: plainly(consumer, shards),
        "plan": lambda: plan_and_read(source, planned),
        "read": read_alone(source, source),
        "plan + read": lambda: plan_and_read(source, here),
        "plan + Spark": lambda: plan_and_read(source, spark),
    }


def main() -> None:
    """Measure and print."""
    arguments = arguments_of(__doc__ or "", records=80_000)
    shards = min(arguments.shards, 4)
    records = arguments.records // shards * shards
    broker = MockBroker()
    fill(broker, shards, records)
    with scratch_folder() as folder, spark_session(folder / "spark") as session:
        each = ways(broker.address, shards, folder, session)
        rows = rows_of(each, records=records, value_bytes=VALUE_BYTES, repeats=arguments.repeats)
    note = f"{records:,} records of {VALUE_BYTES} bytes, {shards} shards, {cores()} cores"
    print_rows(rows, as_json=arguments.json, note=note)


if __name__ == "__main__":
    main()
