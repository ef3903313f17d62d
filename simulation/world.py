"""One seed's world: hosts, a log and a store under virtual time, from arrival to convergence."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from dagster_leasehold.lease_store.errors import AssignmentConflict
from dagster_leasehold.lease_store.group_rows import AssignmentMode, Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.rules.planning import plan
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_weights import planning_snapshot
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.tick_report import TickReport
from dagster_leasehold.simulation.agent_host import AgentHost, SensorHost
from dagster_leasehold.simulation.client_host import ClientHost
from dagster_leasehold.simulation.configuration import (
    Arrival,
    FaultRates,
    Faults,
    SimulationConfig,
)
from dagster_leasehold.simulation.host import TICK_S, Host, Run
from dagster_leasehold.simulation.incidents import Incidents
from dagster_leasehold.simulation.minimum import FewestMoves
from dagster_leasehold.simulation.parts import Parts
from dagster_leasehold.simulation.schedule import Process, Schedule
from dagster_leasehold.simulation.settings_changes import SettingsChanges
from dagster_leasehold.simulation.shard_log import ShardLog
from dagster_leasehold.simulation.watch import Watch

KEY = GroupKey.parse("simulated", "stream")
UNIT_TIMEOUT_S = 20.0
HANDOFF_LIMIT_S = 60.0
RECORDED_SHARDS_MAX = 64
STEADY_TICKS = 4
WEIGHTED_SHARE = 0.15
"""How many of a swarm's groups level the load of their nodes instead of the number of shards."""
SEVERAL_NODES_SHARE = 0.2
"""How many of a swarm's code servers serve two nodes instead of one."""
CLIENTS_SHARE = 0.3
"""How many of a swarm's groups have plain clients among their members."""
CLIENT_SHARE = 0.4
"""How many of such a group's members are plain clients."""
AGENTS_SHARE = 0.3
"""How many of a swarm's groups are served by one deployment with agents."""
ARRIVAL_TICKS = 3


class World:
    """Everything of one seed.

    A safety phase goes on for a number of store calls; then everything heals, and the group has
    to converge within a bound and stay as it is.
    """

    def __init__(self, config: SimulationConfig, seed: int, parts: Parts) -> None:
        chance = random.Random(seed)
        self.config = config
        self.parts = parts
        self.key = KEY
        self.schedule = Schedule(chance)
        swarm = config.faults is Faults.SWARM
        self.rates = FaultRates.swarm(chance) if swarm else FaultRates()
        # All other durations keep their proportion to T.
        self.unit_s = config.timeout_s / UNIT_TIMEOUT_S
        self.store = parts.store(self._wall_clock)
        self.watch = Watch(self)
        self.log = ShardLog(config.shards)
        self.hosts: list[Host] = []
        self.runs: dict[str, Run] = {}
        self.written: dict[str, tuple[ShardId, str, str]] = {}
        self.statements: Counter[str] = Counter()
        self.calls = 0
        self.healed = False
        self.restores = 0
        self.store_down_until = 0.0
        self.wall_clock_offset_s = 0.0
        self.takeovers: list[float] = []
        self.incidents = Incidents(self)
        self.settings_changes = SettingsChanges(self)
        self._lost_at: dict[ShardId, float] = {}
        self._rounds: Counter[NodeName] = Counter()
        self._connected: list[Process] = []
        self._settled_at = -1
        group = Group(
            KEY,
            ordered=config.ordered or (swarm and chance.random() < 0.7),
            timeout_s=config.timeout_s,
            handoff_limit_s=HANDOFF_LIMIT_S * self.unit_s,
            assignment=config.mode,
            weighted=swarm and chance.random() < WEIGHTED_SHARE,
        )
        pinned = config.mode is AssignmentMode.PINNED
        self._has_clients = swarm and chance.random() < CLIENTS_SHARE and not pinned
        self._has_agents = swarm and chance.random() < AGENTS_SHARE
        self.fewest = FewestMoves()
        self.store.create_group(group)

    # -- from start to end ----------------------------------------------------------------------

    def run(self) -> None:
        """Arrival, safety phase, healing, convergence, steadiness."""
        self._arrive()
        self.schedule.run(lambda: self.calls >= self.config.steps or self._failed())
        self.watch.check_history()
        self._heal()
        bound_s = self.schedule.now + self._bound_s()
        left: list[str] = []

        def settled() -> bool:
            nonlocal left
            if self._failed() or self.schedule.now > bound_s:
                return True
            left = self.unsettled()
            return not left

        self._run_by_ticks(settled)
        left = self.unsettled()
        if left and not self._failed():
            self.watch.violated(f"I5: not settled {self._bound_s():.0f} s after healing: {left[0]}")
        self._check_steady()
        self.watch.check_history()
        self.schedule.unwind()

    def _failed(self) -> bool:
        return bool(self.watch.violations)

    def _arrive(self) -> None:
        config = self.config
        self.administer("sync_shards", KEY, self.log.listing(), observer="simulation")
        for shard in list(self.log.shards.values())[:RECORDED_SHARDS_MAX]:
            self.log.append(shard, self.schedule.chance.randint(0, 60))
        if self._has_agents:
            self.hosts.append(SensorHost(self))
            self.hosts[0].start()
        hosts = [self.new_host() for _ in range(config.nodes)]
        if config.arrive is Arrival.TOGETHER:
            for host in hosts:
                host.start(registers=True)
            return
        for index, host in enumerate(hosts):
            delay_s = index * ARRIVAL_TICKS * TICK_S * self.unit_s
            self.schedule.call(delay_s, lambda host=host: host.start(registers=True))

    def _heal(self) -> None:
        """All faults stop, and whoever shall come back does."""
        self.healed = True
        self.rates = FaultRates(slow_batch=self.rates.slow_batch)
        self.store_down_until = 0.0
        chance = self.schedule.chance
        own = {id(process) for host in self.hosts for process in host.processes()}
        for process in self._connected:
            # A second process that ticks for some host is a fault, too.
            process.dead = process.dead or id(process) not in own
        for host in self.hosts:
            for name in host.settings:
                host.take_runs(name, accepts_runs=True)
        self.settings_changes.settle()
        group = self.store.pulse(KEY).group
        if group.paused:
            self.administer("update_group", replace(group, paused=False), observer="simulation")
        down = [
            host for host in self.hosts if host.arrived and not host.up and not host.gone_for_good
        ]
        members = [host for host in self.hosts if host.settings]
        nobody = not any(host.up and not host.leaving for host in members)
        nobody = nobody and all(host.arrived for host in self.hosts)
        for host in down:
            if nobody or not host.settings or chance.random() < 0.5:
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

    def _bound_s(self) -> float:
        """How long convergence may take: eviction, a hand-over, and reading what is left."""
        batches = sum(math.ceil(shard.end / 20) for shard in self.log.shards.values())
        lineage = len(self.log.shards)
        # The longest pause is three timeouts, and one more goes by until all have heard of its end.
        units = 600.0 + 4 * UNIT_TIMEOUT_S + 90.0 * min(lineage + batches, 60) + 10.0 * lineage
        units += sum(not host.arrived for host in self.hosts) * ARRIVAL_TICKS * TICK_S
        return self.config.timeout_s + units * self.unit_s

    def _run_by_ticks(self, done: Callable[[], bool]) -> None:
        """Go on until a condition that is costly to ask, so that it is asked about once a tick."""
        while True:
            asked_at = self.schedule.now + TICK_S * self.unit_s
            self.schedule.call(TICK_S * self.unit_s, lambda: None)
            self.schedule.run(lambda at=asked_at: self.schedule.now >= at or self._failed())
            if done():
                return

    def _check_steady(self) -> None:
        """I6: a settled group does not move."""
        if self._failed():
            return
        moves = self.watch.moves
        until = self.schedule.now + STEADY_TICKS * TICK_S * self.unit_s
        self._run_by_ticks(lambda: self.schedule.now >= until or self._failed())
        if self.watch.moves != moves:
            self.watch.violated(f"I6: {self.watch.moves - moves} moves in a settled group")

    # -- what is left to do ---------------------------------------------------------------------

    def unsettled(self) -> list[str]:
        """What keeps the group from being settled, as sentences; an empty list if nothing does."""
        snapshot = planning_snapshot(self.store, KEY)
        hosts = {name: host for host in self.hosts if host.up for name in host.settings}
        members = {node.name: node for node in snapshot.nodes if node.member}
        left = [f"{host.name} has not come yet" for host in self.hosts if not host.arrived]
        left += [f"{name} is dead, but still a member" for name in members if name not in hosts]
        for host in hosts.values():
            if self._not_heard_of(host):
                left.append(f"{host.name} stands still, or has just gone on")
        for name, host in hosts.items():
            # Who has a number that the count leaves out stays outside for good.
            outside = host.refused and name not in members and not _fits(host.settings[name])
            if not outside and not host.joined(members):
                left.append(f"{name} has not joined as it is now")
        if any(host.up and host.leaving for host in self.hosts):
            left.append("a node is leaving")
        known = {lease.shard: lease for lease in snapshot.shards}
        left += [f"shard {shard} is not known" for shard in self.log.shards if shard not in known]
        decided = plan(snapshot, live=members)
        left += [str(action) for action in decided.actions]
        balanced = self.config.mode is AssignmentMode.BALANCED
        if balanced and decided.spread > 1 and not snapshot.group.weighted:
            left.append(f"the counts differ by {decided.spread}")
        unassigned = {shard.shard for shard in decided.unassigned}
        for shard, lease in known.items():
            entry = self.log.shards[shard]
            if lease.state is ShardState.TRANSFER:
                left.append(f"shard {shard} is in transfer")
            elif lease.state is ShardState.OVER or (not balanced and not lease.state.held):
                continue
            elif shard not in unassigned and lease.state is not ShardState.ALREADY_ALLOC:
                left.append(f"shard {shard} is {lease.state}")
            elif int(lease.check_point or 0) < entry.end:
                left.append(f"shard {shard} is read up to {lease.check_point} of {entry.end}")
            elif entry.read_only:
                left.append(f"shard {shard} has been read, but is not over")
        return left

    def _not_heard_of(self, host: Host) -> bool:
        """Whether others may still take the host for dead.

        1. A host stands still for almost T, goes on, and the group looks settled.
        2. Its own tick comes a moment later, and an eviction that is right comes before it.
        3. So the group is settled only T after the last of its processes went on.
        """
        since = max(self.schedule.now - self.config.timeout_s, 0.0)
        return any(process.paused_until > since for process in host.processes())

    # -- told by the others ---------------------------------------------------------------------

    def connect(self, process: Process) -> LeaseStore:
        """A process's connection to the store."""
        self._connected.append(process)
        return cast("LeaseStore", self.parts.seam(self, process))

    def administer(self, verb: str, *args: Any, **options: Any) -> object:
        """A verb that somebody outside the simulation uses: at once, and without faults."""
        outcome = getattr(self.store, verb)(*args, **options)
        self.watch.after(verb, Process("administrator"), args, options, outcome)
        return outcome

    def count(self, verb: str) -> None:
        """A process is about to call the store; planned events and random faults come here."""
        self.calls += 1
        self.statements[verb] += 1
        self.incidents.step()
        self.settings_changes.step()

    def restart_rounds(self) -> None:
        """Something changed: planning rounds count from here."""
        self._rounds.clear()

    def ticked(self, host: Host, report: TickReport) -> None:
        """A tick ended; its planning rounds count from the last change on."""
        self._rounds[host.name] += report.rounds
        host.refused = any(
            isinstance(refusal.error, AssignmentConflict) for refusal in report.refusals
        )
        if report.generation == self._settled_at or report.plan.actions:
            return
        if any(lease.state is ShardState.TRANSFER for lease in report.snapshot.shards):
            return
        self._settled(report.generation, report.live)

    def _settled(self, generation: int, live: Collection[NodeName]) -> None:
        """Take note of a settled group, unless it is not what the tick took it for any more."""
        snapshot = planning_snapshot(self.store, KEY)
        buried = all(node.name in live for node in snapshot.nodes if node.member)
        if snapshot.group.generation != generation or not buried:
            return
        if plan(snapshot, live=live).actions:
            return
        self._settled_at = generation
        missing = self.fewest.settled(snapshot, live, self.watch.moves)
        if missing:
            self.watch.violated(f"moves: {missing}")

    def restored(self) -> None:
        """The store lost its last commits: owners changed that nobody moved."""
        self.restores += 1
        self._settled_at = -1
        self.fewest.restart(self.store.snapshot(KEY), self.watch.moves)
        self.restart_rounds()

    @property
    def listing_version(self) -> tuple[int, int]:
        """Changes when the shard list has to be carried into the store again.

        A deployment does that all the time; here it is done after a change only, to save time: of
        the list, or of a store that may have lost it, even while it was on its way.
        """
        return self.log.version, self.restores

    @property
    def rounds(self) -> int:
        """Planning rounds that some code server needed after the last change."""
        return max(self._rounds.values(), default=0)

    def taken_over(self, shard: ShardId, owner: NodeName) -> None:
        """A shard has a new owner: how long was it without, if its node had failed?"""
        del owner
        lost_at = self._lost_at.pop(shard, None)
        if lost_at is not None:
            self.takeovers.append(self.schedule.now - lost_at)

    def lost(self, host: Host) -> None:
        """A host has just failed: from now on its shards wait for a new owner."""
        for lease in self.store.snapshot(KEY).shards:
            if lease.consumer_owner in host.settings and lease.state.held:
                self._lost_at.setdefault(lease.shard, self.schedule.now)
        self.restart_rounds()

    def returned(self, host: Host) -> None:
        """A host is back: what it still owns was not lost after all."""
        for lease in self.store.snapshot(KEY).shards:
            if lease.consumer_owner in host.settings:
                self._lost_at.pop(lease.shard, None)
        self.restart_rounds()

    def trust_of(self, name: NodeName, incarnation: str, *, ended: bool) -> list[float]:
        """See `Host.trust_windows`."""
        return self.host_of(name).trust_windows(name, incarnation, ended=ended)

    def worked_through(
        self, process: Process, shard: ShardId, start: str | None, end: str | None
    ) -> bool:
        """Whether a client's user has processed `[start, end)`; True where no client is asked."""
        for host in self.hosts:
            for session in host.sessions if isinstance(host, ClientHost) else ():
                if session.process is process:
                    return session.has_done(shard, start, end)
        return True

    def host_of(self, name: NodeName) -> Host:
        """The host of a node."""
        return next(host for host in self.hosts if name in host.settings)

    def all_ready_to_leave(self, host: Host) -> bool:
        """Whether all who leave together can leave now."""
        host.ready_to_leave = all(run.dead for run in host.runs)
        return all(other.ready_to_leave for other in host.leaves_with if other.up)

    def new_host(self) -> Host:
        """One more host, not started yet; its assignment settings follow from its number."""
        index = sum(bool(host.settings) for host in self.hosts)
        # Names that differ only in case: ids are compared byte for byte.
        swarm = self.config.faults is Faults.SWARM
        upper = swarm and index % 2 == 1
        name = NodeName(f"NODE-{index - 1}" if upper else f"node-{index}")
        settings = Node(name, 0, "")
        if self.config.mode is AssignmentMode.MODULO:
            settings = replace(
                settings, source_count=self.settings_changes.source_count, node_id=index
            )
        elif self.config.mode is AssignmentMode.PINNED:
            own = [
                shard
                for place, shard in enumerate(self.log.shards)
                if place % self.config.nodes == index
            ]
            settings = replace(settings, pinned=dict.fromkeys(own))
        if self._has_clients and self.schedule.chance.random() < CLIENT_SHARE:
            self.hosts.append(ClientHost(self, settings))
            return self.hosts[-1]
        if self._has_agents:
            self.hosts.append(AgentHost(self, settings))
            return self.hosts[-1]
        served = [settings]
        balanced = self.config.mode is AssignmentMode.BALANCED
        if swarm and balanced and self.schedule.chance.random() < SEVERAL_NODES_SHARE:
            served.append(replace(settings, name=NodeName(f"{name}-b")))
        host = Host(self, *served)
        self.hosts.append(host)
        return host

    def _wall_clock(self) -> datetime:
        """The store's time of day, which steps; for the journal's readers only."""
        seconds = self.schedule.now + self.wall_clock_offset_s
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def _fits(node: Node) -> bool:
    """Whether a node's number is one of its count's."""
    return node.source_count is None or (node.node_id or 0) < node.source_count
