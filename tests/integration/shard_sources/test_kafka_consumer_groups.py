"""Checkpoints move between Kafka's groups, a Spark query's offset log, and ours, to the record."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition  # noqa: TID253

from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.shard_sources.kafka import KafkaOptions, KafkaSource
from tests import object_store
from tests.command_output import output_of
from tests.integration.shard_sources.consuming_home import (
    ConsumingHome,
    assert_each_once,
    committed,
)
from tests.kafka_broker import KafkaBroker, Partition
from tests.kafka_wire import Stored
from tests.unit.docs.recorded_output import assert_printed

TOPIC, OLD = "orders", "old-consumers"
IMPORT = ("checkpoint", "import", TOPIC)
FROM_OLD = (*IMPORT, "--consumer-group", OLD)
RECORDS = 20


class Deployment(ConsumingHome):
    """A home whose stream is a topic of two partitions of 20 records."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, broker: KafkaBroker) -> None:
        self.broker = broker
        self.log: list[str] = []
        broker.topics[TOPIC] = [Partition(), Partition()]
        options = {"bootstrap_servers": broker.address}
        source = KafkaSource(KafkaOptions.model_validate(options), TOPIC)
        super().__init__(folder, monkeypatch, TOPIC, "kafka", source, options)
        self.append(RECORDS)

    def append(self, count: int) -> None:
        for number, partition in enumerate(self.broker.topics[TOPIC]):
            values = [f"{number}:{n}" for n in range(partition.end, partition.end + count)]
            partition.append(Stored(0, 0, value.encode()) for value in values)
            self.log += values

    def read_by_others(self, partition: int, count: int, group: str = OLD) -> list[str]:
        """Continue as a consumer of Kafka's group, and commit."""
        others = Consumer(
            {
                "bootstrap.servers": self.broker.address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        others.assign([TopicPartition(TOPIC, partition)])
        messages = others.consume(count, timeout=10)
        others.commit(asynchronous=False)
        others.close()
        return [(message.value() or b"").decode() for message in messages]


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Deployment]:
    with KafkaBroker() as broker:
        yield Deployment(tmp_path, monkeypatch, broker)


def test_consumption_continues_where_a_kafka_group_stopped(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    old = deployment.read_by_others(0, 7)
    output_of(capsys, "group", "create", TOPIC)
    deployment.broker.joined.add(OLD)
    refused = output_of(capsys, *FROM_OLD, code=2)
    assert refused.startswith(f"Kafka's group '{OLD}' is stable: stop its consumers first")
    deployment.broker.joined.clear()
    printed = output_of(capsys, *FROM_OLD, "--from", "kafka-group")
    assert_printed(IMPORT[:2], printed)
    assert f"Shards without a checkpoint in '{OLD}': 1." in printed
    assert deployment.checkpoints() == {"0": "7", "1": None}
    deployment.consume("run-1")
    assert_each_once(old, committed(capsys, TOPIC), deployment.log)
    assert "no violations" in output_of(capsys, "verify")


def test_each_record_is_read_once_after_an_import_and_an_export(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    output_of(capsys, "group", "create", TOPIC)
    deployment.consume("run-1")
    deployment.append(5)
    assert_printed(
        ("checkpoint", "export"),
        output_of(capsys, "checkpoint", "export", TOPIC, "--consumer-group", "new"),
    )
    others = [record for n in (0, 1) for record in deployment.read_by_others(n, 3, "new")]
    assert others == [f"{n}:{offset}" for n in (0, 1) for offset in (20, 21, 22)]
    output_of(capsys, *IMPORT, "--consumer-group", "new")
    deployment.consume("run-2")
    assert_each_once(others, committed(capsys, TOPIC), deployment.log)


def test_a_group_with_members_accepts_no_checkpoints(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment.read_by_others(0, 1)
    output_of(capsys, "group", "create", TOPIC)
    deployment.consume("run-1")
    before = dict(deployment.broker.committed)
    deployment.broker.joined.add(OLD)
    export = ("checkpoint", "export", TOPIC, "--consumer-group", OLD)
    assert "stop its consumers first" in output_of(capsys, *export, code=2)
    # Kafka itself refuses to commit for a group with members.
    deployment.broker.refuse_commits = 25
    refused = output_of(capsys, *export, "--live", code=2)
    assert "Unknown member" in refused
    assert deployment.broker.committed == before


def test_a_checkpoint_moves_back_only_by_force(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    output_of(capsys, "group", "create", TOPIC)
    deployment.consume("run-1", records_max=10)
    old = [record for number in (0, 1) for record in deployment.read_by_others(number, 10)]
    refused = output_of(capsys, *FROM_OLD, code=2)
    assert "is committed up to 20, beyond 10" in refused
    assert deployment.checkpoints() == {"0": "20", "1": "20"}
    output_of(capsys, *FROM_OLD, "--force")
    assert deployment.checkpoints() == {"0": "10", "1": "10"}
    assert sorted(committed(capsys, TOPIC)) == sorted(old)


def test_offsets_outside_the_log_are_refused_or_become_gaps(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    output_of(capsys, "group", "create", TOPIC)
    deployment.read_by_others(0, 5)
    place = (OLD, TOPIC, 0)
    for offset, partition, reason in ((21, 0, "ends at 20"), (3, 7, "has no shard 7")):
        deployment.broker.committed[OLD, TOPIC, partition] = offset
        assert reason in output_of(capsys, *FROM_OLD, code=2)
        del deployment.broker.committed[OLD, TOPIC, partition]
        deployment.broker.committed[place] = 5
    deployment.broker.topics[TOPIC][0].retain(12)
    assert "add --gaps" in output_of(capsys, *FROM_OLD, code=2)
    assert deployment.checkpoints() == {"0": None, "1": None}
    printed = output_of(capsys, *FROM_OLD, "--gaps")
    assert "Shards whose first unread records were removed: 0." in printed
    deployment.consume("run-1")
    (gap,) = json.loads(output_of(capsys, "gap", "list", "--json"))
    assert (gap["shard"], gap["start"]) == ("0", "5")


def test_an_unknown_group_or_topic_is_one_sentence(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    output_of(capsys, "group", "create", TOPIC)
    deployment.read_by_others(0, 1)
    unknown = output_of(capsys, *IMPORT, "--consumer-group", "nobody", code=2)
    assert f"its groups are: {OLD}." in unknown
    deployment.broker.committed = {(OLD, "visits", 0): 3}
    assert "has offsets in: visits." in output_of(capsys, *FROM_OLD, code=2)
    assert "only for streams of: kinesis" in output_of(capsys, *IMPORT, "--from", "kcl", code=2)


@pytest.fixture(params=["disk", pytest.param("store", marks=pytest.mark.long)])
def location(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> OutputPlace:
    """A location on a disk, and one in an object store."""
    if request.param == "disk":
        return output_place(tmp_path / "query")
    for name, value in object_store.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return output_place(f"s3://{object_store.new_bucket()}/query")


def write_query(location: OutputPlace, batches: int, committed_batches: int) -> None:
    """Write the offset log of a query that has read 4 records of each partition a batch."""
    for name in ("offsets", "commits"):
        (location / name).make_folder()
    for batch in range(batches):
        offsets = {TOPIC: {str(number): 4 * (batch + 1) for number in (0, 1)}}
        lines = ["v1", '{"batchWatermarkMs":0,"batchTimestampMs":0}', json.dumps(offsets)]
        (location / f"offsets/{batch}").put("\n".join(lines).encode())
        (location / f"offsets/.{batch}.crc").put(b"crc")
    for batch in range(committed_batches):
        (location / f"commits/{batch}").put(b'v1\n{"nextBatchWatermarkMs":0}')


def test_a_stopped_query_is_continued_after_its_newest_committed_batch(
    deployment: Deployment, location: OutputPlace, capsys: pytest.CaptureFixture[str]
) -> None:
    output_of(capsys, "group", "create", TOPIC)
    write_query(location, batches=3, committed_batches=2)
    spark = (*IMPORT, "--from", "spark-offsets", "--checkpoint-location", str(location))
    assert "add --stopped" in output_of(capsys, *spark, code=2)
    assert "Batch 2 of the query" in output_of(capsys, *spark, "--stopped", code=2)
    assert deployment.checkpoints() == {}
    (location / "commits/2").put(b"v1\n{}")
    output_of(capsys, *spark, "--stopped")
    assert deployment.checkpoints() == {"0": "12", "1": "12"}
    old = [f"{number}:{offset}" for number in (0, 1) for offset in range(12)]
    deployment.consume("run-1")
    assert_each_once(old, committed(capsys, TOPIC), deployment.log)


def test_a_query_needs_its_checkpoint_location(
    deployment: Deployment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output_of(capsys, "group", "create", TOPIC)
    both = "Give both --from spark-offsets and --checkpoint-location"
    assert both in output_of(capsys, *IMPORT, "--from", "spark-offsets", code=2)
    assert both in output_of(capsys, *IMPORT, "--checkpoint-location", "x", code=2)
    missing = (*IMPORT, "--from", "spark-offsets", "--checkpoint-location", str(tmp_path / "no"))
    assert "checkpointLocation" in output_of(capsys, *missing, "--stopped", code=2)
