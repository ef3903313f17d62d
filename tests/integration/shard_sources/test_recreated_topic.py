"""A recreated topic is not consumed from the checkpoints of the former topic."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.shard_sources.kafka import KafkaOptions, KafkaSource
from tests.command_output import output_of
from tests.integration.shard_sources.consuming_home import ConsumingHome, committed
from tests.kafka_broker import KafkaBroker, Partition
from tests.own_environments import PackagesMissing
from tests.tansu_broker import TansuBroker

TOPIC = "orders"


@pytest.fixture
def broker(tmp_path: Path) -> Generator[TansuBroker]:
    try:
        tansu = TansuBroker(tmp_path)
    except PackagesMissing as missing:
        pytest.skip(str(missing))
    with tansu:
        tansu.make_topic(TOPIC, 1)
        yield tansu


def test_records_below_the_checkpoint_are_not_skipped(
    broker: TansuBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Method: five records are consumed. Then the topic is recreated with eight records."""
    options = {"bootstrap_servers": broker.address, "timeout_s": 20}
    source = KafkaSource(KafkaOptions.model_validate(options), TOPIC)
    home = ConsumingHome(tmp_path, monkeypatch, TOPIC, "kafka", source, options)
    assert main(["group", "create", TOPIC]) == 0
    broker.produce(TOPIC, 0, [f"old {number}" for number in range(5)])
    identity = source.log_identity()
    assert identity
    home.consume("run-1")
    assert source.log_identity() == identity
    broker.make_topic_anew(TOPIC, 1)
    broker.produce(TOPIC, 0, [f"new {number}" for number in range(8)])
    assert source.log_identity() not in (None, identity)
    home.consume("run-2")
    assert home.checkpoints() == {"0": "5"}
    accepted = json.loads(output_of(capsys, "group", "accept-log", TOPIC, "--json"))
    assert accepted["log"] == source.log_identity()
    home.consume("run-3")
    assert home.checkpoints() == {"0": "8"}
    old, new = [f"old {number}" for number in range(5)], ["new 5", "new 6", "new 7"]
    assert committed(capsys, TOPIC) == [*old, *new]


def test_without_topic_ids_a_recreated_topic_is_not_noticed() -> None:
    with KafkaBroker() as fake:
        fake.topics[TOPIC] = [Partition()]
        options = {"bootstrap_servers": fake.address, "timeout_s": 20}
        assert KafkaSource(KafkaOptions.model_validate(options), TOPIC).log_identity() is None
