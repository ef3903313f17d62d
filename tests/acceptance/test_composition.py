"""Streams beside a project's own definitions, and in several code locations, in a real daemon."""

from __future__ import annotations

import time
from pathlib import Path

import dagster as dg
import pytest

from dagster_leasehold.assets.deployment import instance_address
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.dagster_deployment import DagsterDeployment, dagster_deployment
from tests.waiting import wait_for

STREAMS = ("orders", "visits", "returns")
SHARDS, RECORDS, NEWER = ("0", "1"), 50, 7
DONE_S = 180.0
LAUNCH = """mutation ($params: ExecutionParams!) { launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on InvalidSubsetError { message } } }"""
STATUS = """query ($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"""

pytestmark = [
    pytest.mark.release,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(600),
]


def test_merged_definitions_consume_and_a_run_continues_after_its_shard(tmp_path: Path) -> None:
    home = tmp_path / "home"
    settings = Settings(home=home, nodes=("node-a",))
    logs = {name: LocalLog.create(home / "logs" / name, len(SHARDS)) for name in STREAMS}
    for log in logs.values():
        for shard in SHARDS:
            log.append(shard, [f"{shard}-{number}".encode() for number in range(RECORDS)])
    store = open_store(settings.store_url)
    with dagster_deployment(
        settings,
        module="tests.acceptance.merged_definitions",
        beside={"neighbour": "tests.acceptance.neighbouring_definitions"},
    ) as deployment:
        whole = dict.fromkeys(SHARDS, str(RECORDS))
        for name in STREAMS:
            wait_for(f"all of {name}", lambda name=name: ends(store, name) == whole, DONE_S)
        wait_for("the project's job", (home / "used-by-nightly").exists, DONE_S)
        goes_on_after_its_shard(deployment, logs["orders"], store)
        with dg.DagsterInstance.from_config(str(settings.dagster_home)) as instance:
            address = instance_address(instance)
    for name in STREAMS:
        key = GroupKey.parse("default", name)
        assert {node.address for node in store.snapshot(key).nodes} == {address}
        assert verify(store, key) == []
    store.close()


def goes_on_after_its_shard(
    deployment: DagsterDeployment, log: LocalLog, store: LeaseStore
) -> None:
    """Materialize a shard and an asset of the project in one run; it outlives the janitor's ticks.

    The executor has a process for each step: the shard's is gone while the other one works.
    """
    home = deployment.settings.home
    deployment.stop_sensor("orders_rebalance")
    log.append("0", [b"newer"] * NEWER)
    run = launch(deployment, "0", "orders", "labels")
    wait_for("the project's asset", (home / "used-by-labels").exists, DONE_S)
    assert ends(store, "orders")["0"] == str(RECORDS + NEWER)
    began = time.time()
    looks = "ticks(limit: 50) { timestamp }"

    def looked_twice() -> bool:
        ticks = deployment.sensor_state("orders_housekeeping", looks)["ticks"]
        return sum(tick["timestamp"] > began for tick in ticks) > 6

    wait_for("two rounds of the janitor, which come every third tick", looked_twice, DONE_S)
    assert status(deployment, run) == "STARTED"
    (home / "go").touch()
    wait_for("the run's end", lambda: status(deployment, run) != "STARTED", DONE_S)
    assert status(deployment, run) == "SUCCESS"


def launch(deployment: DagsterDeployment, partition: str, *assets: str) -> str:
    """Launch the run that a click on several assets launches, and return its id."""
    params = {
        "selector": {
            "repositoryLocationName": "leasehold",
            "repositoryName": "__repository__",
            "pipelineName": "__ASSET_JOB",
            "assetSelection": [{"path": [asset]} for asset in assets],
        },
        "executionMetadata": {"tags": [{"key": "dagster/partition", "value": partition}]},
        "runConfigData": {},
    }
    answer = deployment.graphql(LAUNCH, params=params)["launchRun"]
    assert answer["__typename"] == "LaunchRunSuccess", answer
    return answer["run"]["runId"]


def status(deployment: DagsterDeployment, run: str) -> str:
    return deployment.graphql(STATUS, id=run)["runOrError"]["status"]


def ends(store: LeaseStore, name: str) -> dict[str, str | None]:
    key = GroupKey.parse("default", name)
    if key not in {group.key for group in store.groups()}:
        return {}
    return {row.shard: row.check_point for row in store.snapshot(key).shards}
