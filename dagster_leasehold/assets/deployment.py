"""A Dagster deployment: the parts it gives to its streams, and the address its nodes register with.

Two deployments can share lease tables, and by mistake give a node the same name. The lease tables
let only one of them answer to the name. The other one, which knows nothing of the first one's runs,
must not take them for ended: it compares addresses before it touches a shard of that node.
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
"""The key of the resource that gives runs and ticks their deployment."""
_KEY = "leasehold/instance"
_PREFIX = "dagster-"


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Deployment:
    """The lease store, the nodes and the folders of one deployment.

    It is built in every process from the same settings, so that a run needs no secret in
    its config: neither a database URL nor a token ever travels through Dagster.

    Attributes:
        store: opens the lease store on first use and returns the same one from then on.
        nodes: the nodes that this deployment keeps alive by itself, where there are no agents.
        agents: True if its nodes have agents (`leasehold node`), which beat for them; then
            a node that registers with the instance's address is one of this deployment.
        timing: the durations of the protocol for groups that this deployment creates.
        output_folder: gives the folder of the committed output of a stream's group.
        upkeep_file: gives the file of the rebalance sensor's costs, for `leasehold status`; None
            where no process looks.
        leaving: asked by runs between two batches; once it is true, they stop at that checkpoint,
            because the node of this process leaves.
        catalog: of its tables.
        history_age: the janitor deletes older rows of history; None keeps them.
        spark_folder: the folder of the embedded Spark server that the runs share; None where they
            use another Spark, or that of their node's agent.
        spark: a `SparkResource`, which gives the session; None where nothing runs on Spark.
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
        """Return the nodes that this deployment claims shards and launches runs for.

        `nodes` are the group's; `address` is the one that this deployment's nodes register with.
        """
        if not self.agents:
            return self.nodes
        names = (node.name for node in nodes if node.member and node.address == address)
        return tuple(sorted(names, key=rank_key))

    def own(self, nodes: Iterable[Node], address: str) -> tuple[Node, ...]:
        """Return the served nodes that are members of the group from this deployment.

        A node of our name that answers from another address is another deployment's, and so are
        its runs, which our instance does not know.
        """
        ours = {node.name: node for node in nodes if node.member and node.address == address}
        return tuple(ours[name] for name in self.served(ours.values(), address) if name in ours)


def deployment_in(resources: object) -> Deployment:
    """Return the deployment of a run or a tick: its resource `leasehold`."""
    return getattr(resources, LEASEHOLD)


_ADDRESSES: WeakKeyDictionary[dg.DagsterInstance, str] = WeakKeyDictionary()


def instance_address(instance: dg.DagsterInstance) -> str:
    """Return the instance's address; empty before its first rebalancing tick."""
    # Once there is one, it stays: every step of every tick asks for it.
    address = _ADDRESSES.get(instance, "")
    if not address:
        address = instance.daemon_cursor_storage.get_cursor_values({_KEY}).get(_KEY, "")
        if address:
            _ADDRESSES[instance] = address
    return address


def ensure_instance_address(instance: dg.DagsterInstance) -> str:
    """Return the instance's address, made at the first call.

    1. Two code locations begin, each a process of its own, and find no address.
    2. Each offers one. Offers are kept in their order, and none replaces another.
    3. Both take the first offer. Had each written its own, the first location would serve nodes at
       an address that the others, and its own next process, take for another deployment's.
    """
    address = instance_address(instance)
    if not address:
        instance.add_dynamic_partitions(_KEY, [f"{_PREFIX}{uuid.uuid4()}"])
        address = instance.get_dynamic_partitions(_KEY)[0]
        instance.daemon_cursor_storage.set_cursor_values({_KEY: address})
    return address
