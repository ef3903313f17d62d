"""A simulated host: a code server that rebalances and launches, and the runs that consume."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.errors import AssignmentConflict, StoreError
from dagster_leasehold.lease_store.group_rows import AssignmentMode, Node, Timing
from dagster_leasehold.lease_store.heartbeat import Heartbeat
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchCommit, BatchStatistics, DataFile
from dagster_leasehold.lease_store.rebalancing import Rebalancer
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.rules.starting_point import pending_bootstraps
from dagster_leasehold.lease_store.shard_rows import Progress
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.tick_report import TickReport
from dagster_leasehold.simulation.schedule import Process
from dagster_leasehold.simulation.shard_log import ShardLog

if TYPE_CHECKING:
    from dagster_leasehold.simulation.world import World

TICK_S = 5.0
SHARDS_PER_RUN = 64
BATCH_RECORDS_MAX = 20
RUN_BUDGET_S = 60.0


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """What a simulated sweep made of one shard's range."""

    attempt: str
    files: tuple[DataFile, ...]
    statistics: BatchStatistics


@dataclass(eq=False)
class Run:
    """A run that consumes shards of one node: what its consumer is given to work with.

    Attributes:
        process: what can be killed and paused.
        store: the run's connection to the store.
        key: the group.
        node: the node that it consumes for.
        incarnation: under which the node is kept alive.
        shards: what it was launched to consume.
        replaces: runs that its launcher takes for ended, by shard.
        heartbeat: whether the node's leases may be relied on.
        clock: the host's monotonic clock.
        log: the records.
        read: the sweep over ranges: takes the time that reading and writing take.
        stop_requested: whether the run was asked to stop.
        pinned: whether its group assigns by name, so that its shards may have bootstrap cursors.
        acknowledge: told of each batch that the run takes for committed.
        say: told of what the run reports in words.
    """

    process: Process
    store: LeaseStore
    key: GroupKey
    node: NodeName
    incarnation: str
    shards: tuple[ShardId, ...]
    replaces: Mapping[ShardId, str]
    heartbeat: Heartbeat
    clock: Clock
    log: ShardLog
    read: Callable[[Iterable[tuple[ShardId, str, str]]], dict[ShardId, WrittenRange]]
    stop_requested: Callable[[], bool]
    pinned: bool
    acknowledge: Callable[[Sequence[BatchCommit]], None]
    say: Callable[[str], None]

    @property
    def name(self) -> str:
        """The run's unique id."""
        return self.process.name

    @property
    def dead(self) -> bool:
        """Whether it was killed, or has ended."""
        return self.process.dead


class Host:
    """One code server with the nodes that it serves, its clock, and the processes on it."""

    def __init__(self, world: World, *settings: Node) -> None:
        chance = world.schedule.chance
        self._world = world
        self.name = settings[0].name
        self.settings = {node.name: node for node in settings}
        self.up = False
        self.arrived = False
        self.refused = False
        self.gone_for_good = False
        self.leaving = False
        self.leaves_with: list[Host] = []
        self.ready_to_leave = False
        self.paused_until = 0.0
        self.cursor = ""
        self.incarnations: dict[NodeName, str] = {}
        self.server: Process | None = None
        self.rebalancer: Rebalancer | None = None
        self.runs: list[Run] = []
        self.listed_version = (-1, -1)
        self._clock_offset = chance.uniform(0, 1e6)
        self._clock_rate = 1.0 + world.rates.clock_rate_error * chance.uniform(-1, 1)
        self._tick_s = TICK_S
        if chance.random() < world.rates.uneven_ticks:
            self._tick_s = chance.uniform(1.0, 6.0)
        self._incarnations = 0
        self._registered_as: dict[NodeName, str] = {}

    def clock(self) -> float:
        """The host's monotonic clock: its own zero, and its own idea of a second."""
        return self._clock_offset + self._world.schedule.now * self._clock_rate

    def virtual(self, reading: float) -> float:
        """The virtual time of a reading of this host's clock."""
        return (reading - self._clock_offset) / self._clock_rate

    @property
    def alive(self) -> bool:
        """Whether it would count as a node to somebody who knew everything."""
        return self.up and self.paused_until <= self._world.schedule.now

    def processes(self) -> list[Process]:
        """The host's processes that still run."""
        servers: list[Process] = [self.server] if self.server else []
        processes = [*servers, *(run.process for run in self.runs)]
        return [process for process in processes if not process.dead]

    def joined(self, members: Mapping[NodeName, Node]) -> bool:
        """Whether the group's rows say of this host's nodes what it would say itself."""
        if self.rebalancer is None:
            return False
        incarnations = self.rebalancer.incarnations
        for name, settings in self.settings.items():
            row = members.get(name)
            wanted = replace(settings, incarnation=incarnations.get(name, ""))
            if row is None or replace(row, lease_id=wanted.lease_id) != wanted:
                return False
        return True

    def trust_windows(self, name: NodeName, incarnation: str, *, ended: bool) -> list[float]:
        """Until when, in virtual time, each process of a node's incarnation trusts itself.

        With `ended`, processes that have ended count as well: their window was given to them all
        the same, and only chance ended them before it did.
        """
        return [
            self.virtual(run.heartbeat.trusted_until)
            for run in self._world.runs.values()
            if (run.node, run.incarnation) == (name, incarnation)
            and (ended or not run.dead)
            and not run.heartbeat.lost.is_set()
        ]

    def take_runs(self, name: NodeName, accepts_runs: bool) -> None:
        """From now on a node's code server takes runs, or none."""
        self.settings[name] = replace(self.settings[name], accepts_runs=accepts_runs)
        if self.rebalancer is not None:
            self.rebalancer.offer(self.settings[name])

    # -- the code server ------------------------------------------------------------------------

    def new_incarnation(self, name: NodeName) -> str:
        """A name that no process had before."""
        self._incarnations += 1
        return f"{name}.{self._incarnations}"

    def start(self, *, registers: bool = False) -> None:
        """Start the code server; `registers` has the node in the group before anybody plans."""
        world = self._world
        self.up = self.arrived = True
        self.leaving = self.ready_to_leave = False
        self.leaves_with = []
        for name, settings in self.settings.items() if registers else ():
            self._registered_as[name] = self.new_incarnation(name)
            node = replace(settings, incarnation=self._registered_as[name])
            with suppress(AssignmentConflict):  # Its code server is told so as well.
                world.administer("register", world.key, node, observer="simulation")
        self.start_server()

    def start_server(self) -> None:
        """Start only the process that rebalances; runs of a former one go on."""
        world = self._world
        self.server = Process(f"{self.name}.server")
        self.rebalancer = self.new_rebalancer(self.server)
        delay_s = world.schedule.chance.uniform(0.1, TICK_S) * world.unit_s
        server = self.server
        world.schedule.spawn(server, lambda: self._serve(server), delay_s)

    def new_rebalancer(self, process: Process) -> Rebalancer:
        """A rebalancer as a new process would make it."""
        world = self._world
        registered_as, self._registered_as = self._registered_as, {}
        return world.parts.rebalancer(
            world.connect(process),
            world.key,
            serves=tuple(self.settings),
            timing=self.timing,
            observer=str(self.name),
            incarnation_of=lambda name: registered_as.get(name) or self.new_incarnation(name),
            clock=self.clock,
            settings=self.settings,
        )

    @property
    def timing(self) -> Timing:
        """The protocol's durations."""
        timeout_s = self._world.config.timeout_s
        return Timing(timeout_s, timeout_s / 3)

    def _serve(self, server: Process) -> None:
        world = self._world
        rates, chance = world.rates, world.schedule.chance
        assert self.rebalancer is not None
        while not self.leaving:
            if not rates.skipped_tick or chance.random() >= rates.skipped_tick or world.healed:
                self.tick(self.rebalancer)
            world.schedule.sleep(self._tick_s * world.unit_s)
        self._leave(server)

    def tick(self, rebalancer: Rebalancer) -> None:
        """One tick: report the shard list where it changed, rebalance, launch."""
        world = self._world
        try:
            version = world.listing_version
            if self.listed_version != version:
                store = world.connect(self.server or Process("sensor"))
                store.sync_shards(world.key, world.log.listing(), observer=str(self.name))
                self.listed_version = version
            report = rebalancer.tick(self.cursor)
        except StoreError as error:
            world.watch.said(str(error))
            return
        world.watch.said(report.remembered, report.explanation)
        self.cursor = report.remembered
        self.incarnations = dict(rebalancer.incarnations)
        world.ticked(self, report)
        if not self.leaving:
            self._launch(report)

    def _launch(self, report: TickReport) -> None:
        if report.snapshot.group.paused:
            return
        self.runs = [run for run in self.runs if not run.dead]
        starting = pending_bootstraps(report.snapshot)
        for node, shards in report.owned.items():
            busy = {shard for run in self.runs_of(node) if not run.dead for shard in run.shards}
            replaces: dict[ShardId, str] = {}
            wanted = [
                shard
                for shard in shards
                if shard in report.progress
                and self._worth_a_run(report.progress[shard], busy, replaces, starting)
            ]
            if wanted:
                self.launch_for(report, node, tuple(wanted[:SHARDS_PER_RUN]), replaces)

    def runs_of(self, node: NodeName) -> list[Run]:
        """The runs that were launched for a node, some of which may have ended."""
        del node
        return self.runs

    def found(self) -> bool:
        """Whether those who launch runs elsewhere know where this host's are started."""
        return self.alive and self.server is not None and not self.server.dead and not self.leaving

    def launch_for(
        self,
        report: TickReport,
        node: NodeName,
        shards: tuple[ShardId, ...],
        replaces: Mapping[ShardId, str],
    ) -> None:
        """Launch a run for a node that a tick found to have something to read."""
        del report
        self.launch(node, shards, replaces)

    def _worth_a_run(
        self,
        progress: Progress,
        busy: set[ShardId],
        replaces: dict[ShardId, str],
        starting: Collection[ShardId],
    ) -> bool:
        """Whether a shard has something to read and nobody who reads it."""
        world = self._world
        if progress.consumer_run:
            run = world.runs.get(progress.consumer_run)
            mistaken = world.schedule.chance.random() < world.rates.wrong_verdict / 10
            if run is not None and not run.dead and not mistaken:
                return False
            replaces[progress.shard] = progress.consumer_run
        elif progress.shard in busy:
            return False
        shard = world.log.shards[progress.shard]
        starts = progress.shard in starting
        return starts or shard.read_only or shard.end > int(progress.check_point or 0)

    # -- runs -----------------------------------------------------------------------------------

    def launch(
        self,
        node: NodeName,
        shards: tuple[ShardId, ...],
        replaces: Mapping[ShardId, str],
        incarnation: str = "",
    ) -> None:
        """Start a run that consumes shards for a node, some time from now."""
        world, incarnation = self._world, incarnation or self.incarnations[node]
        process = Process(f"run-{len(world.runs) + 1}")
        store = world.connect(process)
        run = Run(
            process=process,
            store=store,
            key=world.key,
            node=node,
            incarnation=incarnation,
            shards=shards,
            replaces=dict(replaces),
            heartbeat=world.parts.heartbeat(
                store, world.key, node, incarnation, self.timing, self.clock
            ),
            clock=self.clock,
            log=world.log,
            read=lambda ranges: self._read(process, ranges),
            stop_requested=lambda: self.leaving,
            pinned=world.config.mode is AssignmentMode.PINNED,
            acknowledge=lambda commits: world.watch.acknowledge(process, commits),
            say=world.watch.said,
        )
        world.runs[run.name] = run
        self.runs.append(run)
        delay_s = world.schedule.chance.uniform(0.5, 2.0) * world.unit_s
        world.schedule.spawn(process, lambda: self._work(run), delay_s)

    def _work(self, run: Run) -> None:
        world = self._world
        try:
            pause_s = run.heartbeat.beat()
            world.watch.check_renewed(run.node, run.incarnation)
            world.schedule.spawn(run.process, lambda: self._beat(run), pause_s)
            world.parts.consume(run)
        except StoreError as error:
            world.watch.said(str(error))  # A run that cannot go on ends; its launcher sees that.
        finally:
            world.watch.said(run.heartbeat.reason)
            run.process.dead = True

    def _beat(self, run: Run) -> None:
        world = self._world
        while not run.heartbeat.lost.is_set():
            pause_s = run.heartbeat.beat()
            world.watch.check_renewed(run.node, run.incarnation)
            if not run.heartbeat.trusted:
                return
            world.schedule.sleep(pause_s)

    def _read(
        self, process: Process, ranges: Iterable[tuple[ShardId, str, str]]
    ) -> dict[ShardId, WrittenRange]:
        """Read and write: it takes its time, and its files belong to this attempt alone."""
        world = self._world
        chance = world.schedule.chance
        seconds = chance.uniform(0.2, 2.0)
        if chance.random() < world.rates.slow_batch:
            seconds = chance.uniform(2.0, 90.0)
        world.schedule.sleep(seconds * world.unit_s)
        results: dict[ShardId, WrittenRange] = {}
        for shard, start, end in ranges:
            attempt = f"{process.name}/{len(world.written)}"
            path = f"{attempt}/{shard}.parquet"
            assert path not in world.written
            world.written[path] = (shard, start, end)
            records = int(end) - int(start)
            results[shard] = WrittenRange(
                attempt, (DataFile(path, records, records),), BatchStatistics(records=records)
            )
        return results

    # -- leaving --------------------------------------------------------------------------------

    def _leave(self, server: Process) -> None:
        """Wait until the runs have let go and those who leave along are ready, then leave."""
        world = self._world
        assert self.rebalancer is not None
        store = world.connect(server)
        waited_s = 0.0
        pause_s = 0.25 * world.unit_s
        while any(not run.dead for run in self.runs) or not world.all_ready_to_leave(self):
            if waited_s > self.timing.beat_s * 0.8:
                waited_s = 0.0
                for name, incarnation in self.incarnations.items():
                    with suppress(StoreError):
                        store.beat(world.key, name, incarnation)
            world.schedule.sleep(pause_s)
            waited_s += pause_s
        with suppress(StoreError):  # Where it fails, those who stay notice the silence.
            self.rebalancer.leave()
        self.up = False
        server.dead = True
