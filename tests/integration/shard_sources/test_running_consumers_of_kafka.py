"""Running consumers of Kafka are stopped and taken over, to the record, and back."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dagster_leasehold.assets.spark.spark_runtime import java_home
from dagster_leasehold.shard_sources.kafka import KafkaOptions, KafkaSource
from tests.command_output import output_of
from tests.integration.shard_sources.consuming_home import (
    ConsumingHome,
    assert_each_once,
    committed,
    do_as_the_page_says,
)
from tests.own_environments import PackagesMissing
from tests.spark_iceberg import without_spark_connect
from tests.tansu_broker import TansuBroker
from tests.waiting import wait_for

pytestmark = pytest.mark.long
TOPIC, OLD = "orders", "old-consumers"
# It commits each record that it has printed.
CONSUMER = """
import signal, sys
from confluent_kafka import Consumer
address, topic, group = sys.argv[1:]
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
consumer = Consumer({
    "bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest",
    "enable.auto.commit": False, "fetch.wait.max.ms": 10,
})
consumer.subscribe([topic])
while not stopped:
    message = consumer.poll(0.1)
    if message is not None and not message.error():
        print(message.value().decode(), flush=True)
        consumer.commit(message, asynchronous=False)
consumer.close()
"""
# Spark's own connector is not on the package index: this source reads the topic by itself, and has
# offsets of the connector's form. The query and its checkpoint location are Spark's.
QUERY = """
import signal, sys, time
from pathlib import Path
from dagster_leasehold.assets.spark.spark_session import server_conf
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

address, topic, location, output = sys.argv[1:]
AT_MOST = 3

class Reader(SimpleDataSourceStreamReader):
    def initialOffset(self):
        return {topic: {"0": 0, "1": 0}}

    def _records(self, number, start, end):
        # Imported here: this class travels to another process of Spark's.
        from confluent_kafka import Consumer, TopicPartition
        consumer = Consumer({"bootstrap.servers": address, "group.id": "spark-source"})
        try:
            _, last = consumer.get_watermark_offsets(TopicPartition(topic, int(number)), timeout=9)
            end = min(start + AT_MOST, last) if end is None else end
            consumer.assign([TopicPartition(topic, int(number), start)])
            messages = consumer.consume(end - start, timeout=20) if end > start else []
            assert len(messages) == end - start
            return [(message.value().decode(),) for message in messages], end
        finally:
            consumer.close()

    def _read(self, start, end):
        rows, reached = [], {}
        for number, offset in start[topic].items():
            wanted = None if end is None else end[topic][number]
            records, reached[number] = self._records(number, offset, wanted)
            rows += records
        return iter(rows), {topic: reached}

    def read(self, start):
        return self._read(start, None)

    def readBetweenOffsets(self, start, end):
        return self._read(start, end)[0]

class Source(DataSource):
    @classmethod
    def name(cls):
        return "topic"

    def schema(self):
        return "value string"

    def simpleStreamReader(self, schema):
        return Reader()

stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
settings = server_conf(Path(location).with_name("spark")) | {"spark.driver.memory": "512m"}
session = SparkSession.builder.config(map=settings).getOrCreate()
session.dataSource.register(Source)

def write(frame, batch):
    with open(output, "a") as file:
        file.writelines(row.value + "\\n" for row in frame.collect())

query = (
    session.readStream.format("topic").load().writeStream.foreachBatch(write)
    .option("checkpointLocation", location).trigger(processingTime="200 milliseconds").start()
)
while not stopped and query.isActive:
    time.sleep(0.05)
# Between two batches, as far as a query can be asked for that.
query.processAllAvailable()
query.stop()
if query.exception():
    raise query.exception()
"""


class Topic(ConsumingHome):
    """A home whose stream is a topic of two partitions, and the values that were put into it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, broker: TansuBroker) -> None:
        options = {"bootstrap_servers": broker.address}
        source = KafkaSource(KafkaOptions.model_validate(options), TOPIC)
        super().__init__(folder, monkeypatch, TOPIC, "kafka", source, options)
        self.broker = broker
        self.log: list[str] = []
        broker.make_topic(TOPIC, 2)

    def append(self, count: int) -> None:
        for partition in (0, 1):
            values = [f"{partition}:{len(self.log) + n}" for n in range(count)]
            self.broker.produce(TOPIC, partition, values)
            self.log += values


@pytest.fixture
def topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Topic]:
    try:
        broker = TansuBroker(tmp_path)
    except PackagesMissing as missing:
        pytest.skip(f"the broker is not here: {missing}")
    with broker:
        yield Topic(tmp_path, monkeypatch, broker)


@contextmanager
def running(
    output: Path, log: Path, *command: str, **environment: str
) -> Generator[Callable[[int], list[str]]]:
    """Run a program until the end of the block, and stop it as an operator does.

    Yields:
        Waits until the program has read so many records, and returns them.
    """
    with log.open("ab") as errors, output.open("ab") as printed:
        process = subprocess.Popen(
            [sys.executable, *command],
            stdout=printed,
            stderr=errors,
            env=without_spark_connect() | {"PYSPARK_PYTHON": sys.executable} | environment,
        )

    def read(count: int) -> list[str]:
        def records() -> list[str] | None:
            seen = output.read_text().splitlines()
            return seen if len(seen) >= count else None

        return wait_for(
            "the records", records, unless=lambda: process.poll() is not None, shown=log.read_text
        )

    try:
        yield read
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def test_an_import_waits_until_a_kafka_group_is_stopped_which_continues_later(
    topic: Topic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, log = tmp_path / "read-by-group", tmp_path / "group.log"
    consumer = ("-c", CONSUMER, topic.broker.address, TOPIC, OLD)
    taken = ("checkpoint", "import", TOPIC, "--consumer-group", OLD)
    given = ("checkpoint", "export", TOPIC, "--consumer-group", OLD)
    topic.append(30)
    do_as_the_page_says(capsys, "The steps")
    with running(output, log, *consumer) as read:
        read(10)
        refused = output_of(capsys, *taken, code=2)
        assert refused.startswith(f"Kafka's group '{OLD}' is stable")
    topic.append(20)
    do_as_the_page_says(capsys, "A consumer group of Kafka")
    topic.consume("run-1")
    assert_each_once(output.read_text().splitlines(), committed(capsys, TOPIC), topic.log)
    # And back: the same consumers continue where the runs here have stopped.
    do_as_the_page_says(capsys, "A consumer group of Kafka", block=1)
    topic.append(10)
    before = len(output.read_text().splitlines())
    with running(output, log, *consumer) as read:
        read(before + 20)
        assert "stop its consumers first" in output_of(capsys, *given, code=2)
        assert "Unknown member" in output_of(capsys, *given, "--live", code=2)
    assert_each_once(output.read_text().splitlines(), committed(capsys, TOPIC), topic.log)
    assert "no violations" in output_of(capsys, "verify")


def test_an_import_waits_until_a_spark_query_is_stopped(
    topic: Topic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, location = tmp_path / "read-by-spark", tmp_path / "query"
    program = (QUERY, topic.broker.address, TOPIC, str(location), str(output))
    topic.append(8)
    output.touch()
    home = str(java_home(tmp_path / "java"))
    with running(output, tmp_path / "spark.log", "-c", *program, JAVA_HOME=home) as read:
        read(12)
    topic.append(5)
    do_as_the_page_says(capsys, "The steps")
    names = {"s3://lake/checkpoints/orders": str(location)}
    do_as_the_page_says(capsys, "A Spark query that reads Kafka", block=0, **names)
    assert topic.checkpoints() == {"0": "8", "1": "8"}
    topic.consume("run-1")
    assert_each_once(output.read_text().splitlines(), committed(capsys, TOPIC), topic.log)
    assert "no violations" in output_of(capsys, "verify")
