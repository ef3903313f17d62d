"""Incidents of the world: planned events, and random faults by the seed's rates.

Operators change the settings of a deployment and restart its code servers one after the other, in
any order. Here this happens only in swarms, to modulo and pinned groups.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace

from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.group_rows import AssignmentMode, Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.reopening import Reopening
from tests.simulation.protocol.configuration import EventKind, FaultRates
from tests.simulation.protocol.fleet import Fleet
from tests.simulation.protocol.host import Host
from tests.simulation.protocol.host_failures import HostFailures
from tests.simulation.protocol.parts import TimeTravel
from tests.simulation.protocol.schedule import Process
from tests.simulation.protocol.stage import Stage
from tests.simulation.protocol.watch import Watch

SHARDS_MAX = 50
BACKUP_EVERY = 50
APPEND_EVERY = 20
PLANNED_PAUSE_TIMEOUTS = 2.0
RATE = 0.004
"""The probability of a change of settings, per store call."""
COUNT_MAX = 8
DELAY_TIMEOUTS_MAX = 3.0
BORDER_SHARE = 0.8


class SettingsChanges:
    """Changes the settings of nodes now and then.

    Args:
        stage: the stage.
        fleet: the nodes' hosts.
        kill: kills a process that has old settings; it is started again with the new ones.
    """

    def __init__(self, stage: Stage, fleet: Fleet, kill: Callable[[Process], None]) -> None:
        self._stage = stage
        self._fleet = fleet
        self._kill = kill
        self._happens = stage.swarm and stage.config.mode is not AssignmentMode.BALANCED

    def step(self) -> None:
        """Change something, or nothing: one more store call is about to be made."""
        stage, chance = self._stage, self._stage.chance
        if not self._happens or stage.healed or chance.random() >= RATE:
            return
        if stage.config.mode is AssignmentMode.MODULO:
            self._fleet.source_count = chance.randint(1, COUNT_MAX)
            for host in self._fleet.hosts:
                delay_s = chance.uniform(0, DELAY_TIMEOUTS_MAX) * stage.config.timeout_s
                stage.schedule.call(delay_s, lambda host=host: self._unless_healed(host))
        elif hosts := [host for host in self._fleet.hosts if host.settings]:
            host = chance.choice(hosts)
            stage.schedule.call(0.0, lambda: self._pin(host))

    def settle(self) -> None:
        """Give all nodes their final settings when faults stop.

        A cursor inside a batch is refused at every run; an operator who reads that reverts it.
        """
        for host in self._fleet.hosts:
            self._resize(host)
            pinned = {name: node for name, node in host.settings.items() if node.pinned}
            self._change(host, {name: self._sound(node) for name, node in pinned.items()})

    def _sound(self, node: Node) -> Node:
        """Return a node without the cursors that no run could take."""
        stage = self._stage
        rows = {row.shard: row for row in stage.store.snapshot(stage.key).shards}
        pinned = dict(node.pinned or {})
        for shard, cursor in pinned.items():
            borders = {batch.start for batch in stage.store.batches(stage.key, shard)}
            row = rows.get(shard)
            if row is None or cursor not in {row.bootstrap, *borders}:
                pinned[shard] = None
        return replace(node, pinned=pinned)

    def _unless_healed(self, host: Host) -> None:
        if not self._stage.healed:
            self._resize(host)

    def _resize(self, host: Host) -> None:
        if self._stage.config.mode is AssignmentMode.MODULO:
            count = self._fleet.source_count
            resized = {
                name: replace(node, source_count=count) for name, node in host.settings.items()
            }
            self._change(host, resized)

    def _pin(self, host: Host) -> None:
        """Have one of a node's shards begin elsewhere: mostly at the border of a batch."""
        stage, chance = self._stage, self._stage.chance
        node = host.settings[host.name]
        if stage.healed or not node.pinned:
            return
        shard = chance.choice(list(node.pinned))
        borders = [batch.start for batch in stage.store.batches(stage.key, shard)]
        cursor = str(chance.randint(0, 40))
        if borders and chance.random() < BORDER_SHARE:
            cursor = chance.choice(borders)
        pinned: dict[ShardId, str | None] = {**node.pinned, shard: cursor}
        self._change(host, {host.name: replace(node, pinned=pinned)})

    def _change(self, host: Host, settings: dict[NodeName, Node]) -> None:
        """Take new settings; a process that was started with the old ones is started again."""
        if settings.items() <= host.settings.items():
            return
        host.settings.update(settings)
        if host.up and host.server is not None and not host.server.dead and not host.leaving:
            self._kill(host.server)


class Incidents:
    """Carries out planned events at their step, and random ones by the seed's rates.

    Args:
        stage: the stage.
        fleet: the hosts.
        failures: carries out failures of hosts.
        watch: checks a store before and after it loses its last commits.
        administer: calls the store as an operator does.
    """

    def __init__(
        self,
        stage: Stage,
        fleet: Fleet,
        failures: HostFailures,
        watch: Watch,
        administer: Callable[..., object],
    ) -> None:
        self._stage = stage
        self._fleet = fleet
        self._failures = failures
        self._watch = watch
        self._administer = administer
        self._planned = sorted(stage.config.events, key=lambda event: -event.step)
        self._backup: object = None
        self._random: list[tuple[float, Callable[[], None]]] = []
        kinds = {
            **failures.kinds,
            "store_down": self._store_down,
            "time_travel": self._time_travel,
            "wall_clock_step": self._wall_clock_step,
            "split": self._split,
            "merge": self._merge,
            "force_checkpoint": self._force_checkpoint,
            "pause_group": self._pause_group,
            "change_order": self._change_order,
        }
        total = 0.0
        for rate in fields(FaultRates):
            probability = getattr(stage.rates, rate.name)
            if rate.name in kinds and probability:
                total += probability
                self._random.append((total, kinds[rate.name]))

    def step(self) -> None:
        """Have something happen, or nothing: one more store call is about to be made."""
        stage = self._stage
        if stage.healed:
            return
        while self._planned and self._planned[-1].step <= stage.calls:
            event = self._planned.pop()
            # Later, so that the caller is not killed in the middle of making it happen.
            stage.schedule.call(0.0, lambda event=event: self._plan(event.kind, event.count))
        chance = stage.chance
        if self._random:
            if stage.calls % BACKUP_EVERY == 0 and stage.rates.time_travel:
                self._backup = stage.store.backup() if isinstance(stage.store, TimeTravel) else None
            drawn = chance.random()
            for up_to, happen in self._random:
                if drawn < up_to:
                    stage.schedule.call(0.0, lambda happen=happen: self._unless_healed(happen))
                    break
        if stage.calls % APPEND_EVERY == 0 and (shards := stage.log.open_shards()[:64]):
            stage.log.append(chance.choice(shards), chance.randint(1, 30))

    def _unless_healed(self, happen: Callable[[], None]) -> None:
        """Drop an incident that was about to happen when everything healed."""
        if not self._stage.healed:
            happen()

    def _plan(self, kind: EventKind, count: int) -> None:
        stage = self._stage
        if kind is EventKind.JOIN:
            # All before the first of them plans.
            for host in [self._fleet.new_host() for _ in range(count)]:
                host.start(registers=True)
        elif kind in (EventKind.SPLIT, EventKind.MERGE):
            for _ in range(count):
                self._split() if kind is EventKind.SPLIT else self._merge()
        elif kind is EventKind.OUTAGE:
            stage.store_down_until = stage.now + count
        else:
            self._plan_failures(kind, count)

    def _plan_failures(self, kind: EventKind, count: int) -> None:
        working = [host for host in self._fleet.alive() if not host.leaving]
        # The last ones, so that the same ones remain for every seed; one has to.
        chosen = working[1:][-count:]
        for host in chosen:
            host.gone_for_good = kind is not EventKind.PAUSE
            if kind is EventKind.LEAVE:
                host.leaving, host.leaves_with = True, chosen
            elif kind is EventKind.CRASH:
                self._failures.crash(host)
            else:
                self._failures.pause(host, PLANNED_PAUSE_TIMEOUTS * self._stage.config.timeout_s)

    # -- the store ------------------------------------------------------------------------------

    def _store_down(self) -> None:
        stage = self._stage
        stage.store_down_until = stage.now + stage.chance.uniform(0.1, 2.0) * stage.config.timeout_s

    def _time_travel(self) -> None:
        """Fail over to a store that had not got the last commits."""
        if self._backup is not None and isinstance(self._stage.store, TimeTravel):
            self._watch.check_history()
            self._stage.store.restore(self._backup)
            self._watch.restored()

    def _wall_clock_step(self) -> None:
        self._stage.wall_clock_offset_s += self._stage.chance.uniform(-1e5, 1e5)

    # -- the log --------------------------------------------------------------------------------

    def _split(self) -> None:
        log, chance = self._stage.log, self._stage.chance
        if (shards := log.open_shards()) and len(log.shards) < max(SHARDS_MAX, len(shards) * 4):
            for child in log.split(chance.choice(shards)):
                log.append(child, chance.randint(0, 20))

    def _merge(self) -> None:
        log, chance = self._stage.log, self._stage.chance
        if len(shards := log.open_shards()) > 1:
            left, right = chance.sample(shards, 2)
            log.append(log.merge(left, right), chance.randint(0, 20))

    # -- the group ------------------------------------------------------------------------------

    def _force_checkpoint(self) -> None:
        stage, chance = self._stage, self._stage.chance
        rows = stage.store.snapshot(stage.key).shards
        read = [lease for lease in rows if lease.check_point is not None]
        if not read:
            return
        lease = chance.choice(read)
        drawn = chance.randint(0, int(lease.check_point or 0))
        # Mostly where a batch begins; elsewhere the store has to refuse.
        borders = [batch.start for batch in stage.store.batches(stage.key, lease.shard)]
        cursor = borders[drawn % len(borders)] if borders and drawn % 10 else str(drawn)
        self._operate(
            "force_checkpoint", stage.key, lease.shard, cursor, observer="operator",
            reason="read again", reopen=list(Reopening)[int(chance.random() * len(Reopening))],
        )  # fmt: skip

    def _pause_group(self) -> None:
        group = self._stage.store.snapshot(self._stage.key).group
        self._operate("update_group", replace(group, paused=not group.paused), observer="op")

    def _change_order(self) -> None:
        group = self._stage.store.snapshot(self._stage.key).group
        self._operate("update_group", replace(group, ordered=not group.ordered), observer="op")

    def _operate(self, verb: str, *args: object, **options: object) -> None:
        with suppress(LeaseholdError):  # A refusal is an answer, too.
            self._administer(verb, *args, **options)
