"""How fast a topic is read as Arrow batches, next to the plain client, in one run.

python -m benchmarks.kafka_source [--records 25000] [--rounds 8] [--json]

The broker is librdkafka's mock, in this process, which keeps 5 MB a partition; both sides read the
same range of it again and again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from lease_store.identifiers import ShardId
from shard_sources.kafka import KafkaOptions, KafkaSource
from shard_sources.source import Limits, ReadRange

TOPIC, SHARD = "bench", ShardId("0")
VALUE_BYTES = 150


def broker(records: int) -> tuple[Any, str]:
    """A mock broker with records in one partition, and its address."""
    from confluent_kafka import Producer

    producer = Producer({"test.mock.num.brokers": 1, "linger.ms": 20})
    address = ",".join(
        f"{found.host}:{found.port}" for found in producer.list_topics(timeout=10).brokers.values()
    )
    for number in range(records):
        value = b"%d:" % number
        value += b"x" * (VALUE_BYTES - len(value))
        producer.produce(TOPIC, value, key=b"key", partition=0)
        if number % 5_000 == 0:
            producer.poll(0)
    assert producer.flush(30) == 0
    return producer, address


def plain(address: str) -> Callable[[int, int], int]:
    """The client alone: keys and values in Python lists, one record after another."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False}
    )

    def read(start: int, end: int) -> int:
        consumer.assign([TopicPartition(TOPIC, 0, start)])
        rows: list[tuple[bytes | None, bytes | None, int | None]] = []
        while len(rows) < end - start:
            first = consumer.poll(10)
            assert first is not None
            for message in [first, *consumer.consume(1_000, timeout=0)]:
                rows.append((message.key(), message.value(), message.offset()))
        consumer.unassign()
        return end - start

    return read


def best(read: Callable[[int, int], int], start: int, end: int, rounds: int) -> dict[str, float]:
    """Records a second of the fastest round and of the middle one."""
    read(start, end)
    rates: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        count = read(start, end)
        rates.append(count / (time.perf_counter() - began))
    return {"best": max(rates), "median": statistics.median(rates)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=25_000)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    kept, address = broker(arguments.records)
    source = KafkaSource(KafkaOptions(bootstrap_servers=address), TOPIC)
    bounds = source.bounds([SHARD])[SHARD]
    start, end = int(bounds.begin), int(bounds.end)

    def arrow(first: int, last: int) -> int:
        range_ = ReadRange(SHARD, str(first), str(last))
        return sum(batch.num_rows for batch in source.read(range_))

    def planned(first: int, last: int) -> int:
        plan = source.plan(SHARD, str(first), Limits(records_max=last - first))
        assert plan.end == str(last)
        return arrow(first, last)

    figures = {
        "plain client": best(plain(address), start, end, arguments.rounds),
        "source, read": best(arrow, start, end, arguments.rounds),
        "source, plan and read": best(planned, start, end, arguments.rounds),
    }
    del kept
    if arguments.json:
        print(json.dumps({"records": end - start, "records_per_second": figures}))
        return
    reference = figures["plain client"]["median"]
    print(f"{end - start:,} records of {VALUE_BYTES} bytes, {arguments.rounds} rounds")
    for name, rates in figures.items():
        share = rates["median"] / reference
        best_, median = rates["best"], rates["median"]
        print(
            f"{name:24} {median:>12,.0f} records/s (best {best_:,.0f}), {share:.2f} of the client"
        )


if __name__ == "__main__":
    main()
