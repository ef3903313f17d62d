"""What happens to the world: planned events, and whatever the seed's fault rates bring."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.errors import LeaseholdError, StoreError
from dagster_leasehold.lease_store.group_rows import Snapshot
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.reopening import Reopening
from dagster_leasehold.simulation.configuration import EventKind, FaultRates
from dagster_leasehold.simulation.host import Host
from dagster_leasehold.simulation.parts import TimeTravel
from dagster_leasehold.simulation.schedule import Process

if TYPE_CHECKING:
    from dagster_leasehold.simulation.world import World

HOSTS_MAX = 8
SHARDS_MAX = 50
BACKUP_EVERY = 50
APPEND_EVERY = 20
PLANNED_PAUSE_TIMEOUTS = 2.0


class Incidents:
    """Carries out planned events at their step, and random ones by the seed's rates."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._planned = sorted(world.config.events, key=lambda event: -event.step)
        self._backup: object = None
        self._random: list[tuple[float, Callable[[], None]]] = []
        total = 0.0
        for rate in fields(FaultRates):
            happen = getattr(self, f"_{rate.name}", None)
            probability = getattr(world.rates, rate.name)
            if happen is not None and probability:
                total += probability
                self._random.append((total, happen))

    def step(self) -> None:
        """One more store call is about to be made."""
        world = self._world
        if world.healed:
            return
        while self._planned and self._planned[-1].step <= world.calls:
            event = self._planned.pop()
            # Later, so that the caller is not killed in the middle of making it happen.
            world.schedule.call(0.0, lambda event=event: self._plan(event.kind, event.count))
        chance = world.schedule.chance
        if self._random:
            if world.calls % BACKUP_EVERY == 0 and world.rates.time_travel:
                self._backup = world.store.backup() if isinstance(world.store, TimeTravel) else None
            drawn = chance.random()
            for up_to, happen in self._random:
                if drawn < up_to:
                    world.schedule.call(0.0, lambda happen=happen: self._unless_healed(happen))
                    break
        if world.calls % APPEND_EVERY == 0 and (shards := world.log.open_shards()[:64]):
            world.log.append(chance.choice(shards), chance.randint(1, 30))

    def _unless_healed(self, happen: Callable[[], None]) -> None:
        """What was about to happen when everything healed happens no more."""
        if not self._world.healed:
            happen()

    # -- planned --------------------------------------------------------------------------------

    def _plan(self, kind: EventKind, count: int) -> None:
        world = self._world
        working = [host for host in world.hosts if host.alive and not host.leaving]
        if kind is EventKind.JOIN:
            # All before the first of them plans.
            for host in [world.new_host() for _ in range(count)]:
                host.start(registers=True)
        elif kind in (EventKind.SPLIT, EventKind.MERGE):
            for _ in range(count):
                self._split() if kind is EventKind.SPLIT else self._merge()
        elif kind is EventKind.OUTAGE:
            world.store_down_until = world.schedule.now + count
        else:
            # The last ones, so that who remains is the same whatever the seed; one has to.
            chosen = working[1:][-count:]
            for host in chosen:
                host.gone_for_good = kind is not EventKind.PAUSE
                if kind is EventKind.LEAVE:
                    host.leaving, host.leaves_with = True, chosen
                elif kind is EventKind.CRASH:
                    self.crash(host)
                else:
                    self.pause(host, PLANNED_PAUSE_TIMEOUTS * world.config.timeout_s)

    # -- hosts ----------------------------------------------------------------------------------

    def crash(self, host: Host) -> None:
        """Every process of a host is gone."""
        for process in host.processes():
            process.dead = True
        host.up = False
        self._world.lost(host)

    def pause(self, host: Host, seconds: float) -> None:
        """A host stands still, and goes on later as if nothing had been."""
        world = self._world
        host.paused_until = world.schedule.now + seconds
        for process in host.processes():
            process.paused_until = host.paused_until
        if seconds > world.config.timeout_s:
            world.lost(host)
            world.schedule.call(seconds, lambda: world.returned(host))

    def stall(self, process: Process) -> None:
        """A process, or the whole host under it, stands still before it sees a reply."""
        world = self._world
        seconds = world.schedule.chance.uniform(0.1, 3.0) * world.config.timeout_s
        hosts = [host for host in world.hosts if process in host.processes()]
        if hosts and world.schedule.chance.random() < 0.5:
            self.pause(hosts[0], seconds)
        else:
            process.paused_until = max(process.paused_until, world.schedule.now + seconds)

    def _some_host(self) -> Host | None:
        working = [host for host in self._world.hosts if host.alive]
        return self._world.schedule.chance.choice(working) if working else None

    def _crash_host(self) -> None:
        world, host = self._world, self._some_host()
        if host is None:
            return
        self.crash(host)
        self._forget(host)
        if world.schedule.chance.random() < 0.8:
            delay_s = world.schedule.chance.uniform(0.2, 3.0) * world.config.timeout_s
            world.schedule.call(delay_s, lambda: self._restart(host))

    def _restart(self, host: Host) -> None:
        if not host.up and not host.gone_for_good and not self._world.healed:
            host.start()

    def _forget(self, host: Host) -> None:
        chance = self._world.schedule.chance
        if chance.random() < self._world.rates.forgotten_cursor:
            host.cursor = chance.choice(["", "{", host.cursor[: len(host.cursor) // 2]])

    def _crash_server(self) -> None:
        """The process that rebalances dies alone; the runs go on without it."""
        host = self._some_host()
        if host is not None and host.server is not None:
            self.kill(host.server)

    def kill(self, process: Process) -> None:
        """A process dies; a code server is started again some time later."""
        world = self._world
        process.dead = True
        host = next((host for host in world.hosts if host.server is process), None)
        if host is None:
            return
        self._forget(host)

        def start() -> None:
            if host.up and host.server is process:
                host.leaving = False
                host.start_server()

        world.schedule.call(world.schedule.chance.uniform(0.1, 10.0) * world.unit_s, start)

    def _crash_run(self) -> None:
        runs = [run for run in self._world.runs.values() if not run.dead]
        if runs:
            self._world.schedule.chance.choice(runs).process.dead = True

    def _pause_host(self) -> None:
        host = self._some_host()
        if host is not None:
            timeouts = self._world.schedule.chance.choice([0.2, 0.5, 0.8, 1.0, 1.3, 3.0])
            self.pause(host, timeouts * self._world.config.timeout_s)

    def _pause_run(self) -> None:
        """One process stands still while the rest of its host goes on."""
        world = self._world
        runs = [run for run in world.runs.values() if not run.dead]
        if runs:
            seconds = world.schedule.chance.uniform(0.1, 3.0) * world.config.timeout_s
            process = world.schedule.chance.choice(runs).process
            process.paused_until = max(process.paused_until, world.schedule.now + seconds)

    def _join(self) -> None:
        if sum(host.up for host in self._world.hosts) < HOSTS_MAX:
            self._world.new_host().start(registers=self._world.schedule.chance.random() < 0.5)

    def _leave(self) -> None:
        host = self._some_host()
        if host is None or not host.settings or host.server is None or host.server.dead:
            return
        if sum(other.alive for other in self._world.hosts) > 1:
            host.leaving = True

    def _unready(self) -> None:
        """A host's code server takes no runs for a while, or does again."""
        host = self._some_host()
        if host is not None and host.settings:
            name = self._world.schedule.chance.choice(list(host.settings))
            host.take_runs(name, accepts_runs=not host.settings[name].accepts_runs)

    def _doubled_tick(self) -> None:
        """A second process ticks for the same node, with the same memory as the first had."""
        world, host = self._world, self._some_host()
        if host is None or host.rebalancer is None or host.leaving:
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
                world.schedule.sleep(world.schedule.chance.uniform(0, 10) * world.unit_s)

        world.schedule.spawn(process, tick)

    def _manual_run(self) -> None:
        """Somebody materializes a shard on a node, whether the node has it or not."""
        world, host = self._world, self._some_host()
        if host is not None and host.incarnations and not host.leaving:
            shard = world.schedule.chance.choice(list(world.log.shards) or [ShardId("0")])
            if shard in {lease.shard for lease in self._snapshot().shards}:
                host.launch(world.schedule.chance.choice(list(host.incarnations)), (shard,), {})

    # -- the store ------------------------------------------------------------------------------

    def _store_down(self) -> None:
        world = self._world
        seconds = world.schedule.chance.uniform(0.1, 2.0) * world.config.timeout_s
        world.store_down_until = world.schedule.now + seconds

    def _time_travel(self) -> None:
        """A failover to a store that had not got the last commits."""
        if self._backup is not None and isinstance(self._world.store, TimeTravel):
            self._world.watch.check_history()
            self._world.store.restore(self._backup)
            self._world.watch.restored()

    def _wall_clock_step(self) -> None:
        self._world.wall_clock_offset_s += self._world.schedule.chance.uniform(-1e5, 1e5)

    # -- shards and the group -------------------------------------------------------------------

    def _snapshot(self) -> Snapshot:
        return self._world.store.snapshot(self._world.key)

    def _split(self) -> None:
        log, chance = self._world.log, self._world.schedule.chance
        if (shards := log.open_shards()) and len(log.shards) < max(SHARDS_MAX, len(shards) * 4):
            for child in log.split(chance.choice(shards)):
                log.append(child, chance.randint(0, 20))

    def _merge(self) -> None:
        log, chance = self._world.log, self._world.schedule.chance
        if len(shards := log.open_shards()) > 1:
            left, right = chance.sample(shards, 2)
            log.append(log.merge(left, right), chance.randint(0, 20))

    def _force_checkpoint(self) -> None:
        world, snapshot = self._world, self._snapshot()
        chance = world.schedule.chance
        read = [lease for lease in snapshot.shards if lease.check_point is not None]
        if not read:
            return
        lease = chance.choice(read)
        drawn = chance.randint(0, int(lease.check_point or 0))
        # Mostly where a batch begins; elsewhere the store has to refuse.
        borders = [batch.start for batch in world.store.batches(world.key, lease.shard)]
        cursor = borders[drawn % len(borders)] if borders and drawn % 10 else str(drawn)
        self._administer(
            "force_checkpoint", world.key, lease.shard, cursor, observer="operator",
            reason="read again", reopen=list(Reopening)[int(chance.random() * len(Reopening))],
        )  # fmt: skip

    def _pause_group(self) -> None:
        group = self._snapshot().group
        self._administer("update_group", replace(group, paused=not group.paused), observer="op")

    def _change_order(self) -> None:
        group = self._snapshot().group
        self._administer("update_group", replace(group, ordered=not group.ordered), observer="op")

    def _administer(self, verb: str, *args: object, **options: object) -> None:
        with suppress(LeaseholdError):  # A refusal is an answer, too.
            self._world.administer(verb, *args, **options)
