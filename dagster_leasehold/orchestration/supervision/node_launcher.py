"""The run launcher of a deployment with agents, which starts each run on its node.

Dagster's daemon and webserver use it if it is in `dagster.yaml`.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import yaml
from dagster import DagsterInstance, DagsterRun, DefaultRunLauncher

from dagster_leasehold.assets.dagster_internals import (
    GRPC_INFO_TAG,
    DagsterLaunchFailedError,
    LaunchRunContext,
    code_server_client,
)
from dagster_leasehold.assets.deployment import instance_address
from dagster_leasehold.assets.partitions import PARTITION_TAG, RANGE_START_TAG, node_of_launcher
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId, StreamName
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.supervision.node_directory import (
    Endpoint,
    find,
    home_of,
    server_id,
    withdrawn,
)


class NodeRunLauncher(DefaultRunLauncher):
    """A launcher that starts a run on the node in its tag `leasehold/node`.

    A run without the tag starts on the node that holds the shard of its partition. Any other run,
    such as a run of the lease asset, starts on the code server of the workspace, as with Dagster's
    default launcher.

    In `dagster.yaml`:

        run_launcher:
          module: dagster_leasehold.orchestration.supervision.node_launcher
          class: NodeRunLauncher
    """

    def __init__(self, inst_data: Any = None) -> None:
        super().__init__(inst_data=inst_data)
        self._store: LeaseStore | None = None

    def launch_run(self, context: LaunchRunContext) -> None:
        """Start a run on the code server of its node."""
        run = context.dagster_run
        node = node_of_launcher(run) or self._holder(run)
        if node is not None and withdrawn(self._instance, node):
            raise DagsterLaunchFailedError(
                f"Node {node} takes no runs, because its agent has left. Start it again with "
                f"`leasehold node --name {node}`."
            )
        endpoint = find(self._instance, node) if node is not None else None
        if endpoint is None:
            super().launch_run(context)
            return
        # Checked first, since a launch on a server that hangs would block the queue for a minute.
        if server_id(endpoint) is None:
            raise DagsterLaunchFailedError(
                f"The code server of node {node} at {endpoint} does not answer: see its agent's "
                "log."
            )
        client = code_server_client(host=endpoint.host, port=endpoint.port)
        node_instance = _InstanceOfNode(self._instance, home_of(self._instance, cast("str", node)))
        self.launch_run_from_grpc_client(cast("DagsterInstance", node_instance), run, client)

    def terminate(self, run_id: str) -> bool:
        """Terminate a run; return False at once if the run's server does not answer."""
        run = self._instance.get_run_by_id(run_id)
        if run is not None and not run.is_finished and not _reachable(run):
            self._instance.report_engine_event(
                "The code server of this run does not answer, so the run cannot be terminated.", run
            )
            return False
        return super().terminate(run_id)

    def _holder(self, run: DagsterRun) -> str | None:
        """Return our node that holds the shard of a run's partition, or None."""
        # A run of a partition range starts on the node of the first partition.
        partition = run.tags.get(PARTITION_TAG) or run.tags.get(RANGE_START_TAG)
        if partition is None:
            return None
        for asset in run.asset_selection or ():
            # If the asset belongs to no stream or the store does not answer, the run starts on the
            # workspace's server and reports the error.
            with suppress(LeaseholdError):
                if holder := self._holder_of(asset.path[-1], partition):
                    return holder
        return None

    def _holder_of(self, stream: str, partition: str) -> str | None:
        address = instance_address(self._instance)
        shard = ShardId(partition)
        store = self._opened()
        for group in store.groups(StreamName(stream)):
            snapshot = store.snapshot(group.key)
            holders = {row.consumer_owner for row in snapshot.shards if row.shard == shard}
            for node in snapshot.nodes:
                if node.name not in holders or node.address != address:
                    continue
                if node.accepts_runs or self._answers(node.name):
                    return node.name
        return None

    def _answers(self, node: str) -> bool:
        """Return True if the code server of a node answers.

        A node that is marked as not accepting runs can have a server that answers: the agent marks
        the node while the rebalance sensor is off, and users can still launch runs.
        """
        endpoint = find(self._instance, node)
        return endpoint is not None and server_id(endpoint) is not None

    def _opened(self) -> LeaseStore:
        if self._store is None:
            from dagster_leasehold.lease_store import open_store
            from dagster_leasehold.orchestration.settings import load_settings

            self._store = open_store(load_settings().store_url)
        return self._store


class _InstanceOfNode:
    """The instance that a launcher passes to a run on a node, with folders of the node's host.

    The daemon's folders might not exist on that host.
    """

    def __init__(self, instance: DagsterInstance, home: str | None) -> None:
        self.add_run_tags = instance.add_run_tags
        self._instance = instance
        self._home = home

    def get_ref(self) -> Any:
        """Return the reference from which the run opens its instance."""
        ref = self._instance.get_ref()
        return in_home(ref, self._home) if self._home else ref


def in_home(ref: Any, home: str) -> Any:
    """Return an instance's reference with artifacts and compute logs in another home.

    Compute logs outside the old home keep their folder, because the user chose it.
    """
    old_home = Path(_base_dir(ref.local_artifact_storage_data))
    old_logs = Path(_base_dir(ref.compute_logs_data) or "/")
    moved = ref._replace(local_artifact_storage_data=_based(ref.local_artifact_storage_data, home))
    if not old_logs.is_relative_to(old_home):
        return moved
    new_logs = str(Path(home) / old_logs.relative_to(old_home))
    return moved._replace(compute_logs_data=_based(ref.compute_logs_data, new_logs))


def _base_dir(data: Any) -> str:
    """Return the `base_dir` of an instance's component; empty if it is absent or a variable."""
    folder = (yaml.safe_load(data.config_yaml) or {}).get("base_dir")
    return folder if isinstance(folder, str) else ""


def _based(data: Any, folder: str) -> Any:
    config = {**yaml.safe_load(data.config_yaml), "base_dir": folder}
    return data._replace(config_yaml=yaml.dump(config))


def _reachable(run: DagsterRun) -> bool:
    """Return True if the code server of a run answers, or does not listen on a TCP port."""
    info = json.loads(run.tags.get(GRPC_INFO_TAG, "{}"))
    if not info.get("port"):
        return True
    return server_id(Endpoint(info["host"], int(info["port"]))) is not None
