"""The health of Dagster's daemon: whether its sensors tick, and whether tables follow what commits.

`/healthz` tells what only a new process fixes. A database that is away is none of that: the daemon
continues once it is back, and what waits for its table is published then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from threading import Thread
from typing import TYPE_CHECKING, NoReturn

from dagster_leasehold.assets.deployment import instance_address
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.publication_rows import LATE_S, PublicationLag, ShardLag
from dagster_leasehold.lease_store.rules.liveness import Clock, PlannerWatch, steady_clock
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.supervision.health_pages import HEALTH, READINESS, health_pages
from dagster_leasehold.orchestration.supervision.node_directory import Endpoint
from dagster_leasehold.orchestration.supervision.systemd_watchdog import told_watchdog

if TYPE_CHECKING:
    from dagster import DagsterInstance

LOOK_S = 10.0
TURN_MAX_S = 120.0
"""The longest that a turn of a loop takes, with a database that answers late, in seconds."""
SILENT_MAX_S = 300.0
"""The time without a beat after which the daemon is to be started again: it beats each 30 s."""
SENSORS = "SENSOR"
"""Dagster's name of the part of its daemon that ticks the sensors."""
BEATS, SERVER = "looked at its own beats", "looked after its code server"


class DaemonHealth:
    """The health of one daemon; `look` is to be called every `LOOK_S`.

    Args:
        beat: returns a mark that is another one after each beat of the part that ticks sensors.
        lags: returns, for each group of this deployment, what waits for its table.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        beat: Callable[[], str],
        lags: Callable[[], Mapping[GroupKey, Sequence[ShardLag]]],
        clock: Clock = steady_clock,
    ) -> None:
        self._beat, self._lags, self._clock = beat, lags, clock
        self._watch = PlannerWatch(clock, 2 * LOOK_S)
        self._first: str | None = None
        self._trouble = "Dagster's daemon has run no sensors yet."
        self._turned_at: dict[str, float] = {}
        self._waiting: dict[tuple[GroupKey, ShardId], tuple[int, float]] = {}

    def turned(self, loop: str) -> None:
        """Take note that one of the two loops, `BEATS` or `SERVER`, has turned."""
        self._turned_at[loop] = self._clock()

    def look(self) -> None:
        """Look at the daemon's beats, and at what waits for its table."""
        self.turned(BEATS)
        try:
            mark = self._beat()
        except Exception as error:
            self._watch.lose_sight()
            self._trouble = _unanswered(error)
            return
        self._watch.see(mark)
        if self._first is None:
            self._first = mark
        # The first mark can be of the daemon before this one.
        if mark != self._first:
            self._trouble = self._behind()

    def unhealthy(self) -> str:
        """Return the sentence that says why the daemon is to be started again; empty if it is well.

        Both loops have to turn, and the daemon has to beat.
        """
        for loop, turned_at in self._turned_at.items():
            if (silent_s := self._clock() - turned_at) > TURN_MAX_S:
                return f"Dagster's daemon has not {loop} for {silent_s:.0f} s."
        if self._watch.silent_s > SILENT_MAX_S:
            return f"Dagster's daemon has run no sensors for {self._watch.silent_s:.0f} s."
        return ""

    def not_ready(self) -> str:
        """Return the sentence that says what does not work yet, or not now; empty if all does."""
        return self.unhealthy() or self._trouble

    def _behind(self) -> str:
        try:
            lags = self._lags()
        except LeaseholdError as error:
            return str(error)
        except Exception as error:
            # It asks Dagster's storage, too, and an error here would end the daemon.
            return _unanswered(error)
        late = self._late(lags)
        for key, waiting in lags.items():
            if key in late:
                return f"The table of {key} is behind: {PublicationLag.of(waiting)}."
        return ""

    def _late(self, lags: Mapping[GroupKey, Sequence[ShardLag]]) -> set[GroupKey]:
        """Return the groups with a batch that waits since a look of `LATE_S` ago, by their numbers.

        The dates of batches come from the committing hosts' clocks. What this daemon knows
        is that a batch which it saw waiting waits still; a new daemon has seen none.
        """
        now, before = self._clock(), self._waiting
        self._waiting = {}
        for key, waiting in lags.items():
            for lag in waiting:
                end, since = before.get((key, lag.shard), (0, now))
                if lag.start >= end:
                    end, since = lag.start + lag.batches, now
                self._waiting[key, lag.shard] = end, since
        return {key for (key, _), (_, since) in self._waiting.items() if now - since > LATE_S}


def _unanswered(error: Exception) -> str:
    """Return the sentence for an error of the driver of Dagster's storage."""
    return f"Dagster's storage did not answer: {type(error).__name__}."


@contextmanager
def daemon_pages(at: Endpoint) -> Generator[DaemonHealth]:
    """Serve the pages of this process's daemon within the block, and tell systemd's watchdog.

    Raises:
        InvalidSetting: the settings are refused, or the address cannot be listened on.
    """
    from dagster_leasehold.orchestration.resources import deployment_of
    from dagster_leasehold.orchestration.settings import load_settings

    deployment = deployment_of(load_settings())

    @cache
    def instance() -> DagsterInstance:
        # Opened at the first look that finds a storage, while the code server starts.
        from dagster import DagsterInstance

        return DagsterInstance.get()

    def beat() -> str:
        newest = instance().get_daemon_heartbeats().get(SENSORS)
        return "never" if newest is None else f"{newest.daemon_id} {newest.timestamp}"

    def lags() -> dict[GroupKey, list[ShardLag]]:
        store, address = deployment.store(), instance_address(instance())
        return {
            group.key: store.publication_lag(group.key)
            for group in store.groups()
            if deployment.own(store.pulse(group.key).nodes, address)
        }

    health = DaemonHealth(beat, lags)
    checks = {HEALTH: health.unhealthy, READINESS: health.not_ready}
    with health_pages(at, checks) as pages, told_watchdog(health.unhealthy):
        say(f"Health of the daemon at http://{pages}{HEALTH} and {READINESS}.")
        Thread(target=_look_on, args=(health,), name="looks", daemon=True).start()
        yield health


def _look_on(health: DaemonHealth) -> NoReturn:
    while True:
        health.look()
        time.sleep(LOOK_S)
