"""One seed's world: hosts, a log and a store under virtual time, from arrival to convergence."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from typing_extensions import override

from dagster_leasehold.lease_store.errors import AssignmentConflict
from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.simulation.configuration import SimulationConfig
from dagster_leasehold.simulation.fleet import Fleet
from dagster_leasehold.simulation.host_failures import HostFailures
from dagster_leasehold.simulation.incidents import Incidents, SettingsChanges
from dagster_leasehold.simulation.measures import Convergence, Measures
from dagster_leasehold.simulation.parts import Parts, Run
from dagster_leasehold.simulation.schedule import Process
from dagster_leasehold.simulation.seam import Network
from dagster_leasehold.simulation.stage import TICK_S, Stage
from dagster_leasehold.simulation.waiting_runs import Waits, WishesByChance
from dagster_leasehold.simulation.watch import Watch

HANDOFF_LIMIT_S = 60.0
RECORDED_SHARDS_MAX = 64
STEADY_TICKS = 4
WEIGHTED_SHARE = 0.15
"""The share of a swarm's groups that level the load of nodes, and not the number of shards."""


class World(Network):
    """Everything of one seed, and the port through which hosts and their calls reach the rest.

    A safety phase goes on for a number of store calls; then everything heals, and the group has
    to converge within a bound and stay as it is.
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
        """Go on until a condition holds; it is costly to check, so that it is checked each tick."""
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
        until = self.stage.now + STEADY_TICKS * TICK_S * self.stage.unit_s
        self._run_by_ticks(lambda: self.stage.now >= until or self._failed())
        if self.measures.moves != moves:
            moved = self.measures.moves - moves
            self.stage.violated(f"I6: {moved} moves in a settled group")

    def _administer(self, verb: str, *args: Any, **options: Any) -> None:
        """Call the store for somebody outside the simulation: at once, and without faults."""
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
