"""A growing Kafka topic is consumed by real Dagster processes, and runs are killed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from dagster import AssetKey, DagsterInstance, DagsterRunStatus

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.failpoints import ENVIRONMENT_VARIABLE
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.settings import Settings
from tests.dagster_deployment import dagster_deployment
from tests.declared import declare, stream_text
from tests.failpoints import Failpoint
from tests.kafka_broker import KafkaBroker, Partition
from tests.kafka_wire import Stored
from tests.ledger_output import ledger_records
from tests.waiting import wait_for

TOPIC = "web.orders"
KEY = GroupKey.parse("default", "orders")
GROUP = "dashboards"
PASSWORD = "hunter2-kafka"
RECORDS = 400
AT_MS = 1_700_000_000_000
CONSUMED_S = 400.0
pytestmark = [
    pytest.mark.release,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(1200),
]


def values(shard: int) -> list[bytes]:
    return [b"%d-%d" % (shard, number) for number in range(RECORDS)]


def fill(broker: KafkaBroker, shard: int) -> None:
    stored = [Stored(0, AT_MS + number, value) for number, value in enumerate(values(shard))]
    for first in range(0, RECORDS, 50):
        broker.topics[TOPIC][shard].append(stored[first : first + 50])


def checkpoints(store: LeaseStore) -> Mapping[str, str | None]:
    return {row.shard: row.check_point for row in store.snapshot(KEY).shards}


def committed(store: LeaseStore, output: Path) -> dict[str, list[bytes]]:
    by_shard: dict[str, list[bytes]] = {}
    for batch in ledger_records(store, KEY, output):
        shards, read = batch.column("shard_id").to_pylist(), batch.column("value").to_pylist()
        for shard, value in zip(shards, read, strict=True):
            by_shard.setdefault(shard, []).append(value)
    return by_shard


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


def test_a_growing_topic_is_consumed_once_while_runs_are_killed(home: Path) -> None:
    """Kill -9 one run with its files written and one with its batch committed; add a partition."""
    armed = home / "failpoints"
    armed.mkdir()
    (armed / Failpoint.AFTER_WRITE.label).touch()
    with KafkaBroker({"reader": PASSWORD}) as broker:
        broker.topics[TOPIC] = [Partition(), Partition()]
        for shard in (0, 1):
            fill(broker, shard)
        options = {
            "bootstrap_servers": broker.address,
            "topic": TOPIC,
            "mirror_group": GROUP,
            "timeout_s": 30,
            "client": {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "reader",
            },
            "secrets": {"sasl.password": "TEST_KAFKA_PASSWORD"},
        }
        declare(
            home,
            stream_text(
                "orders",
                "kafka",
                options=options,
                limits="Limits(records_max=250)",
                pace="Pace(commit_interval_s=0, idle_limit_s=1)",
            ),
        )
        settings = Settings(home=home)
        environment = {"TEST_KAFKA_PASSWORD": PASSWORD, ENVIRONMENT_VARIABLE: f"@{armed}"}
        started = dagster_deployment(settings, environment=environment)
        with started, DagsterInstance.from_config(str(settings.dagster_home)) as instance:
            store = open_store(settings.store_url)
            wait_for("a run killed with its files written", lambda: killed(armed), CONSUMED_S)
            # From now on the next commit kills its run before it is reported.
            (armed / Failpoint.AFTER_COMMIT.label).touch()
            broker.topics[TOPIC].append(Partition())
            fill(broker, 2)
            everything = dict.fromkeys("012", str(RECORDS))
            wait_for("all records", lambda: checkpoints(store) == everything, CONSUMED_S)
            progress = {(GROUP, TOPIC, shard): RECORDS for shard in range(3)}
            wait_for("all progress told", lambda: broker.committed == progress, CONSUMED_S)

            by_shard = committed(store, settings.output_folder(KEY.stream, KEY.group))
            assert by_shard == {str(shard): values(shard) for shard in range(3)}
            assert verify(store, KEY) == []
            assert len(killed(armed)) == 2
            wait_for("both runs failed", lambda: failed(instance) >= 2, CONSUMED_S)
            assert set(instance.get_dynamic_partitions("orders")) == set("012")
            asset = AssetKey("orders")
            wait_for(
                "all shards materialized",
                lambda: instance.get_materialized_partitions(asset) == set("012"),
                CONSUMED_S,
            )
    for log in home.rglob("*.log"):
        assert PASSWORD not in log.read_text(errors="replace"), log


def killed(armed: Path) -> list[Path]:
    """The places where a run was killed: the file that armed it has its process id in its name."""
    return [path for path in armed.iterdir() if path.suffix]


def failed(instance: DagsterInstance) -> int:
    return sum(run.status is DagsterRunStatus.FAILURE for run in instance.get_runs())
