"""Failures of hosts and of their processes: crashes, pauses, second processes, early leavers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from dagster_leasehold.lease_store.errors import StoreError
from dagster_leasehold.lease_store.identifiers import ShardId
from tests.simulation.protocol.fleet import Fleet
from tests.simulation.protocol.host import Host
from tests.simulation.protocol.measures import Measures
from tests.simulation.protocol.parts import Run
from tests.simulation.protocol.ports import Surroundings
from tests.simulation.protocol.schedule import Process

HOSTS_MAX = 8


class HostFailures:
    """Has hosts fail, by name or drawn by chance."""

    def __init__(self, world: Surroundings, fleet: Fleet, measures: Measures) -> None:
        self._stage = world.stage
        self._runs = world.runs
        self._fleet = fleet
        self._measures = measures

    @property
    def kinds(self) -> Mapping[str, Callable[[], None]]:
        """The failures that are drawn by chance, by the name of their rate."""
        of_hosts = {
            "crash_host": self._crash_host,
            "crash_server": self._crash_server,
            "pause_host": self._pause_host,
            "leave": self._leave,
            "doubled_tick": self._doubled_tick,
            "manual_run": self._manual_run,
            "unready": self._unready,
        }
        return {
            **{kind: partial(self._to_some_host, happen) for kind, happen in of_hosts.items()},
            "crash_run": self._crash_run,
            "pause_run": self._pause_run,
            "join": self._join,
        }

    # -- by name --------------------------------------------------------------------------------

    def crash(self, host: Host) -> None:
        """Kill every process of a host."""
        for process in host.processes():
            process.dead = True
        host.up = False
        self._measures.lost(host.settings.keys())

    def pause(self, host: Host, seconds: float) -> None:
        """Have a host stall, and continue later as if nothing had been."""
        stage, nodes = self._stage, host.settings.keys()
        host.paused_until = stage.now + seconds
        for process in host.processes():
            process.paused_until = host.paused_until
        if seconds > stage.config.timeout_s:
            self._measures.lost(nodes)
            stage.schedule.call(seconds, lambda: self._measures.returned(nodes))

    def stall(self, process: Process) -> None:
        """Have a process, or the whole host under it, stall before it sees a reply."""
        chance = self._stage.chance
        seconds = chance.uniform(0.1, 3.0) * self._stage.config.timeout_s
        hosts = [host for host in self._fleet.hosts if process in host.processes()]
        if hosts and chance.random() < 0.5:
            self.pause(hosts[0], seconds)
        else:
            self._pause(process, seconds)

    def kill(self, process: Process) -> None:
        """Kill a process; a code server is started again some time later."""
        stage = self._stage
        process.dead = True
        host = next((host for host in self._fleet.hosts if host.server is process), None)
        if host is None:
            return
        self._forget(host)

        def start() -> None:
            if host.up and host.server is process:
                host.leaving = False
                host.start_server()

        stage.schedule.call(stage.chance.uniform(0.1, 10.0) * stage.unit_s, start)

    # -- by chance ------------------------------------------------------------------------------

    def _to_some_host(self, happen: Callable[[Host], None]) -> None:
        if alive := self._fleet.alive():
            happen(self._stage.chance.choice(alive))

    def _some_run(self) -> Run | None:
        alive = [run for run in self._runs.values() if not run.dead]
        return self._stage.chance.choice(alive) if alive else None

    def _crash_host(self, host: Host) -> None:
        stage = self._stage
        self.crash(host)
        self._forget(host)
        if stage.chance.random() < 0.8:
            delay_s = stage.chance.uniform(0.2, 3.0) * stage.config.timeout_s
            stage.schedule.call(delay_s, lambda: self._restart(host))

    def _restart(self, host: Host) -> None:
        if not host.up and not host.gone_for_good and not self._stage.healed:
            host.start()

    def _forget(self, host: Host) -> None:
        """Lose a host's cursor, or a part of it, now and then."""
        chance = self._stage.chance
        if chance.random() < self._stage.rates.forgotten_cursor:
            host.cursor = chance.choice(["", "{", host.cursor[: len(host.cursor) // 2]])

    def _crash_server(self, host: Host) -> None:
        """Kill the process that rebalances alone; the runs continue without it."""
        if host.server is not None:
            self.kill(host.server)

    def _crash_run(self) -> None:
        run = self._some_run()
        if run is not None:
            run.process.dead = True

    def _pause_host(self, host: Host) -> None:
        timeouts = self._stage.chance.choice([0.2, 0.5, 0.8, 1.0, 1.3, 3.0])
        self.pause(host, timeouts * self._stage.config.timeout_s)

    def _pause_run(self) -> None:
        """Have one process stall while the rest of its host continues."""
        if any(not run.dead for run in self._runs.values()):
            seconds = self._stage.chance.uniform(0.1, 3.0) * self._stage.config.timeout_s
            run = self._some_run()
            assert run is not None
            self._pause(run.process, seconds)

    def _pause(self, process: Process, seconds: float) -> None:
        process.paused_until = max(process.paused_until, self._stage.now + seconds)

    def _join(self) -> None:
        if sum(host.up for host in self._fleet.hosts) < HOSTS_MAX:
            self._fleet.new_host().start(registers=self._stage.chance.random() < 0.5)

    def _leave(self, host: Host) -> None:
        works = host.settings and host.server is not None and not host.server.dead
        if works and len(self._fleet.alive()) > 1:
            host.leaving = True

    def _unready(self, host: Host) -> None:
        """Have a host's code server take no runs for a while, or take them again."""
        if host.settings:
            name = self._stage.chance.choice(list(host.settings))
            host.take_runs(name, accepts_runs=not host.settings[name].accepts_runs)

    def _doubled_tick(self, host: Host) -> None:
        """Have a second process tick for a node, with the same memory as the first had."""
        stage = self._stage
        if host.rebalancer is None or host.leaving:
            return
        if host.settings and not host.incarnations:
            return
        process = Process(f"{host.name}.double")
        double = host.new_rebalancer(process)
        cursor = host.cursor

        def tick() -> None:
            for _ in range(2):
                try:
                    double.tick(cursor)
                except StoreError:
                    return
                stage.sleep(stage.chance.uniform(0, 10))

        stage.schedule.spawn(process, tick)

    def _manual_run(self, host: Host) -> None:
        """Materialize a shard on a node manually, even on a node that does not hold it."""
        stage = self._stage
        if host.incarnations and not host.leaving:
            shard = stage.chance.choice(list(stage.log.shards) or [ShardId("0")])
            if shard in {lease.shard for lease in stage.store.snapshot(stage.key).shards}:
                node = stage.chance.choice(list(host.incarnations))
                host.runs.ask_back(shard)
                host.runs.launch(node, (shard,), {}, host.incarnations[node], follows=False)
