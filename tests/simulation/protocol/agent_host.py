"""Simulated hosts of a deployment with agents: one plans and launches, the others beat and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from typing_extensions import override

from dagster_leasehold.lease_store.errors import AssignmentConflict, StoreError, UserMistake
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.member import Member
from dagster_leasehold.lease_store.node_planning import NodePlanner
from dagster_leasehold.lease_store.rebalancing import Rebalancer, TickReport
from dagster_leasehold.lease_store.roles.groups import Groups
from tests.simulation.protocol.host import Host
from tests.simulation.protocol.host_runs import HostRuns
from tests.simulation.protocol.ports import Surroundings
from tests.simulation.protocol.schedule import Process
from tests.simulation.protocol.stage import TICK_S

ADDRESS = "deployment"
KEEP_S = 1.0
SPARK_START_S = 20.0


class SensorHost(Host):
    """The host of a deployment's sensors: without a node, it serves those with its address.

    Args:
        world: the world around it.
        host_of: finds the host of a node.
    """

    def __init__(self, world: Surroundings, host_of: Callable[[NodeName], Host]) -> None:
        super().__init__(world, Node(NodeName("sensors"), 0, ""))
        self.settings = {}
        self._host_of = host_of

    @override
    def joined(self, members: Mapping[NodeName, Node]) -> bool:
        return True

    @override
    def start(self, *, registers: bool = False) -> None:
        super().start()

    @override
    def new_rebalancer(self, process: Process) -> Rebalancer:
        world = self._world
        return world.parts.rebalancer(
            world.connect(process),
            self._stage.key,
            serves=(),
            timing=self._stage.timing,
            observer=str(self.name),
            incarnation_of=self.new_incarnation,
            clock=self.clock,
            beats=False,
            serving=lambda nodes: tuple(
                sorted(node.name for node in nodes if node.member and node.address == ADDRESS)
            ),
        )

    @override
    def runs_of(self, node: NodeName) -> HostRuns:
        return self._host_of(node).runs

    @override
    def launch_for(
        self,
        report: TickReport,
        node: NodeName,
        shards: tuple[ShardId, ...],
        replaces: Mapping[ShardId, str],
    ) -> None:
        # The run starts on the node's own host, where that is up.
        row = next(each for each in report.snapshot.nodes if each.name == node)
        host = self._host_of(node)
        if host.reachable:
            host.runs.launch(node, shards, replaces, row.incarnation)


class AgentHost(Host):
    """A node's host: its agent keeps it a member and plans for it, and its runs consume."""

    def __init__(self, world: Surroundings, settings: Node) -> None:
        super().__init__(world, replace(settings, address=ADDRESS))
        self._published = False
        self._member: Member | None = None
        self._warm_at = 0.0

    @property
    @override
    def reachable(self) -> bool:
        # An agent whose name another process has is not published.
        return self._published and super().reachable

    @override
    def joined(self, members: Mapping[NodeName, Node]) -> bool:
        wanted = self._row()
        row = members.get(self.name)
        return row is not None and replace(row, lease_id=wanted.lease_id) == wanted

    @override
    def start(self, *, registers: bool = False) -> None:
        super().start()  # An agent registers itself.

    @override
    def start_server(self) -> None:
        # It ends its predecessor's runs, and continues under the same incarnation. Where the note
        # of that was lost, it can do neither.
        stage = self._stage
        forgotten = stage.chance.random() < stage.rates.forgotten_cursor
        if forgotten or not self.incarnations:
            self.incarnations = {self.name: self.new_incarnation(self.name)}
        else:
            self.runs.kill()
        process = Process(f"{self.name}.agent")
        self._published = False
        self._warm_at = self.clock() + stage.chance.uniform(0, SPARK_START_S) * stage.unit_s
        self.begin(process, lambda: self._keep(process))
        self._stage.schedule.spawn(process, lambda: self._plan(process), KEEP_S)

    def _row(self) -> Node:
        settings = self.settings[self.name]
        return replace(settings, incarnation=self.incarnations.get(self.name, ""))

    def _new_member(self, store: Groups) -> Member:
        self._published = False
        return Member(store, self._stage.key, self._row(), clock=self.clock)

    def _keep(self, process: Process) -> None:
        stage = self._stage
        store = self._world.connect(process)
        member = self._new_member(store)
        while not self.leaving or self.runs.alive():
            self._member = member
            if not self._keep_once(member):
                # A refused agent ends, and its supervisor starts the next.
                stage.sleep(TICK_S)
                member = self._new_member(store)
            stage.sleep(KEEP_S)
        while not self.all_ready_to_leave():
            stage.sleep(KEEP_S)
        try:
            member.leave()
        except StoreError as error:  # The remaining nodes notice the silence.
            self._world.watch.hear(str(error))
        self.end(process)

    def _plan(self, process: Process) -> None:
        """Plan for the node on a separate thread, while the agent lives."""
        stage, world = self._stage, self._world
        planner = NodePlanner(
            world.connect(process),
            stage.key,
            self.name,
            observer=process.name,
            clock=self.clock,
            rebalancer=world.parts.rebalancer,
        )
        while not process.dead:
            stage.sleep(KEEP_S)
            if self._member is None or not self._member.joined:
                continue
            try:
                report = planner.plan()
            except StoreError as error:
                world.watch.hear(str(error))
            else:
                world.watch.hear(report.explanation if report else "")

    def _keep_once(self, member: Member) -> bool:
        """Beat if that is due; return True if the node may be a member."""
        self.refused = False
        member.cold = self.clock() < self._warm_at
        try:
            accepts_runs = self.settings[self.name].accepts_runs
            message = member.keep_alive(accepts_runs=accepts_runs, joins=self._published)
            self._published = self._published or not member.contested
        except UserMistake as error:
            self.refused = isinstance(error, AssignmentConflict)
            self._world.watch.hear(str(error))
            return False
        except StoreError as error:
            message = str(error)
        self._world.watch.hear(message)
        return True
