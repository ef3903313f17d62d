"""The code server to which a run goes; acceptance tests have real servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster import DefaultRunLauncher
from dagster._core.errors import DagsterLaunchFailedError
from dagster._core.instance.ref import InstanceRef
from dagster._core.launcher.base import LaunchRunContext
from dagster._core.storage.tags import GRPC_INFO_TAG

from dagster_leasehold.assets.deployment import ensure_instance_address
from dagster_leasehold.assets.partitions import NODE_TAG, PARTITION_TAG
from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.orchestration.supervision import node_launcher
from dagster_leasehold.orchestration.supervision.node_directory import Endpoint, publish, withdraw
from dagster_leasehold.orchestration.supervision.node_launcher import NodeRunLauncher

KEY = GroupKey.parse("default", "orders")
B, ZERO = NodeName("b"), ShardId("0")
AT = Endpoint("127.0.0.1", 4202)


class Scene:
    """A launcher between Dagster's own way and the server of node b."""

    def __init__(self, instance: dg.DagsterInstance, patch: pytest.MonkeyPatch) -> None:
        self.instance = instance
        self.launched: list[str] = []
        self.answers = True
        self.store = MemoryStore()
        self.launcher = NodeRunLauncher()
        self.launcher.register_instance(instance)
        self.launcher._store = self.store
        patch.setattr(
            DefaultRunLauncher, "launch_run", lambda _, context: self.launched.append("workspace")
        )
        patch.setattr(DefaultRunLauncher, "launch_run_from_grpc_client", self._launch)
        patch.setattr(DefaultRunLauncher, "terminate", lambda _, run_id: True)
        patch.setattr(node_launcher, "server_id", lambda _: "id" if self.answers else None)

    def _launch(self, instance: Any, run: dg.DagsterRun, client: Any) -> None:
        self.there = instance
        self.launched.append(f"{client.host}:{client.port}")

    def launch(self, run: dg.DagsterRun) -> list[str]:
        self.launcher.launch_run(LaunchRunContext(run, None))
        return self.launched

    def hold(self, address: str) -> None:
        """Node b holds shard 0 of the stream, registered with an address."""
        self.store.create_group(Group(KEY))
        self.store.sync_shards(KEY, [ShardListing(ZERO)], observer="test")
        self.store.register(KEY, Node(B, 0, "first", address=address), observer="test")
        (lease,) = self.store.snapshot(KEY).shards
        self.store.claim(KEY, {ZERO: (B, lease.lease_id)}, observer="test", reason="free")


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Scene(instance, monkeypatch)


def tagged() -> dg.DagsterRun:
    return dg.DagsterRun(job_name="consume_orders", tags={NODE_TAG: "b"})


def materialization(*assets: str, shard: str = "0") -> dg.DagsterRun:
    return dg.DagsterRun(
        job_name="__ASSET_JOB",
        asset_selection=frozenset(dg.AssetKey(asset.split("/")) for asset in assets or ("orders",)),
        tags={PARTITION_TAG: shard},
    )


def test_a_run_goes_to_the_node_of_its_tag(scene: Scene) -> None:
    publish(scene.instance, "b", AT)
    assert scene.launch(tagged()) == [str(AT)]


@pytest.mark.parametrize("logs", [None, "/var/log/compute"])
def test_a_run_keeps_its_files_in_the_home_of_its_nodes_host(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, logs: str | None
) -> None:
    """Goal: no host needs the daemon's folder; a configured place for logs stays."""
    daemon, host = tmp_path / "daemon", tmp_path / "host"
    daemon.mkdir()
    chosen = {"base_dir": logs} if logs else {}
    local = "dagster._core.storage.local_compute_log_manager"
    section = {"module": local, "class": "LocalComputeLogManager", "config": chosen}
    ref = InstanceRef.from_dir(str(daemon), overrides={"compute_logs": section} if logs else {})
    monkeypatch.setattr(scene.instance, "get_ref", lambda: ref)
    with monkeypatch.context() as agent:
        agent.setattr(dg.DagsterInstance, "root_directory", str(host))
        publish(scene.instance, "b", AT)
    scene.launch(tagged())
    there = scene.there.get_ref()
    assert there.local_artifact_storage.base_dir == str(host)
    assert there.compute_log_manager._base_dir == (logs or str(host / "storage"))
    assert there.storage_data == ref.storage_data


def test_a_run_of_a_node_without_an_agent_uses_the_launcher_of_dagster(scene: Scene) -> None:
    assert scene.launch(tagged()) == ["workspace"]


def test_a_run_of_a_node_that_left_fails_with_one_sentence(scene: Scene) -> None:
    publish(scene.instance, "b", AT)
    withdraw(scene.instance, "b")
    with pytest.raises(
        DagsterLaunchFailedError, match="Node b takes no runs, because its agent has left"
    ):
        scene.launch(tagged())


def test_a_run_of_a_node_that_does_not_answer_fails_with_one_sentence(scene: Scene) -> None:
    publish(scene.instance, "b", AT)
    scene.answers = False
    with pytest.raises(DagsterLaunchFailedError, match=r"at 127\.0\.0\.1:4202 does not answer"):
        scene.launch(tagged())


@pytest.mark.parametrize(
    "assets", [("orders",), ("shop/orders",), ("labels", "orders", "no name of ours")]
)
def test_a_materialization_goes_to_the_node_that_holds_its_shard(
    scene: Scene, assets: tuple[str, ...]
) -> None:
    """Goal: it does so too if the run makes assets of the project after the shard."""
    publish(scene.instance, "b", AT)
    scene.hold(ensure_instance_address(scene.instance))
    assert scene.launch(materialization(*assets)) == [str(AT)]


@pytest.mark.parametrize(("answers", "target"), [(True, str(AT)), (False, "workspace")])
def test_a_manual_materialization_goes_to_a_holder_without_sensors_if_its_server_answers(
    scene: Scene, *, answers: bool, target: str
) -> None:
    publish(scene.instance, "b", AT)
    address = ensure_instance_address(scene.instance)
    scene.hold(address)
    silent = Node(B, 0, "first", address, accepts_runs=False)
    scene.store.register(KEY, silent, observer="test")
    scene.answers = answers
    assert scene.launch(materialization()) == [target]


@pytest.mark.parametrize(
    "run",
    [
        materialization("other"),
        materialization(shard="9"),
        dg.DagsterRun(job_name="compact_orders"),
    ],
    ids=["other-asset", "other-partition", "no-partition"],
)
def test_a_run_without_a_held_shard_uses_the_launcher_of_dagster(
    scene: Scene, run: dg.DagsterRun
) -> None:
    publish(scene.instance, "b", AT)
    scene.hold(ensure_instance_address(scene.instance))
    assert scene.launch(run) == ["workspace"]


def test_a_shard_of_another_deployment_is_not_looked_up(scene: Scene) -> None:
    publish(scene.instance, "b", AT)
    scene.hold("another-instance")
    assert scene.launch(materialization()) == ["workspace"]


def test_a_run_without_its_server_cannot_be_terminated(scene: Scene) -> None:
    info = '{"host": "127.0.0.1", "port": 4202}'
    run = scene.instance.add_run(
        dg.DagsterRun(
            job_name="consume_orders",
            status=dg.DagsterRunStatus.STARTED,
            tags={GRPC_INFO_TAG: info},
        )
    )
    assert scene.launcher.terminate(run.run_id)
    scene.answers = False
    assert not scene.launcher.terminate(run.run_id)
