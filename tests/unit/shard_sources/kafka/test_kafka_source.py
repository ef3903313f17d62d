"""Features of Kafka alone: holes in offsets, transactions, headers, probes, mirrored progress."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from dagster_leasehold.lease_store.errors import CursorInvalid, SourceError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.kafka import KafkaOptions, KafkaSource
from dagster_leasehold.shard_sources.kafka.reader import attributes
from dagster_leasehold.shard_sources.source import Limits, Position, ReadRange
from tests.kafka_broker import KafkaBroker, Partition
from tests.kafka_wire import Stored

TOPIC, ZERO, ONE = "orders", ShardId("0"), ShardId("1")
AT_MS = 1_700_000_000_000
AUTHORIZATION_FAILED = 29


@pytest.fixture
def broker() -> Generator[KafkaBroker]:
    with KafkaBroker() as broker:
        broker.topics[TOPIC] = [Partition(), Partition()]
        yield broker


def source_of(broker: KafkaBroker, **given: object) -> KafkaSource:
    options = {"bootstrap_servers": broker.address, "timeout_s": 20, **given}
    return KafkaSource(KafkaOptions.model_validate(options), TOPIC)


def records(*values: bytes | None, key: bytes | None = None) -> list[Stored]:
    return [Stored(0, AT_MS + number, value, key) for number, value in enumerate(values)]


def read(source: KafkaSource, start: int, end: int) -> list[dict[str, Any]]:
    batches = source.read(ReadRange(ZERO, str(start), str(end)))
    return [row for batch in batches for row in batch.to_pylist()]


def values(rows: list[dict[str, Any]]) -> list[bytes | None]:
    return [row["value"] for row in rows]


class TestTransactions:
    def test_open_and_aborted_transactions_are_skipped(self, broker: KafkaBroker) -> None:
        partition = broker.topics[TOPIC][0]
        partition.append(records(b"plain"))
        partition.append(records(b"committed"), producer=7)
        partition.end_transaction(7, commit=True)
        partition.append(records(b"aborted", b"aborted too"), producer=8)
        partition.end_transaction(8, commit=False)
        partition.append(records(b"after"))
        partition.append(records(b"open"), producer=9)
        partition.append(records(b"behind an open one"))
        source = source_of(broker)
        bounds = source.bounds([ZERO])[ZERO]
        assert bounds.end == "7", "the last stable offset"
        plan = source.plan(ZERO, "0", Limits())
        assert plan.end == "7"
        assert values(read(source, 0, 7)) == [b"plain", b"committed", b"after"]
        partition.end_transaction(9, commit=True)
        assert source.bounds([ZERO])[ZERO].end == "10"
        assert values(read(source, 7, 10)) == [b"open", b"behind an open one"]

    def test_a_range_without_records_is_passed(self, broker: KafkaBroker) -> None:
        """Goal: holes delay no reader. A batch can be empty, and the next one begins after it."""
        partition = broker.topics[TOPIC][0]
        partition.append(records(*[b"no"] * 5), producer=8)
        partition.end_transaction(8, commit=False)
        source = source_of(broker)
        plan = source.plan(ZERO, "0", Limits(records_max=3))
        assert plan.end == "3"
        assert read(source, 0, 3) == []
        assert source.plan(ZERO, "3", Limits()).end == "6"
        assert read(source, 3, 6) == []
        assert source.plan(ZERO, "6", Limits()).records == 0

    def test_uncommitted_reads_see_open_transactions(self, broker: KafkaBroker) -> None:
        partition = broker.topics[TOPIC][0]
        partition.append(records(b"open"), producer=9)
        source = source_of(broker, isolation="read_uncommitted")
        assert source.bounds([ZERO])[ZERO].end == "1"
        assert values(read(source, 0, 1)) == [b"open"]


def test_holes_of_a_compaction_are_not_errors(broker: KafkaBroker) -> None:
    partition = broker.topics[TOPIC][0]
    for number in range(4):
        partition.append(records(b"old %d" % number, key=b"same"))
    partition.append(records(None, key=b"same"))
    partition.compact()
    source = source_of(broker)
    assert source.plan(ZERO, "0", Limits()).end == "5"
    rows = read(source, 0, 5)
    assert [(row["cursor"], row["key"], row["value"]) for row in rows] == [("4", b"same", None)]
    assert read(source, 1, 3) == []


def test_headers_become_attributes(broker: KafkaBroker) -> None:
    headers = [("text", "ö".encode()), ("raw", b"\xff\x00"), ("none", None), ("twice", b"1")]
    broker.topics[TOPIC][0].append([Stored(0, AT_MS, b"v", None, [*headers, ("twice", b"2")])])
    [row] = read(source_of(broker), 0, 1)
    assert dict(row["attributes"]) == {
        "text": "ö",
        "raw_base64": "/wA=",
        "none": None,
        "twice#1": "1",
        "twice": "2",
    }
    assert list(attributes({"as a mapping": "too"}).items()) == [("as a mapping", "too")]


@pytest.mark.parametrize("stamp", [2**63 - 1, AT_MS * 1_000, AT_MS * 1_000_000])
def test_a_timestamp_in_another_unit_hides_no_record(broker: KafkaBroker, stamp: int) -> None:
    """Goal: later records are read, and the record's age is unknown instead of an error."""
    stored = [Stored(0, stamp, b"mistimed"), Stored(0, AT_MS, b"good")]
    broker.topics[TOPIC][0].append(stored)
    source = source_of(broker)
    plan = source.plan(ZERO, "0", Limits())
    rows = read(source, 0, int(plan.end))
    assert values(rows) == [b"mistimed", b"good"]
    assert [row["event_time"] is None for row in rows] == [True, False]
    assert dict(rows[0]["attributes"]) == {"event_time_us": str(stamp * 1_000)}
    assert source.times_at({ZERO: "0"}) == {}
    assert source.times_at({ZERO: "1"}) == {ZERO: rows[1]["event_time"]}


class TestProbe:
    def test_records_beyond_the_sample_are_estimated_by_its_mean_size(
        self, broker: KafkaBroker
    ) -> None:
        broker.topics[TOPIC][0].append(records(*[b"x" * 100] * 500))
        source = source_of(broker, probe_records=50)
        assert source.plan(ZERO, "0", Limits(bytes_max=20_000)).end == "200"
        assert source.plan(ZERO, "0", Limits(records_max=120, bytes_max=20_000)).end == "120"
        assert source.plan(ZERO, "300", Limits()).end == "500"

    def test_byte_limits_are_exact_within_the_sample(self, broker: KafkaBroker) -> None:
        sizes = [10, 400, 30, 2_000, 5, 5, 900]
        broker.topics[TOPIC][0].append(records(*[b"x" * size for size in sizes]))
        source = source_of(broker)
        assert source.plan(ZERO, "0", Limits(bytes_max=440)).end == "3"
        assert source.plan(ZERO, "3", Limits(bytes_max=440)).end == "4"
        assert source.plan(ZERO, "4", Limits(bytes_max=10)).end == "6"


def test_a_recreated_topic_is_not_read_from_its_old_offset(broker: KafkaBroker) -> None:
    source = source_of(broker)
    broker.topics[TOPIC][0].append(records(b"a"))
    for attempt in (lambda: source.plan(ZERO, "40", Limits()), lambda: read(source, 40, 41)):
        with pytest.raises(CursorInvalid, match="recreated"):
            attempt()


def test_ranges_read_at_the_same_time_do_not_disturb_each_other(broker: KafkaBroker) -> None:
    for partition in broker.topics[TOPIC]:
        for number in range(30):
            partition.append(records(b"%d" % number * 300_000))
    source = source_of(broker)
    first, second = (source.read(ReadRange(shard, "0", "30")) for shard in (ZERO, ONE))
    next(second)
    seen = [row for batch in first for row in batch.to_pylist()]
    assert {row["shard_id"] for row in seen} == {ZERO}
    assert [row["cursor"] for row in seen] == [str(number) for number in range(30)]
    assert {id_ for batch in second for id_ in batch.column("shard_id").to_pylist()} == {ONE}


class TestMirror:
    def test_checkpoints_are_mirrored_to_a_kafka_group(self, broker: KafkaBroker) -> None:
        source = source_of(broker, mirror_group="dashboards")
        assert source.mirrors
        source.mirror({ZERO: "12", ONE: "0"})
        assert broker.committed == {("dashboards", TOPIC, 0): 12, ("dashboards", TOPIC, 1): 0}

    def test_a_refused_mirror_is_one_sentence(self, broker: KafkaBroker) -> None:
        broker.refuse_commits = AUTHORIZATION_FAILED
        with pytest.raises(SourceError) as refused:
            source_of(broker, mirror_group="dashboards").mirror({ZERO: "12"})
        assert "\n" not in str(refused.value)

    def test_without_the_option_no_checkpoint_is_mirrored(self, broker: KafkaBroker) -> None:
        source = source_of(broker)
        assert not source.mirrors
        source.mirror({ZERO: "12"})
        assert broker.committed == {}


def test_reading_joins_and_commits_no_group(broker: KafkaBroker) -> None:
    broker.topics[TOPIC][0].append(records(b"a", b"b"))
    source = source_of(broker)
    assert source.cursor_at(ZERO, Position.BEGIN) == "0"
    assert len(read(source, 0, 2)) == 2
    assert broker.committed == {}
