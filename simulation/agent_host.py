"""Simulated hosts of a deployment with agents: one plans and launches, the others beat and run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.agent_membership import AgentMembership
from dagster_leasehold.lease_store.errors import AssignmentConflict, StoreError, UserMistake
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rebalancing import Rebalancer
from dagster_leasehold.lease_store.store import GroupsAndNodes
from dagster_leasehold.lease_store.tick_report import TickReport
from dagster_leasehold.simulation.host import TICK_S, Host, Run
from dagster_leasehold.simulation.schedule import Process

if TYPE_CHECKING:
    from dagster_leasehold.simulation.world import World

ADDRESS = "deployment"
KEEP_S = 1.0


class SensorHost(Host):
    """Where a deployment's sensors tick: it has no node, and serves those that have its address."""

    def __init__(self, world: World) -> None:
        super().__init__(world, Node(NodeName("sensors"), 0, ""))
        self.settings = {}

    def joined(self, members: Mapping[NodeName, Node]) -> bool:
        """See `Host.joined`; there is nothing to join."""
        del members
        return True

    def start(self, *, registers: bool = False) -> None:
        """See `Host.start`."""
        del registers
        super().start()

    def new_rebalancer(self, process: Process) -> Rebalancer:
        """See `Host.new_rebalancer`; nobody beats here."""
        world = self._world
        return world.parts.rebalancer(
            world.connect(process),
            world.key,
            serves=(),
            timing=self.timing,
            observer=str(self.name),
            incarnation_of=self.new_incarnation,
            clock=self.clock,
            beats=False,
            serving=lambda nodes: tuple(
                sorted(node.name for node in nodes if node.member and node.address == ADDRESS)
            ),
        )

    def runs_of(self, node: NodeName) -> list[Run]:
        """See `Host.runs_of`."""
        return self._world.host_of(node).runs

    def launch_for(
        self,
        report: TickReport,
        node: NodeName,
        shards: tuple[ShardId, ...],
        replaces: Mapping[ShardId, str],
    ) -> None:
        """See `Host.launch_for`: the run starts on the node's own host, where that is up."""
        row = next(each for each in report.snapshot.nodes if each.name == node)
        host = self._world.host_of(node)
        if host.found():
            host.launch(node, shards, replaces, incarnation=row.incarnation)


class AgentHost(Host):
    """A node's host: its agent keeps it a member, and its runs consume."""

    def __init__(self, world: World, settings: Node) -> None:
        super().__init__(world, replace(settings, address=ADDRESS))
        self._published = False

    def found(self) -> bool:
        """See `Host.found`; an agent whose name somebody else has is not to be found."""
        return self._published and super().found()

    def joined(self, members: Mapping[NodeName, Node]) -> bool:
        """See `Host.joined`."""
        wanted = self._row()
        row = members.get(self.name)
        return row is not None and replace(row, lease_id=wanted.lease_id) == wanted

    def start(self, *, registers: bool = False) -> None:
        """See `Host.start`; an agent registers itself."""
        del registers
        super().start()

    def start_server(self) -> None:
        """Start the agent: it ends its predecessor's runs, and goes on under the same incarnation.

        Where the note of that was lost, it can do neither.
        """
        world = self._world
        chance = world.schedule.chance
        forgotten = chance.random() < world.rates.forgotten_cursor
        if forgotten or not self.incarnations:
            self.incarnations = {self.name: self.new_incarnation(self.name)}
        else:
            for run in self.runs:
                run.process.dead = True
        process = Process(f"{self.name}.agent")
        self.server, self._published = process, False
        delay_s = chance.uniform(0.1, TICK_S) * world.unit_s
        world.schedule.spawn(process, lambda: self._keep(process), delay_s)

    def _row(self) -> Node:
        settings = self.settings[self.name]
        return replace(settings, incarnation=self.incarnations.get(self.name, ""))

    def _new_membership(self, store: GroupsAndNodes) -> AgentMembership:
        self._published = False
        return AgentMembership(store, self._world.key, self._row(), self.clock)

    def _keep(self, process: Process) -> None:
        world = self._world
        store = world.connect(process)
        membership = self._new_membership(store)
        while not self.leaving or any(not run.dead for run in self.runs):
            if not self._keep_once(membership):
                # An agent that is refused ends; whoever supervises it starts the next.
                world.schedule.sleep(TICK_S * world.unit_s)
                membership = self._new_membership(store)
            world.schedule.sleep(KEEP_S * world.unit_s)
        while not world.all_ready_to_leave(self):
            world.schedule.sleep(KEEP_S * world.unit_s)
        try:
            membership.leave()
        except StoreError as error:  # Those who stay notice the silence.
            world.watch.said(str(error))
        self.up = False
        process.dead = True

    def _keep_once(self, membership: AgentMembership) -> bool:
        """Beat if that is due; whether the node may be a member."""
        world = self._world
        self.refused = False
        try:
            accepts_runs = self.settings[self.name].accepts_runs
            said = membership.keep(accepts_runs=accepts_runs, joins=self._published)
            self._published = self._published or not membership.contested
        except UserMistake as error:
            self.refused = isinstance(error, AssignmentConflict)
            world.watch.said(str(error))
            return False
        except StoreError as error:
            said = str(error)
        world.watch.said(said)
        return True
