"""One seed's world: hosts, a log and a store under virtual time, from arrival to convergence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from typing_extensions import override

from dagster_leasehold.lease_store.errors import AssignmentConflict
from dagster_leasehold.lease_store.group_rows import AssignmentMode, Group, Node, Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rebalancing import REREAD_S, planning_snapshot
from dagster_leasehold.lease_store.rules.planning import plan
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.store import LeaseStore
from tests.simulation.protocol.configuration import SimulationConfig
from tests.simulation.protocol.fleet import ARRIVAL_TICKS, Fleet
from tests.simulation.protocol.host import Host
from tests.simulation.protocol.host_failures import HostFailures
from tests.simulation.protocol.incidents import Incidents, SettingsChanges
from tests.simulation.protocol.measures import Measures
from tests.simulation.protocol.parts import Parts, Run
from tests.simulation.protocol.schedule import Process
from tests.simulation.protocol.seam import Network
from tests.simulation.protocol.stage import TICK_S, UNIT_TIMEOUT_S, Stage
from tests.simulation.protocol.waiting_runs import Waits, WishesByChance
from tests.simulation.protocol.watch import Watch

HANDOFF_LIMIT_S = 60.0
RECORDED_SHARDS_MAX = 64
STEADY_TICKS = 4
WEIGHTED_SHARE = 0.15
"""The share of a swarm's groups that level the load of nodes, and not the number of shards."""


class Convergence:
    """Compares a group with how it has to be in the end."""

    def __init__(self, stage: Stage, fleet: Fleet) -> None:
        self._stage = stage
        self._fleet = fleet

    def bound_s(self) -> float:
        """Return the longest time to converge: an eviction, a hand-over, and reading the rest."""
        stage, shards = self._stage, self._stage.log.shards
        batches = sum(math.ceil(shard.end / 20) for shard in shards.values())
        # The longest pause is three timeouts, and one more passes until all have noticed its end.
        units = 600.0 + 4 * UNIT_TIMEOUT_S + 90.0 * min(len(shards) + batches, 60)
        units += 10.0 * len(shards)
        units += sum(not host.arrived for host in self._fleet.hosts) * ARRIVAL_TICKS * TICK_S
        return stage.config.timeout_s + units * stage.unit_s

    def unsettled(self) -> list[str]:
        """Return sentences on why the group is not settled."""
        snapshot = planning_snapshot(self._stage.store, self._stage.key)
        members = {node.name: node for node in snapshot.nodes if node.member}
        return [*self._hosts(members), *self._shards(snapshot, members)]

    def _hosts(self, members: Mapping[NodeName, Node]) -> Iterator[str]:
        hosts = {name: host for host in self._fleet.hosts if host.up for name in host.settings}
        for host in self._fleet.hosts:
            if not host.arrived:
                yield f"{host.name} has not come yet"
        for name in members:
            if name not in hosts:
                yield f"{name} is dead, but still a member"
        for host in hosts.values():
            if self._not_heard_of(host):
                yield f"{host.name} stalls, or has just continued"
        for name, host in hosts.items():
            # Who has a number that the count leaves out stays outside for good.
            outside = host.refused and name not in members and not _fits(host.settings[name])
            if not outside and not host.joined(members):
                yield f"{name} has not joined as it is now"
        if any(host.up and host.leaving for host in self._fleet.hosts):
            yield "a node is leaving"

    def _shards(self, snapshot: Snapshot, members: Mapping[NodeName, Node]) -> Iterator[str]:
        leases = {lease.shard: lease for lease in snapshot.shards}
        for shard in self._stage.log.shards:
            if shard not in leases:
                yield f"shard {shard} is not known"
        decided = plan(snapshot, live=members)
        yield from map(str, decided.actions)
        balanced = self._stage.config.mode is AssignmentMode.BALANCED
        if balanced and decided.spread > 1 and not snapshot.group.weighted:
            yield f"the counts differ by {decided.spread}"
        unassigned = {shard.shard for shard in decided.unassigned}
        for shard, lease in leases.items():
            if lease.state.held or (balanced and lease.state is not ShardState.OVER):
                yield from self._shard(lease, assigned=shard not in unassigned)

    def _shard(self, lease: ShardLease, *, assigned: bool) -> Iterator[str]:
        shard: ShardId = lease.shard
        entry = self._stage.log.shards[shard]
        if lease.state is ShardState.TRANSFER:
            yield f"shard {shard} is in transfer"
        elif assigned and lease.state is not ShardState.ALREADY_ALLOC:
            yield f"shard {shard} is {lease.state}"
        elif int(lease.check_point or 0) < entry.end:
            yield f"shard {shard} is read up to {lease.check_point} of {entry.end}"
        elif entry.read_only:
            yield f"shard {shard} has been read, but is not over"

    def _not_heard_of(self, host: Host) -> bool:
        """Return True if others can still consider the host dead.

        1. A host stalls for almost T, continues, and the group looks settled. 2. Its own tick comes
        a moment later, and a correct eviction comes before it. 3. So the group is settled only T
        after the last of its processes continued.
        """
        since = max(self._stage.now - self._stage.config.timeout_s, 0.0)
        return any(process.paused_until > since for process in host.processes())


def _fits(node: Node) -> bool:
    """Return True if a node's number is one of its count's."""
    return node.source_count is None or (node.node_id or 0) < node.source_count


class World(Network):
    """Everything of one seed, and the port through which hosts and their calls reach the rest.

    A phase of faults lasts for a number of store calls. Then faults stop, and the group has to
    converge within a bound and stay unchanged.
    """

    def __init__(self, config: SimulationConfig, seed: int, parts: Parts) -> None:
        stage = self.stage = Stage(config, seed, parts.store)
        self.parts = parts
        self.runs: dict[str, Run] = {}
        self._connected: list[Process] = []
        group = Group(
            stage.key,
            ordered=config.ordered or (stage.swarm and stage.chance.random() < 0.7),
            timeout_s=config.timeout_s,
            handoff_limit_s=HANDOFF_LIMIT_S * stage.unit_s,
            assignment=config.mode,
            weighted=stage.swarm and stage.chance.random() < WEIGHTED_SHARE,
        )
        self._fleet = Fleet(self)
        self.measures = Measures(stage)
        self.watch = Watch(stage, self._fleet, self.measures)
        self._failures = HostFailures(self, self._fleet, self.measures)
        self._incidents = Incidents(
            stage, self._fleet, self._failures, self.watch, self._administer
        )
        self._settings_changes = SettingsChanges(stage, self._fleet, self._failures.kill)
        self._wishes = WishesByChance(stage, self._waits)
        self._convergence = Convergence(stage, self._fleet)
        stage.store.create_group(group)

    # -- from start to end ----------------------------------------------------------------------

    def run(self) -> None:
        """Play arrival, safety phase, healing, convergence and steadiness."""
        stage = self.stage
        self._arrive()
        stage.schedule.run(lambda: stage.calls >= stage.config.steps or self._failed())
        self.watch.check_history()
        self._heal()
        until_s = stage.now + self._convergence.bound_s()

        def settled() -> bool:
            return self._failed() or stage.now > until_s or not self._convergence.unsettled()

        self._run_by_ticks(settled)
        left = self._convergence.unsettled()
        if left and not self._failed():
            bound_s = self._convergence.bound_s()
            stage.violated(f"I5: not settled {bound_s:.0f} s after healing: {left[0]}")
        self._check_steady()
        self.watch.check_history()
        stage.schedule.unwind()

    def _waits(self) -> list[Waits]:
        return [run.waits for run in self.runs.values() if run.waits and not run.dead]

    def _failed(self) -> bool:
        return bool(self.stage.violations)

    def _arrive(self) -> None:
        stage = self.stage
        self._administer("sync_shards", stage.key, stage.log.listing(), observer="simulation")
        for shard in list(stage.log.shards.values())[:RECORDED_SHARDS_MAX]:
            stage.log.append(shard, stage.chance.randint(0, 60))
        self._fleet.arrive()

    def _heal(self) -> None:
        """Stop all faults, and have hosts come back that are to come back."""
        self.stage.heal()
        self._fleet.heal(self._connected)
        self._settings_changes.settle()
        group = self.stage.store.pulse(self.stage.key).group
        if group.paused:
            self._administer("update_group", replace(group, paused=False), observer="simulation")
        self._fleet.return_or_stay_away()

    def _run_by_ticks(self, done: Callable[[], bool]) -> None:
        """Continue until a condition holds, which is checked once a tick because it is costly."""
        stage = self.stage
        while True:
            asked_at = stage.now + TICK_S * stage.unit_s
            stage.schedule.call(TICK_S * stage.unit_s, lambda: None)
            stage.schedule.run(lambda at=asked_at: stage.now >= at or self._failed())
            if done():
                return

    def _check_steady(self) -> None:
        """I6: a settled group does not move."""
        if self._failed():
            return
        moves = self.measures.moves
        if getattr(self.parts.rebalancer, "follows", False):
            # A planner that follows the group's changes compares its picture this often.
            reread_s = self.stage.now + REREAD_S * 1.1
            self._run_by_ticks(lambda: self.stage.now >= reread_s or self._failed())
            self.measures.compares = True
        until = self.stage.now + STEADY_TICKS * TICK_S * self.stage.unit_s
        self._run_by_ticks(lambda: self.stage.now >= until or self._failed())
        if self.measures.moves != moves:
            moved = self.measures.moves - moves
            self.stage.violated(f"I6: {moved} moves in a settled group")

    def _administer(self, verb: str, *args: Any, **options: Any) -> None:
        """Call the store from outside the simulation: at once, and without faults."""
        getattr(self.stage.store, verb)(*args, **options)
        self.watch.after(verb, Process("administrator"), args)

    # -- the port of hosts ----------------------------------------------------------------------

    def connect(self, process: Process) -> LeaseStore:
        """Return a process's connection to the store."""
        self._connected.append(process)
        return cast("LeaseStore", self.parts.seam(self, process))

    def register(self, node: Node) -> None:
        """Make a node a member at once and without faults, unless its settings contradict."""
        with suppress(AssignmentConflict):
            self._administer("register", self.stage.key, node, observer="simulation")

    # -- the port of their calls ----------------------------------------------------------------

    @override
    def called(self, verb: str) -> None:
        self.stage.count(verb)
        self._incidents.step()
        self._settings_changes.step()
        self._wishes.step()

    @override
    def changed(self, verb: str, process: Process, args: tuple[Any, ...]) -> None:
        self.watch.after(verb, process, args)

    @override
    def kill(self, process: Process) -> None:
        self._failures.kill(process)

    @override
    def stall(self, process: Process) -> None:
        self._failures.stall(process)
