"""Backfills of three nodes with separate code servers: runs on each, killed, canceled."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from dagster_leasehold.assets.backfill_siblings import BACKFILL_TAG, TAKEN_OVER_TAG
from dagster_leasehold.assets.dagster_internals import GRPC_INFO_TAG
from dagster_leasehold.assets.deployment import ensure_instance_address
from dagster_leasehold.assets.partitions import NODE_TAG, asset_key, asset_op_name
from dagster_leasehold.assets.run_process import recorded_process
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.member import Member
from dagster_leasehold.lease_store.process_identity import ProcessIdentity
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.instance import nodes_text
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess
from dagster_leasehold.orchestration.supervision.node_directory import Endpoint, find, publish
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.acceptance import shared_definitions
from tests.acceptance.shared_stream import KEY, STREAM, stream_of
from tests.dagster_deployment import (
    ROOT,
    DagsterDeployment,
    dagster_deployment,
    port_open,
    wait_for,
)
from tests.ports import free_port

NODES = ("node-a", "node-b", "node-c")
SHARDS, RUNS_MAX, DONE_S = 60, 12, 200.0
AGENTS = {"LEASEHOLD_AGENTS": "true"}
RETRIES = """
run_retries:
  enabled: true
  max_retries: 0
"""
LAUNCH = """mutation ($params: LaunchBackfillParams!) {
    launchPartitionBackfill(backfillParams: $params) {
        __typename ... on LaunchBackfillSuccess { backfillId } } }"""
CANCEL = "mutation ($id: String!) { cancelPartitionBackfill(backfillId: $id) { __typename } }"
STATUS = """query ($id: String!) { partitionBackfillOrError(backfillId: $id) {
    ... on PartitionBackfill { status
        assetBackfillData { assetBackfillStatuses { ... on AssetPartitionsStatusCounts {
            numPartitionsMaterialized numPartitionsFailed } } } } } }"""

pytestmark = [
    pytest.mark.release,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(900),
]


@dataclass(frozen=True)
class Scene:
    """Sixty shards that three nodes hold; only runs of backfills consume them."""

    deployment: DagsterDeployment
    instance: DagsterInstance
    store: LeaseStore
    log: LocalLog
    servers: dict[str, int]

    @property
    def hold(self) -> Path:
        """The file that keeps all batches waiting."""
        return self.deployment.settings.home / "hold"

    def append(self) -> None:
        for number in range(SHARDS):
            self.log.append(str(number), [b"record"])

    def backfill(self, tags: Mapping[str, str] | None = None, /, **config: Any) -> str:
        params: dict[str, Any] = {
            "tags": [{"key": key, "value": text} for key, text in (tags or {}).items()],
            "assetSelection": [{"path": [STREAM]}],
            "partitionNames": [str(number) for number in range(SHARDS)],
        }
        if config:
            op = asset_op_name(stream_of(self.deployment.settings))
            params["runConfigData"] = {"ops": {op: {"config": config}}}
        answer = self.deployment.graphql(LAUNCH, params=params)["launchPartitionBackfill"]
        return answer["backfillId"]

    def status(self, backfill: str) -> dict[str, Any]:
        return self.deployment.graphql(STATUS, id=backfill)["partitionBackfillOrError"]

    def ended(self, backfill: str) -> tuple[str, int, int]:
        """Return how a backfill ended, and how many partitions are materialized, and failed."""

        def over() -> dict[str, Any] | None:
            status = self.status(backfill)
            return None if status["status"] in ("REQUESTED", "CANCELING", "FAILING") else status

        status = wait_for("the backfill to end", over, DONE_S)
        (counts,) = status["assetBackfillData"]["assetBackfillStatuses"]
        return status["status"], counts["numPartitionsMaterialized"], counts["numPartitionsFailed"]

    def runs(self, backfill: str) -> list[DagsterRun]:
        return list(self.instance.get_runs(RunsFilter(tags={BACKFILL_TAG: backfill})))

    def working(self, backfill: str) -> dict[str, tuple[DagsterRun, int]]:
        """Return the run of each node and its process, once each of the nodes has one."""

        def each() -> dict[str, tuple[DagsterRun, int]] | None:
            runs: dict[str, tuple[DagsterRun, int]] = {}
            for run in self.runs(backfill):
                process = ProcessIdentity.parse(recorded_process(run))
                if run.status is DagsterRunStatus.STARTED and process and NODE_TAG in run.tags:
                    runs[run.tags[NODE_TAG]] = run, process.pid
            return runs if runs.keys() == set(NODES) else None

        return wait_for("a run of each node", each, DONE_S)

    def taker(self, backfill: str) -> tuple[DagsterRun, int]:
        """Return a run that has taken over other runs, and the number of its process."""

        def joined() -> tuple[DagsterRun, int] | None:
            runs = self.runs(backfill)
            takers = {run.tags.get(TAKEN_OVER_TAG) for run in runs}
            for run in runs:
                process = ProcessIdentity.parse(recorded_process(run))
                if run.run_id in takers and process:
                    return run, process.pid
            return None

        self.working(backfill)
        return wait_for("a run that has taken over others", joined, DONE_S)

    def materialized(self) -> Counter[tuple[str, str]]:
        """Count the materializations of each partition by each run."""
        key = asset_key(stream_of(self.deployment.settings))
        records = self.instance.fetch_materializations(key, limit=5_000).records
        return Counter((each.run_id, str(each.partition_key)) for each in records)

    def holder(self, partition: str) -> str:
        rows = self.store.snapshot(KEY).shards
        return next(str(row.consumer_owner) for row in rows if row.shard == ShardId(partition))

    def assert_each_once(self, backfill: str) -> None:
        """Each partition was materialized once, and by a run on the host of its node."""
        runs = {run.run_id: run for run in self.runs(backfill)}
        made = {made: n for made, n in self.materialized().items() if made[0] in runs}
        assert set(made.values()) == {1}
        assert sorted(partition for _, partition in made) == sorted(map(str, range(SHARDS)))
        for run_id, partition in made:
            port = json.loads(runs[run_id].tags[GRPC_INFO_TAG])["port"]
            endpoint = find(self.instance, self.holder(partition))
            assert endpoint is not None
            assert endpoint.port == port
        assert len({run for run, _ in made}) <= RUNS_MAX, "runs of a node are joined"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Generator[Scene]:
    home = tmp_path_factory.mktemp("three") / "home"
    settings = Settings(home=home, nodes=NODES, agents=True)
    log = LocalLog.create(home / "logs" / STREAM, SHARDS)
    store = open_store(settings.store_url)
    module = shared_definitions.__name__
    with ExitStack() as stack:
        deployed = dagster_deployment(
            settings,
            module=module,
            dagster_yaml=f"{nodes_text(runs_max=8)}{RETRIES}",
            environment=AGENTS,
        )
        deployment = stack.enter_context(deployed)
        instance = stack.enter_context(DagsterInstance.from_config(str(settings.dagster_home)))
        beat(store, instance, stack)
        servers = {node: start_server(settings, module, node, instance, stack) for node in NODES}

        def held() -> bool:
            groups = {group.key for group in store.groups()}
            rows = store.snapshot(KEY).shards if KEY in groups else []
            return len(rows) == SHARDS and all(row.consumer_owner for row in rows)

        wait_for("owners of all shards", held, DONE_S)
        deployment.stop_sensor(f"{STREAM}_rebalance")
        yield Scene(deployment, instance, store, log, servers)


def beat(store: LeaseStore, instance: DagsterInstance, stack: ExitStack) -> None:
    """Beat for the three nodes, as their agents would."""
    address = ensure_instance_address(instance)
    members = [Member(store, KEY, Node(NodeName(n), 0, n, address=address)) for n in NODES]
    end = threading.Event()

    def keep() -> None:
        while not end.wait(1.0):
            for member in members:
                member.keep_alive(accepts_runs=True)

    thread = threading.Thread(target=keep)
    stack.callback(thread.join)
    stack.callback(end.set)
    thread.start()


def start_server(
    settings: Settings, module: str, node: str, instance: DagsterInstance, stack: ExitStack
) -> int:
    """Start the code server of a node, as its agent would; return its process."""
    port = free_port()
    command = ("-m", "dagster", "api", "grpc", "-m", module, "--port", str(port))
    process = ChildProcess(
        f"code server of {node}",
        [sys.executable, *command, "--host", "127.0.0.1", "--location-name", "leasehold"],
        log=settings.home / f"{node}.log",
        environment=os.environ
        | {
            "LEASEHOLD_HOME": str(settings.home),
            "LEASEHOLD_NODES": json.dumps(list(NODES)),
            **AGENTS,
            "DAGSTER_HOME": str(settings.dagster_home),
            "PYTHONPATH": str(ROOT),
        },
        folder=settings.home,
    )
    stack.enter_context(process)
    wait_for(f"the code server of {node}", lambda: port_open(port), DONE_S)
    publish(instance, node, Endpoint("127.0.0.1", port))
    return process.pid


def test_a_backfill_runs_a_few_runs_per_node_on_its_host(scene: Scene) -> None:
    scene.append()
    scene.hold.touch()
    backfill = scene.backfill()
    for node, (run, pid) in scene.working(backfill).items():
        assert scene.servers[node] in {each.pid for each in psutil.Process(pid).parents()}, run
    scene.hold.unlink()
    assert scene.ended(backfill) == ("COMPLETED_SUCCESS", SHARDS, 0)
    assert {run.status for run in scene.runs(backfill)} == {DagsterRunStatus.SUCCESS}
    scene.assert_each_once(backfill)


def test_a_backfill_with_config_replays_on_each_node(scene: Scene) -> None:
    wait_for("the publication", lambda: not scene.store.unpublished(KEY), DONE_S)
    backfill = scene.backfill(**{"from": "begin"})
    assert scene.ended(backfill) == ("COMPLETED_SUCCESS", SHARDS, 0)
    assert {run.status for run in scene.runs(backfill)} == {DagsterRunStatus.SUCCESS}
    scene.assert_each_once(backfill)
    assert Counter(batch.generation for batch in scene.store.batches(KEY)) == {1: SHARDS}


def test_a_killed_run_leaves_its_partitions_to_the_next_backfill(scene: Scene) -> None:
    """The runs of the other nodes continue, and their results count."""
    scene.append()
    scene.hold.touch()
    backfill = scene.backfill()
    _, pid = scene.taker(backfill)
    os.kill(pid, signal.SIGKILL)
    scene.hold.unlink()
    status, materialized, failed = scene.ended(backfill)
    assert status == "COMPLETED_FAILED"
    assert failed > 1, "those that it had taken over have failed with it"
    assert materialized + failed == SHARDS
    again = scene.backfill()
    assert scene.ended(again) == ("COMPLETED_SUCCESS", SHARDS, 0)
    scene.assert_each_once(again)


def test_a_repeated_run_materializes_the_partitions_that_its_killed_run_took_over(
    scene: Scene,
) -> None:
    scene.append()
    scene.hold.touch()
    backfill = scene.backfill({"dagster/max_retries": "1"})
    victim, pid = scene.taker(backfill)
    os.kill(pid, signal.SIGKILL)

    def repeated() -> bool:
        return any(run.parent_run_id == victim.run_id for run in scene.runs(backfill))

    wait_for("the repeated run", repeated, DONE_S)
    scene.hold.unlink()
    assert scene.ended(backfill) == ("COMPLETED_SUCCESS", SHARDS, 0)
    statuses = Counter(run.status for run in scene.runs(backfill))
    assert statuses.pop(DagsterRunStatus.FAILURE) == 1
    assert statuses.keys() == {DagsterRunStatus.SUCCESS}
    scene.assert_each_once(backfill)


def test_a_canceled_backfill_ends_the_runs_of_each_node(scene: Scene) -> None:
    scene.append()
    scene.hold.touch()
    backfill = scene.backfill()
    scene.working(backfill)
    scene.deployment.graphql(CANCEL, id=backfill)
    status, materialized, failed = scene.ended(backfill)
    assert (status, materialized) == ("CANCELED", 0)
    assert 0 < failed <= SHARDS, "those for which Dagster had made a run by then"
    assert {run.status for run in scene.runs(backfill)} == {DagsterRunStatus.CANCELED}
    scene.hold.unlink()
    again = scene.backfill()
    assert scene.ended(again) == ("COMPLETED_SUCCESS", SHARDS, 0)
    scene.assert_each_once(again)
    assert verify(scene.store, KEY) == []
