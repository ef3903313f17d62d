"""A simulated host: a code server that rebalances and launches, and the runs that consume."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from dagster_leasehold.lease_store.errors import AssignmentConflict, StoreError
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rebalancing import Rebalancer, TickReport
from dagster_leasehold.lease_store.rules.starting_point import pending_bootstraps
from tests.simulation.protocol.host_runs import HostClock, HostRuns
from tests.simulation.protocol.ports import Surroundings
from tests.simulation.protocol.schedule import Process
from tests.simulation.protocol.stage import TICK_S

SHARDS_PER_RUN = 64


class Host:
    """One code server with the nodes that it serves, its clock, and the processes on it.

    Attributes:
        settings: the nodes as its settings have them.
        up: True while it has a process that is not only paused.
        arrived: True once it was first started.
        refused: True if the group refuses the settings of one of its nodes.
        gone_for_good: True if it does not come back.
        leaves_with: the hosts that leave when all of them are ready.
        cursor: the text that travels from each tick of its code server to the next.
        incarnations: under which its nodes beat.
        runs: the runs on it.
        listed_version: the version of the shard list that it brought into the store.
    """

    def __init__(self, world: Surroundings, *settings: Node) -> None:
        stage = world.stage
        self._world = world
        self._stage = stage
        self.name = settings[0].name
        self.settings = {node.name: node for node in settings}
        self.up = False
        self.arrived = False
        self.refused = False
        self.gone_for_good = False
        self.leaving = False
        self.leaves_with: list[Host] = []
        self._ready_to_leave = False
        self.paused_until = 0.0
        self.cursor = ""
        self.incarnations: dict[NodeName, str] = {}
        self.server: Process | None = None
        self.rebalancer: Rebalancer | None = None
        self.listed_version = (-1, -1)
        self.clock = HostClock.drawn(stage)
        self.runs = HostRuns(world, self.clock, lambda: self.leaving)
        self._tick_s = TICK_S
        if stage.chance.random() < stage.rates.uneven_ticks:
            self._tick_s = stage.chance.uniform(1.0, 6.0)
        self._incarnations = 0
        self._registered_as: dict[NodeName, str] = {}

    @property
    def alive(self) -> bool:
        """True if the host counts as a node with complete knowledge."""
        return self.up and self.paused_until <= self._stage.now

    @property
    def reachable(self) -> bool:
        """True if launchers elsewhere can start a run on this host."""
        return self.alive and self.server is not None and not self.server.dead and not self.leaving

    def processes(self) -> list[Process]:
        """Return the host's processes that still run."""
        servers = [self.server] if self.server and not self.server.dead else []
        return [*servers, *(run.process for run in self.runs.alive())]

    def joined(self, members: Mapping[NodeName, Node]) -> bool:
        """Return True if the rows of this host's nodes match its settings."""
        if self.rebalancer is None:
            return False
        incarnations = self.rebalancer.incarnations
        for name, settings in self.settings.items():
            row = members.get(name)
            wanted = replace(settings, incarnation=incarnations.get(name, ""))
            if row is None or replace(row, lease_id=wanted.lease_id) != wanted:
                return False
        return True

    def trust_windows(self, node: NodeName, incarnation: str, *, ended: bool) -> list[float]:
        """Return the virtual times until which each process of an incarnation trusts itself.

        With `ended`, processes that have ended count as well.
        """
        return self.runs.trust_windows(node, incarnation, ended=ended)

    def take_runs(self, name: NodeName, accepts_runs: bool) -> None:
        """Have a node's code server take runs from now on, or none."""
        self.settings[name] = replace(self.settings[name], accepts_runs=accepts_runs)
        if self.rebalancer is not None:
            self.rebalancer.offer(self.settings[name])

    # -- the code server ------------------------------------------------------------------------

    def new_incarnation(self, name: NodeName) -> str:
        """Return a name that no process had before."""
        self._incarnations += 1
        return f"{name}.{self._incarnations}"

    def start(self, *, registers: bool = False) -> None:
        """Start the code server; `registers` adds the node to the group before the first plan."""
        self.up = self.arrived = True
        self.leaving = self._ready_to_leave = False
        self.leaves_with = []
        for name, settings in self.settings.items() if registers else ():
            self._registered_as[name] = self.new_incarnation(name)
            # If it is refused, its code server gets the refusal as well.
            self._world.register(replace(settings, incarnation=self._registered_as[name]))
        self.start_server()

    def start_server(self) -> None:
        """Start only the process that rebalances; runs of a former one continue."""
        server = Process(f"{self.name}.server")
        self.rebalancer = self.new_rebalancer(server)
        self.begin(server, lambda: self._serve(server))

    def begin(self, server: Process, function: Callable[[], None]) -> None:
        """Have a process be the host's server, and continue with a function within a tick."""
        self.server, stage = server, self._stage
        delay_s = stage.chance.uniform(0.1, TICK_S) * stage.unit_s
        stage.schedule.spawn(server, function, delay_s)

    def end(self, server: Process) -> None:
        """Go down for now: the host has left the group."""
        self.up, server.dead = False, True

    def new_rebalancer(self, process: Process) -> Rebalancer:
        """Return a rebalancer as a new process would make it."""
        world = self._world
        registered_as, self._registered_as = self._registered_as, {}
        return world.parts.rebalancer(
            world.connect(process),
            self._stage.key,
            serves=tuple(self.settings),
            timing=self._stage.timing,
            observer=str(self.name),
            incarnation_of=lambda name: registered_as.get(name) or self.new_incarnation(name),
            clock=self.clock,
            settings=self.settings,
        )

    def _serve(self, server: Process) -> None:
        stage = self._stage
        rates, chance = stage.rates, stage.chance
        assert self.rebalancer is not None
        while not self.leaving:
            if not rates.skipped_tick or chance.random() >= rates.skipped_tick or stage.healed:
                self.tick(self.rebalancer)
            stage.sleep(self._tick_s)
        self._leave(server)

    def tick(self, rebalancer: Rebalancer) -> None:
        """Report the shard list where it changed, rebalance, and launch."""
        world = self._world
        try:
            self.list_shards(self.server or Process("sensor"))
            report = rebalancer.tick(self.cursor)
        except StoreError as error:
            world.watch.hear(str(error))
            return
        world.watch.hear(report.remembered, report.explanation)
        self.cursor = report.remembered
        self.incarnations = dict(rebalancer.incarnations)
        self.refused = any(
            isinstance(refusal.error, AssignmentConflict) for refusal in report.refusals
        )
        world.measures.ticked(self.name, report)
        if not self.leaving and not report.snapshot.group.paused:
            self._launch(report)

    def list_shards(self, process: Process) -> None:
        """Carry the shard list into the store where it has changed."""
        version = self._stage.listing_version
        if self.listed_version != version:
            store = self._world.connect(process)
            listing = self._stage.log.listing()
            store.sync_shards(self._stage.key, listing, observer=str(self.name))
            self.listed_version = version

    def _launch(self, report: TickReport) -> None:
        starting = pending_bootstraps(report.snapshot)
        for node, shards in report.owned.items():
            runs = self.runs_of(node)
            replaces: dict[ShardId, str] = {}
            wanted = [
                shard
                for shard in shards
                if shard in report.progress
                and runs.worth_a_run(report.progress[shard], replaces, starting)
            ]
            # A shard that a dead run has open, or that starts elsewhere, needs a run of its own.
            joining = [s for s in wanted if s not in replaces and s not in starting]
            if joining and runs.offer(node, joining):
                wanted = [shard for shard in wanted if shard not in joining]
            if wanted:
                self.launch_for(report, node, tuple(wanted[:SHARDS_PER_RUN]), replaces)

    def runs_of(self, node: NodeName) -> HostRuns:
        """Return the runs of a node that it serves."""
        del node
        return self.runs

    def launch_for(
        self,
        report: TickReport,
        node: NodeName,
        shards: tuple[ShardId, ...],
        replaces: Mapping[ShardId, str],
    ) -> None:
        """Launch a run for a node of whose shards a tick wants some to be read."""
        del report
        self.runs.launch(node, shards, replaces, self.incarnations[node])

    # -- leaving --------------------------------------------------------------------------------

    def all_ready_to_leave(self) -> bool:
        """Return True if all who leave together can leave now."""
        self._ready_to_leave = not self.runs.alive()
        return all(other._ready_to_leave for other in self.leaves_with if other.up)

    def _leave(self, server: Process) -> None:
        """Wait until the runs have released and all who leave together are ready, then leave."""
        stage = self._stage
        assert self.rebalancer is not None
        store = self._world.connect(server)
        waited_s = 0.0
        pause_s = 0.25 * stage.unit_s
        while self.runs.alive() or not self.all_ready_to_leave():
            if waited_s > stage.timing.beat_s * 0.8:
                waited_s = 0.0
                for name, incarnation in self.incarnations.items():
                    with suppress(StoreError):
                        store.beat(stage.key, name, incarnation)
            stage.schedule.sleep(pause_s)
            waited_s += pause_s
        with suppress(StoreError):  # If it fails, the remaining nodes notice the silence.
            self.rebalancer.leave()
        self.end(server)
