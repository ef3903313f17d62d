"""Incidents, one class for each kind; all of them happen to real processes."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from tests.chaos.stream import TIMEOUT_S
from tests.chaos.world import AGENT, WITH_AGENT, World
from tests.failpoints import Failpoint
from tests.integration.lease_store.commit_proxy import Cut

FREEZE_S = TIMEOUT_S + 3.0
"""Longer than the lease, so that a continued process is a stale holder."""


class Incident(Protocol):
    """Something that goes wrong, begins with `strike` and has ended once `over` is true."""

    @property
    def kind(self) -> str: ...

    def strike(self, world: World) -> None: ...

    def over(self, world: World) -> bool: ...


@dataclass
class AtFailpoint:
    """The first process that comes to a failpoint dies there, or freezes for longer than T."""

    point: Failpoint
    freeze: bool = False
    pid: int = 0
    _since: float = 0.0

    @property
    def kind(self) -> str:
        return f"{'freeze' if self.freeze else 'kill'} at {self.point.number} {self.point.label}"

    def strike(self, world: World) -> None:
        (world.failpoints / self.point.label).write_text("STOP" if self.freeze else "KILL")

    def over(self, world: World) -> bool:
        if not self.pid:
            taken = list(world.failpoints.glob(f"{self.point.label}.*"))
            if not taken:
                return False
            self.pid, self._since = int(taken[0].suffix[1:]), time.monotonic()
            taken[0].unlink()
        if not self.freeze:
            return True
        if time.monotonic() - self._since < FREEZE_S:
            return False
        send(self.pid, signal.SIGCONT)
        return True


@dataclass
class Processes:
    """Some processes are killed, or frozen for longer than T.

    `whom` is the name of a service, or `run-a`, `server-a` for the code server that takes the
    node's runs, `spark-a`, or `node-a`: that server with its runs, and its agent if it has one.
    """

    whom: str
    freeze: bool = False
    _pids: list[int] = field(default_factory=list)
    _since: float = 0.0

    @property
    def kind(self) -> str:
        return f"{'freeze' if self.freeze else 'kill'} {self.whom.split('-')[0]}"

    def strike(self, world: World) -> None:
        """Strike now, or as soon as a run exists: no run starts while an agent is frozen."""
        self._pids = self._chosen(world)
        self._send(signal.SIGSTOP if self.freeze else signal.SIGKILL)
        self._since = time.monotonic()

    def over(self, world: World) -> bool:
        if not self._pids:
            self.strike(world)
        if not self.freeze:
            return bool(self._pids)
        if not self._pids or time.monotonic() - self._since < FREEZE_S:
            return False
        self._send(signal.SIGCONT)
        return True

    def _send(self, number: signal.Signals) -> None:
        for pid in self._pids:
            send(pid, number)

    def _chosen(self, world: World) -> list[int]:
        role, _, node = self.whom.partition("-")
        if role == "run":
            return world.runs(node)
        if role == "server":
            return world.servers(node)
        if role == "node":
            agents = [world.services[f"{AGENT}-{node}"].pid] if node == WITH_AGENT else []
            return [*agents, *world.servers(node), *world.runs(node)]
        if role == "spark":
            return world.sparks(node)
        return [world.services[self.whom].pid]


@dataclass
class DatabaseStops:
    """The server ends, by a crash or in order, and is away for a while."""

    crash: bool
    away_s: float = 3.0
    _since: float = 0.0

    @property
    def kind(self) -> str:
        return "kill database" if self.crash else "restart database"

    def strike(self, world: World) -> None:
        world.mariadb.stop(kill=self.crash)
        self._since = time.monotonic()

    def over(self, world: World) -> bool:
        if time.monotonic() - self._since < self.away_s:
            return False
        world.mariadb.start()
        return True


@dataclass
class DatabaseFreezes:
    """The server answers nothing for longer than T, and then everything."""

    kind: str = "freeze database"
    _since: float = 0.0

    def strike(self, world: World) -> None:
        send(world.mariadb.pid, signal.SIGSTOP)
        self._since = time.monotonic()

    def over(self, world: World) -> bool:
        if time.monotonic() - self._since < FREEZE_S:
            return False
        send(world.mariadb.pid, signal.SIGCONT)
        return True


@dataclass
class DatabaseReadOnly:
    """The server takes no writes, as after a fail-over."""

    kind: str = "database read-only"
    _since: float = 0.0

    def strike(self, world: World) -> None:
        world.mariadb.execute("SET GLOBAL read_only = 1")
        self._since = time.monotonic()

    def over(self, world: World) -> bool:
        if time.monotonic() - self._since < TIMEOUT_S / 2:
            return False
        world.mariadb.execute("SET GLOBAL read_only = 0")
        return True


@dataclass
class ConnectionsCut:
    """The server ends all connections of the account, again and again."""

    kind: str = "connections cut"
    times: int = 5
    _cut: int = 0

    def strike(self, world: World) -> None:
        for row in world.mariadb.execute("SHOW PROCESSLIST"):
            if row[1] == world.mariadb.user:
                with suppress(Exception):  # it has ended by itself
                    world.mariadb.execute(f"KILL {int(row[0])}")
        self._cut += 1

    def over(self, world: World) -> bool:
        if self._cut >= self.times:
            return True
        time.sleep(0.5)
        self.strike(world)
        return False


@dataclass
class ReplyLost:
    """Connections break right before or right after their COMMIT, a few times."""

    cut: Cut
    times: int = 4
    _goal: int = 0

    @property
    def kind(self) -> str:
        return f"reply lost {self.cut.name.lower()} COMMIT"

    def strike(self, world: World) -> None:
        self._goal = len(world.proxy.done) + self.times
        world.proxy.arm(*[self.cut] * self.times)

    def over(self, world: World) -> bool:
        return len(world.proxy.done) >= self._goal


@dataclass
class Resharding:
    """A shard is split; its children are merged later by another one of these."""

    pairs: list[list[str]]
    kind: str = "split or merge"

    def strike(self, world: World) -> None:
        if self.pairs:
            first, second = self.pairs.pop()
            world.writer.merge(first, second)  # pyright: ignore[reportArgumentType]
        else:
            self.pairs.append([*world.writer.split()])

    def over(self, world: World) -> bool:
        return True


OF_THE_DATABASE = (DatabaseStops, DatabaseFreezes, DatabaseReadOnly, ConnectionsCut)


def compatible(incident: Incident, others: Sequence[Incident]) -> bool:
    """Return True if it can happen beside others: one of a kind, a failpoint, the database."""
    if incident.kind in {each.kind for each in others}:
        return False
    if isinstance(incident, AtFailpoint):
        # Only one of them can wait in the failpoint's file.
        return all(incident.point != getattr(each, "point", None) for each in others)
    return not (
        isinstance(incident, OF_THE_DATABASE)
        and any(isinstance(each, OF_THE_DATABASE) for each in others)
    )


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


RUN_POINTS = [
    Failpoint.IN_OPEN_TENURE, Failpoint.AFTER_OPEN, Failpoint.IN_RECORD_INTENTS,
    Failpoint.AFTER_INTENT, Failpoint.DURING_WRITE, Failpoint.AFTER_WRITE,
    Failpoint.BEFORE_COMMIT, Failpoint.IN_COMMIT, Failpoint.AFTER_COMMIT, Failpoint.BEFORE_CLOSE,
    Failpoint.WHILE_WAITING,
    Failpoint.IN_CLOSE_TENURE, Failpoint.AFTER_CLOSE, Failpoint.BEFORE_REPORT,
    Failpoint.AFTER_REPORT, Failpoint.IN_MARK_DELIVERED,
]  # fmt: skip
SENSOR_POINTS = [Failpoint.AFTER_BEAT, Failpoint.BEFORE_LAUNCH]


def random_incident(dice: random.Random, *, freeze: bool) -> Incident:
    """Draw one kill, or one freeze, of a random process at a random moment or step."""
    node = dice.choice("ab")
    if dice.random() < 0.5:
        return AtFailpoint(dice.choice(RUN_POINTS + SENSOR_POINTS), freeze)
    if freeze and dice.random() < 0.15:
        return DatabaseFreezes()
    if not freeze and dice.random() < 0.1:
        return DatabaseStops(crash=True)
    roles = [f"run-{node}", f"run-{node}", f"code-{node}", f"daemon-{node}"]
    roles += [f"agent-{node}", f"server-{node}"] if node == WITH_AGENT else []
    roles += [f"node-{node}" if freeze else f"spark-{node}"]
    return Processes(dice.choice(roles), freeze)


def random_trouble(dice: random.Random, pairs: list[list[str]]) -> Incident | None:
    """Draw something that is neither a kill nor a freeze, or nothing."""
    kinds: list[Incident] = [
        DatabaseStops(crash=False), DatabaseReadOnly(), ConnectionsCut(),
        ReplyLost(Cut.BEFORE), ReplyLost(Cut.AFTER), Resharding(pairs),
    ]  # fmt: skip
    return dice.choice(kinds) if dice.random() < 0.4 else None
