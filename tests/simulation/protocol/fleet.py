"""All hosts of a seed: their kinds, and lookups by node."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from typing_extensions import override

from dagster_leasehold.lease_store.group_rows import AssignmentMode, Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from tests.simulation.protocol.agent_host import AgentHost, SensorHost
from tests.simulation.protocol.client_host import ClientHost
from tests.simulation.protocol.configuration import Arrival
from tests.simulation.protocol.host import Host
from tests.simulation.protocol.ports import Members, Surroundings
from tests.simulation.protocol.schedule import Process
from tests.simulation.protocol.stage import TICK_S

SEVERAL_NODES_SHARE = 0.2
"""The share of a swarm's code servers that serve two nodes instead of one."""
CLIENTS_SHARE = 0.3
"""The share of a swarm's groups that have plain clients among their members."""
CLIENT_SHARE = 0.4
"""The share of such a group's members that are plain clients."""
AGENTS_SHARE = 0.3
"""The share of a swarm's groups that are served by one deployment with agents."""
ARRIVAL_TICKS = 3


class Fleet(Members):
    """The hosts, in the order of their creation.

    Attributes:
        source_count: the current target count of nodes of a modulo group.
    """

    def __init__(self, world: Surroundings) -> None:
        stage = world.stage
        self._world = world
        self._stage = stage
        self.hosts: list[Host] = []
        self.source_count = stage.config.nodes
        self._has_clients = (
            stage.swarm and stage.chance.random() < CLIENTS_SHARE and not stage.pinned
        )
        self._has_agents = stage.swarm and stage.chance.random() < AGENTS_SHARE

    def arrive(self) -> None:
        """Start the first hosts, together or one by one."""
        stage = self._stage
        if self._has_agents:
            self.hosts.append(SensorHost(self._world, self.host_of))
            self.hosts[0].start()
        hosts = [self.new_host() for _ in range(stage.config.nodes)]
        if stage.config.arrive is Arrival.TOGETHER:
            for host in hosts:
                host.start(registers=True)
            return
        for index, host in enumerate(hosts):
            delay_s = index * ARRIVAL_TICKS * TICK_S * stage.unit_s
            stage.schedule.call(delay_s, lambda host=host: host.start(registers=True))

    def new_host(self) -> Host:
        """Make one more host, not started yet; its assignment settings follow from its number."""
        stage = self._stage
        index = sum(bool(host.settings) for host in self.hosts)
        # Names that differ only in case: ids are compared byte for byte.
        upper = stage.swarm and index % 2 == 1
        name = NodeName(f"NODE-{index - 1}" if upper else f"node-{index}")
        settings = self._settings(name, index)
        if self._has_clients and stage.chance.random() < CLIENT_SHARE:
            host = ClientHost(self._world, settings)
        elif self._has_agents:
            host = AgentHost(self._world, settings)
        else:
            served = [settings]
            balanced = stage.config.mode is AssignmentMode.BALANCED
            if stage.swarm and balanced and stage.chance.random() < SEVERAL_NODES_SHARE:
                served.append(replace(settings, name=NodeName(f"{name}-b")))
            host = Host(self._world, *served)
        self.hosts.append(host)
        return host

    def _settings(self, name: NodeName, index: int) -> Node:
        config = self._stage.config
        if config.mode is AssignmentMode.MODULO:
            return Node(name, 0, "", source_count=self.source_count, node_id=index)
        if config.mode is AssignmentMode.PINNED:
            shards = enumerate(self._stage.log.shards)
            own = [shard for place, shard in shards if place % config.nodes == index]
            return Node(name, 0, "", pinned=dict.fromkeys(own))
        return Node(name, 0, "")

    def heal(self, processes: Collection[Process]) -> None:
        """End those processes that belong to no host, and have all nodes take runs."""
        own = {id(process) for host in self.hosts for process in host.processes()}
        for process in processes:
            # A second process that ticks for some host is a fault, too.
            process.dead = process.dead or id(process) not in own
        for host in self.hosts:
            for name in host.settings:
                host.take_runs(name, accepts_runs=True)

    def return_or_stay_away(self) -> None:
        """Start half of the hosts that are down, and as many as it takes to have a member."""
        down = [
            host for host in self.hosts if host.arrived and not host.up and not host.gone_for_good
        ]
        members = [host for host in self.hosts if host.settings]
        nobody = not any(host.up and not host.leaving for host in members)
        nobody = nobody and all(host.arrived for host in self.hosts)
        for host in down:
            if nobody or not host.settings or self._stage.chance.random() < 0.5:
                host.start()
                nobody = nobody and not host.settings
            else:
                host.gone_for_good = True
        if nobody:
            self.new_host().start()
        for host in self.hosts:
            if host.up and host.server is not None and host.server.dead:
                host.leaving = False
                host.start_server()

    # -- questions ------------------------------------------------------------------------------

    def alive(self) -> list[Host]:
        """Return the hosts that are up and do not stall."""
        return [host for host in self.hosts if host.alive]

    def host_of(self, node: NodeName) -> Host:
        """Return the host of a node."""
        return next(host for host in self.hosts if node in host.settings)

    @override
    def trust_of(self, node: NodeName, incarnation: str, *, ended: bool) -> list[float]:
        return self.host_of(node).trust_windows(node, incarnation, ended=ended)

    @override
    def worked_through(
        self, process: Process, shard: ShardId, start: str | None, end: str | None
    ) -> bool:
        for host in self.hosts:
            for session in host.sessions if isinstance(host, ClientHost) else ():
                if session.process is process:
                    return session.has_done(shard, start, end)
        return True
