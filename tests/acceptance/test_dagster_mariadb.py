"""The whole path on real processes: daemon, webserver, code server, Spark, MariaDB, MySQL."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRunStatus

from dagster_leasehold.assets.partitions import PROCESS_TAG
from dagster_leasehold.assets.spark.connect_server import TOKEN_FILE
from dagster_leasehold.lease_store import failpoints, open_store
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.instance import production_text
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests import mysql as mysql_server
from tests.acceptance.held_stream import KEY, STREAM, committed, intended
from tests.dagster_deployment import DagsterDeployment, dagster_deployment
from tests.failpoints import Failpoint
from tests.mariadb import MariaDB
from tests.waiting import wait_for

SHARDS, RECORDS = 4, 500
CONSUMED_S, DIED_S, IDLE_S = 400.0, 400.0, 180.0
FINISHED = (DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)

pytestmark = [
    pytest.mark.long,
    pytest.mark.dagster_processes,
    pytest.mark.mariadb,
    pytest.mark.spark,
    pytest.mark.timeout(1200),
]


def expected(shard: str) -> list[bytes]:
    return [f"{shard}-{number}".encode() for number in range(RECORDS)]


def checkpoints(store: LeaseStore) -> dict[str, str | None]:
    return {row.shard: row.check_point for row in store.snapshot(KEY).shards}


def process_of(instance: DagsterInstance, run_id: str) -> int:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return int(run.tags[PROCESS_TAG].split("|")[1])


def idle(instance: DagsterInstance) -> bool:
    runs = instance.get_runs()
    return bool(runs) and all(run.status in FINISHED for run in runs)


@pytest.fixture
def dagster_database(mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    mariadb.create_database("dagster")
    values = {
        "DAGSTER_MYSQL_HOSTNAME": "127.0.0.1",
        "DAGSTER_MYSQL_PORT": str(mariadb.port),
        "DAGSTER_MYSQL_USERNAME": mariadb.user,
        "DAGSTER_MYSQL_PASSWORD": mariadb.password,
        "DAGSTER_MYSQL_DATABASE": "dagster",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return values


@pytest.fixture
def leases_elsewhere(request: pytest.FixtureRequest) -> str:
    """The URL of a database for leases: on MySQL where there is one, to meet it here, too."""
    kind = "mariadb" if mysql_server.reason_missing() else "mysql"
    return request.getfixturevalue(f"{kind}_url")


@pytest.mark.release
def test_a_run_killed_in_the_middle_of_a_batch_leaves_each_record_once(
    tmp_path: Path, mariadb: MariaDB, mariadb_url: str, dagster_database: dict[str, str]
) -> None:
    """Kill -9 a run while its Spark job writes; the next run repeats exactly its range."""
    home = tmp_path / "home"
    settings = Settings(home=home, nodes=("node-a", "node-b"))
    log = LocalLog.create(home / "logs" / STREAM, SHARDS)
    for row in log.list_shards():
        log.append(row.shard, expected(row.shard))
    store = open_store(mariadb_url, upgrade=True)
    (home / "hold").touch()
    started = dagster_deployment(
        settings,
        module="tests.acceptance.held_definitions",
        dagster_yaml=production_text(),
        environment=dagster_database | {"LEASEHOLD_DATABASE_URL": mariadb_url},
    )
    with started as deployment, DagsterInstance.from_config(str(settings.dagster_home)) as instance:
        in_group(store)
        killed = wait_for("a batch in its Spark job", lambda: intended(store, home), CONSUMED_S)
        os.kill(process_of(instance, killed), signal.SIGKILL)
        assert committed(store, settings.output_folder(KEY.stream, KEY.group)) == {}
        (home / "hold").unlink()
        everything = dict.fromkeys("0123", str(RECORDS))
        wait_for("all records", lambda: checkpoints(store) == everything, CONSUMED_S)
        wait_for("the end of all runs", lambda: idle(instance), IDLE_S)

        by_shard = committed(store, settings.output_folder(KEY.stream, KEY.group))
        assert by_shard == {shard: expected(shard) for shard in "0123"}
        assert verify(store, KEY) == []
        run = instance.get_run_by_id(killed)
        assert run is not None
        assert run.status is DagsterRunStatus.FAILURE
        assert killed not in {batch.run for batch in store.batches(KEY)}
        assert_shared(store)
        assert_seen_by_users(deployment, instance)
        token = (settings.spark_folder / TOKEN_FILE).read_text().strip()
    for secret in (mariadb.password, token):
        assert_nowhere(home, secret)
        assert_not_in_database(mariadb, "dagster", secret)


def in_group(store: LeaseStore) -> None:
    """Wait until both nodes are members."""

    def members() -> bool:
        groups = {group.key for group in store.groups()}
        return KEY in groups and len([n for n in store.snapshot(KEY).nodes if n.member]) == 2

    wait_for("both nodes to join", members, CONSUMED_S)


def assert_shared(store: LeaseStore) -> None:
    """Each node holds half of the shards."""
    rows = store.snapshot(KEY).shards
    assert {row.state for row in rows} == {ShardState.ALREADY_ALLOC}
    owners = [row.consumer_owner for row in rows]
    assert owners.count(NodeName("node-a")) == owners.count(NodeName("node-b")) == SHARDS // 2


def assert_seen_by_users(deployment: DagsterDeployment, instance: DagsterInstance) -> None:
    """Every partition is green in Dagster and has the expected metadata."""
    key = dg.AssetKey([STREAM])
    query = """query ($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) {
        ... on AssetNode { partitionStats { numMaterialized numFailed numPartitions } } } }"""

    def materialized() -> bool:
        stats = deployment.graphql(query, key={"path": [STREAM]})["assetNodeOrError"]
        return stats["partitionStats"]["numMaterialized"] == SHARDS

    wait_for("every partition to be materialized", materialized, IDLE_S)
    seen: dict[str, int] = {}
    for record in instance.fetch_materializations(key, limit=100).records:
        event = record.asset_materialization
        assert event is not None
        assert event.partition is not None
        seen[event.partition] = seen.get(event.partition, 0) + int(
            str(event.metadata["records"].value)
        )
    assert seen == dict.fromkeys("0123", RECORDS)


def assert_nowhere(home: Path, secret: str) -> None:
    """No file that the processes left contains the password of the database."""
    for path in home.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


def assert_not_in_database(mariadb: MariaDB, database: str, secret: str) -> None:
    """No row of Dagster's storage holds it: config, tags, events, snapshots."""
    tables = [row[0] for row in mariadb.execute("SHOW TABLES", database=database)]
    assert "event_logs" in tables
    for table in tables:
        for row in mariadb.execute(f"SELECT * FROM `{table}`", database=database):
            assert secret not in str(row), table


@pytest.mark.release
def test_batches_that_a_killed_run_committed_are_reported_once(
    tmp_path: Path, leases_elsewhere: str, dagster_database: dict[str, str]
) -> None:
    """One run dies after its commit, one after its report; Dagster shows each batch once."""
    home, points = tmp_path / "home", tmp_path / "failpoints"
    settings = Settings(home=home, nodes=("node-a",))
    log = LocalLog.create(home / "logs" / STREAM, 2)
    store = open_store(leases_elsewhere, upgrade=True)
    points.mkdir()
    armed = f"{failpoints.FOLDER_MARK}{points}"
    started = dagster_deployment(
        settings,
        module="tests.acceptance.held_definitions",
        dagster_yaml=production_text(),
        environment=dagster_database
        | {"LEASEHOLD_DATABASE_URL": leases_elsewhere, failpoints.ENVIRONMENT_VARIABLE: armed},
    )
    with started, DagsterInstance.from_config(str(settings.dagster_home)) as instance:
        died: set[int] = set()
        for number, point in enumerate((Failpoint.AFTER_COMMIT, Failpoint.AFTER_REPORT), start=1):
            (points / point.label).touch()
            for shard in "01":
                log.append(shard, expected(shard))
            killed = wait_for(
                "a run to die", lambda p=point: [*points.glob(f"{p.label}.*")], DIED_S
            )
            died |= {int(path.suffix[1:]) for path in killed}
            goal = dict.fromkeys("01", str(number * RECORDS))
            wait_for("all records", lambda g=goal: checkpoints(store) == g, CONSUMED_S)
            wait_for("the outbox to be empty", lambda: not store.pending_events(KEY), IDLE_S)
        wait_for("the end of all runs", lambda: idle(instance), IDLE_S)
        # Others may have failed for want of an answer of the database in time, and continued later.
        dead = [run for run in instance.get_runs() if process_of(instance, run.run_id) in died]
        assert [run.status for run in dead] == [DagsterRunStatus.FAILURE] * 2
        assert {run.run_id for run in dead} <= {batch.run for batch in store.batches(KEY)}
        ledger = [batch.batch_id for batch in store.batches(KEY)]
        assert sorted(shown_batches(instance)) == sorted(ledger)

    by_shard = committed(store, settings.output_folder(KEY.stream, KEY.group))
    assert by_shard == {shard: [*expected(shard), *expected(shard)] for shard in "01"}
    assert verify(store, KEY) == []


def shown_batches(instance: DagsterInstance) -> list[str]:
    """The batches that Dagster's materializations name, as often as they do."""
    batches: list[str] = []
    for record in instance.fetch_materializations(dg.AssetKey([STREAM]), limit=1000).records:
        event = record.asset_materialization
        assert event is not None
        if "first_batch" in event.metadata:
            first, last = (
                int(str(event.metadata[key].value).rpartition(".")[2])
                for key in ("first_batch", "last_batch")
            )
            batches += [f"{event.partition}.{number}" for number in range(first, last + 1)]
    return batches
