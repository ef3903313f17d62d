"""A Dagster deployment: the store, nodes and folders of its streams, and the address of its nodes.

Two deployments can share lease tables and, by mistake, a node name. Only one of them can register
the name. The other cannot find the first one's runs in its Dagster instance, and must not treat
them as ended. So it compares addresses before it changes a shard of that node.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.table_settings import CatalogSettings
from dagster_leasehold.lease_store.group_rows import Node, Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.store import LeaseStore

if TYPE_CHECKING:
    import dagster as dg

LEASEHOLD = "leasehold"
"""The key of the resource through which runs and sensors get their deployment."""
_KEY = "leasehold/instance"
_PREFIX = "dagster-"


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Deployment:
    """The lease store, the nodes and the folders of one deployment.

    Every process builds it from the same settings. So a run's config holds no secret: neither the
    database URL nor a token passes through Dagster.

    Attributes:
        store: opens the lease store on the first call, and returns the same one afterwards.
        nodes: the nodes for which this deployment sends heartbeats; used only without agents.
        agents: True if its nodes have agents (`leasehold node`), which send their heartbeats. Then
            each node that registers with the instance's address belongs to this deployment.
        timing: the protocol's timeouts for groups that this deployment creates.
        output_folder: returns the folder of a group's committed output.
        upkeep_file: returns the file of the rebalance sensor's costs, for `leasehold status`; None
            in processes that do not need it.
        leaving: returns True once the node of this process is leaving. Runs call it between
            batches, and then stop at their checkpoints.
        catalog: the catalog of its tables.
        history_age: the age at which the janitor deletes history rows; None keeps all rows.
        spark_folder: the folder of the embedded Spark server that the runs share; None if they use
            another Spark, or the server of their node's agent.
        spark: the `SparkResource` that provides the session; None in processes without Spark.
    """

    store: Callable[[], LeaseStore]
    nodes: tuple[NodeName, ...]
    timing: Timing
    output_folder: Callable[[GroupKey], OutputPlace]
    upkeep_file: Callable[[GroupKey], Path] | None = None
    agents: bool = False
    catalog: CatalogSettings = field(default_factory=CatalogSettings)
    leaving: Callable[[], bool] = _never
    history_age: timedelta | None = None
    spark_folder: Path | None = None
    spark: object = None

    def served(self, nodes: Iterable[Node], address: str) -> tuple[NodeName, ...]:
        """Return the nodes that this deployment claims shards for and launches runs on."""
        if not self.agents:
            return self.nodes
        names = (node.name for node in nodes if node.member and node.address == address)
        return tuple(sorted(names, key=rank_key))

    def own(self, nodes: Iterable[Node], address: str) -> tuple[Node, ...]:
        """Return the served nodes that are members of the group with our address.

        A node with another address belongs to another deployment, even if its name is ours. Our
        instance does not store its runs.
        """
        members = {node.name: node for node in nodes if node.member and node.address == address}
        served = self.served(members.values(), address)
        return tuple(members[name] for name in served if name in members)


def deployment_in(resources: object) -> Deployment:
    """Return the deployment among the resources of a run or a tick."""
    return getattr(resources, LEASEHOLD)


_ADDRESSES: WeakKeyDictionary[dg.DagsterInstance, str] = WeakKeyDictionary()


def instance_address(instance: dg.DagsterInstance) -> str:
    """Return the instance's address; empty before its first rebalancing tick."""
    # Cached: the address never changes, and each step of each tick needs it.
    address = _ADDRESSES.get(instance, "")
    if not address:
        address = instance.daemon_cursor_storage.get_cursor_values({_KEY}).get(_KEY, "")
        if address:
            _ADDRESSES[instance] = address
    return address


def ensure_instance_address(instance: dg.DagsterInstance) -> str:
    """Return the instance's address; create it on the first call.

    1. Two code locations start in separate processes, and find no address.
    2. Each adds a proposal as a dynamic partition. Dagster keeps all proposals in order.
    3. Both use the first proposal. If each wrote its own address instead, the later would overwrite
       the earlier, and nodes registered with the earlier would seem to belong to another
       deployment.
    """
    address = instance_address(instance)
    if not address:
        instance.add_dynamic_partitions(_KEY, [f"{_PREFIX}{uuid.uuid4()}"])
        address = instance.get_dynamic_partitions(_KEY)[0]
        instance.daemon_cursor_storage.set_cursor_values({_KEY: address})
    return address
