"""Errors of brokers and of the client: retried where that helps, otherwise one typed sentence."""

from __future__ import annotations

import ssl
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError  # noqa: TID253

from dagster_leasehold.lease_store.errors import (
    CursorExpired,
    InvalidSetting,
    LeaseholdError,
    SourceError,
    SourceRefused,
    SourceThrottled,
    SourceUnavailable,
    UnknownShard,
)
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.kafka import KafkaOptions, KafkaSource
from dagster_leasehold.shard_sources.kafka.failures import error_of
from dagster_leasehold.shard_sources.source import Limits, ReadRange
from tests.certificates import Authority
from tests.kafka_broker import KafkaBroker, Partition
from tests.kafka_wire import Stored

TOPIC, ZERO = "orders", ShardId("0")
RECORDS = 30
STORAGE_ERROR, NOT_LEADER = 56, 6


@pytest.fixture
def broker() -> Generator[KafkaBroker]:
    """One partition of several fetches."""
    with KafkaBroker() as broker:
        fill(broker)
        yield broker


def fill(broker: KafkaBroker) -> None:
    partition = Partition()
    for number in range(RECORDS):
        partition.append([Stored(0, 1_700_000_000_000, b"%d" % number * 200_000)])
    broker.topics[TOPIC] = [partition]


def source_of(broker: KafkaBroker, **given: object) -> KafkaSource:
    options = {"bootstrap_servers": broker.address, "timeout_s": 20, **given}
    return KafkaSource(KafkaOptions.model_validate(options), TOPIC)


def offsets(source: KafkaSource) -> Generator[str]:
    for batch in source.read(ReadRange(ZERO, "0", str(RECORDS))):
        yield from batch.column("cursor").to_pylist()


ALL = [str(number) for number in range(RECORDS)]


def test_a_broken_connection_loses_no_record(broker: KafkaBroker) -> None:
    broker.throttle_s = 0.1
    read = offsets(source_of(broker, client={"reconnect.backoff.max.ms": 200}))
    first = next(read)
    broker.drop_connections()
    assert [first, *read] == ALL


@pytest.mark.parametrize("code", [NOT_LEADER, STORAGE_ERROR])
def test_a_temporary_error_is_retried(broker: KafkaBroker, code: int) -> None:
    broker.refuse_fetches = [code, code]
    source = source_of(broker, client={"retry.backoff.ms": 50})
    assert source.plan(ZERO, "0", Limits()).end == str(RECORDS)
    broker.refuse_fetches = [code]
    assert list(offsets(source)) == ALL
    assert broker.refuse_fetches == []


def test_a_slow_broker_is_waited_for(broker: KafkaBroker) -> None:
    broker.throttle_s = 0.3
    assert list(offsets(source_of(broker))) == ALL


def test_a_broker_that_does_not_answer_is_an_error_in_time(broker: KafkaBroker) -> None:
    source = source_of(broker, timeout_s=2)
    broker.throttle_s = 600.0
    began = time.monotonic()
    with pytest.raises(SourceUnavailable, match=r"has not answered for shard 0 of topic orders"):
        list(offsets(source))
    assert time.monotonic() - began < 60


def test_records_larger_than_a_fetch_are_complete() -> None:
    """Goal: neither the client's buffer nor the size of a fetch limits a record."""
    sizes = [20_000_000, 3, 5_000_000]
    with KafkaBroker() as broker:
        broker.topics[TOPIC] = [partition := Partition()]
        for size in sizes:
            partition.append([Stored(0, 0, b"x" * size)])
        source = source_of(broker)
        assert source.plan(ZERO, "0", Limits()).end == "3"
        rows = [
            row
            for batch in source.read(ReadRange(ZERO, "0", "3"))
            for row in batch.column("value").to_pylist()
        ]
        assert [len(value) for value in rows] == sizes


class TestTls:
    """The client's certificates, passed through as its own properties."""

    @pytest.fixture
    def authority(self, tmp_path: Path) -> Authority:
        return Authority(tmp_path / "ours")

    @pytest.fixture
    def broker(self, authority: Authority) -> Generator[KafkaBroker]:
        """It has a certificate, and requires one of the same authority."""
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*authority.issue("127.0.0.1"))
        tls.load_verify_locations(authority.certificate)
        tls.verify_mode = ssl.CERT_REQUIRED
        with KafkaBroker({"reader": "hunter2"}, tls) as broker:
            fill(broker)
            yield broker

    def source(self, broker: KafkaBroker, authority: Authority, trusted: Path) -> KafkaSource:
        certificate, key = authority.issue("reader")
        log_in = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "reader",
            "ssl.ca.location": str(trusted),
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(key),
        }
        secrets = {"sasl.password": "TEST_KAFKA_TLS"}
        return source_of(broker, client=log_in, secrets=secrets, timeout_s=3)

    def test_records_are_read_over_tls(
        self, broker: KafkaBroker, authority: Authority, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TEST_KAFKA_TLS", "hunter2")
        source = self.source(broker, authority, authority.certificate)
        assert list(offsets(source)) == ALL

    def test_a_broker_with_a_foreign_certificate_is_refused(
        self,
        broker: KafkaBroker,
        authority: Authority,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("TEST_KAFKA_TLS", "hunter2")
        theirs = Authority(tmp_path / "theirs").certificate
        source = self.source(broker, authority, theirs)
        for attempt in (source.list_shards, lambda: list(offsets(source))):
            with pytest.raises(SourceRefused, match="check the credentials") as refused:
                attempt()
            assert "\n" not in str(refused.value)
            assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_AUTHENTICATION", SourceRefused),
        ("TOPIC_AUTHORIZATION_FAILED", SourceRefused),
        ("OFFSET_OUT_OF_RANGE", CursorExpired),
        ("UNKNOWN_TOPIC_OR_PART", UnknownShard),
        ("THROTTLING_QUOTA_EXCEEDED", SourceThrottled),
        ("_INVALID_ARG", InvalidSetting),
        ("_ALL_BROKERS_DOWN", SourceUnavailable),
        ("REQUEST_TIMED_OUT", SourceUnavailable),
        ("INVALID_MSG", SourceError),
    ],
)
def test_an_error_has_a_type_and_a_place(name: str, kind: type[LeaseholdError]) -> None:
    raised = error_of(KafkaError(getattr(KafkaError, name), "line\nfeed"), "shard 0 of topic t")
    assert type(raised) is kind
    assert "shard 0 of topic t" in str(raised)
    assert "\n" not in str(raised)


def test_an_unknown_retriable_error_is_no_final_error() -> None:
    passing = KafkaError(KafkaError.KAFKA_STORAGE_ERROR, "disk", False, True)
    assert type(error_of(passing, "shard 0")) is SourceUnavailable
