"""The health of Dagster's daemon: its sensors tick, and committed batches reach their tables.

`/healthz` fails only if a restart of the process helps. If a database is unavailable, only
`/readyz` fails, since the daemon continues once the database answers again.
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
from dagster_leasehold.orchestration.supervision.systemd_watchdog import watchdog_notifier

if TYPE_CHECKING:
    from dagster import DagsterInstance

CHECK_S = 10.0
ITERATION_MAX_S = 120.0
"""The longest duration of an iteration of a loop, with a slow database, in seconds."""
SILENT_MAX_S = 300.0
"""The daemon needs a restart after this time without a heartbeat, in seconds.

It sends a heartbeat every 30 s.
"""
SENSORS = "SENSOR"
"""Dagster's name of the daemon that ticks the sensors."""
HEARTBEAT_LOOP, SERVER_LOOP = "checked its own heartbeats", "checked its code server"


class DaemonHealth:
    """The health of one daemon; a thread calls `check` every `CHECK_S`.

    Args:
        beat: returns a mark that changes with each heartbeat of the sensor daemon.
        lags: returns the unpublished batches of each group of this deployment.
    """

    def __init__(
        self,
        beat: Callable[[], str],
        lags: Callable[[], Mapping[GroupKey, Sequence[ShardLag]]],
        clock: Clock = steady_clock,
    ) -> None:
        self._beat, self._lags, self._clock = beat, lags, clock
        self._watch = PlannerWatch(clock, 2 * CHECK_S)
        self._first: str | None = None
        self._trouble = "Dagster's daemon has run no sensors yet."
        self._iteration_at: dict[str, float] = {}
        self._waiting: dict[tuple[GroupKey, ShardId], tuple[int, float]] = {}

    def record_iteration(self, loop: str) -> None:
        """Record that the loop `HEARTBEAT_LOOP` or `SERVER_LOOP` has begun an iteration."""
        self._iteration_at[loop] = self._clock()

    def check(self) -> None:
        """Check the daemon's heartbeats and the unpublished batches."""
        self.record_iteration(HEARTBEAT_LOOP)
        try:
            mark = self._beat()
        except Exception as error:
            self._watch.record_failed_read()
            self._trouble = _unanswered(error)
            return
        self._watch.record_mark(mark)
        if self._first is None:
            self._first = mark
        # The first mark can be from an earlier daemon process.
        if mark != self._first:
            self._trouble = self._behind()

    def unhealthy(self) -> str:
        """Return why the daemon needs a restart; empty if it needs none."""
        for loop, turned_at in self._iteration_at.items():
            if (silent_s := self._clock() - turned_at) > ITERATION_MAX_S:
                return f"Dagster's daemon has not {loop} for {silent_s:.0f} s."
        if self._watch.silent_s > SILENT_MAX_S:
            return f"Dagster's daemon has run no sensors for {self._watch.silent_s:.0f} s."
        return ""

    def not_ready(self) -> str:
        """Return the current problem, which can end without a restart; empty if there is none."""
        return self.unhealthy() or self._trouble

    def _behind(self) -> str:
        try:
            lags = self._lags()
        except LeaseholdError as error:
            return str(error)
        except Exception as error:
            # `lags` also reads Dagster's storage, whose errors would end this thread.
            return _unanswered(error)
        late = self._late(lags)
        for key, waiting in lags.items():
            if key in late:
                return f"The table of {key} is behind: {PublicationLag.of(waiting)}."
        return ""

    def _late(self, lags: Mapping[GroupKey, Sequence[ShardLag]]) -> set[GroupKey]:
        """Return the groups with a batch that has been unpublished for `LATE_S`.

        The times of batches are not used, because they come from the clocks of other hosts. For
        each shard, `_waiting` has the end (exclusive) of a range of batch numbers, and the time
        when the range was first observed. After the range is published, the next range begins.
        """
        now, last_waiting = self._clock(), self._waiting
        self._waiting = {}
        for key, waiting in lags.items():
            for lag in waiting:
                end, since = last_waiting.get((key, lag.shard), (0, now))
                if lag.start >= end:
                    end, since = lag.start + lag.batches, now
                self._waiting[key, lag.shard] = end, since
        return {key for (key, _), (_, since) in self._waiting.items() if now - since > LATE_S}


def _unanswered(error: Exception) -> str:
    return f"Dagster's storage did not answer: {type(error).__name__}."


@contextmanager
def daemon_pages(at: Endpoint) -> Generator[DaemonHealth]:
    """Serve the health pages of this process's daemon, and notify systemd's watchdog."""
    from dagster_leasehold.orchestration.resources import deployment_of
    from dagster_leasehold.orchestration.settings import load_settings

    deployment = deployment_of(load_settings())

    @cache
    def instance() -> DagsterInstance:
        # Opened by the first check, while the code server starts.
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
    with health_pages(at, checks) as pages, watchdog_notifier(health.unhealthy):
        say(f"Health of the daemon at http://{pages}{HEALTH} and {READINESS}.")
        Thread(target=_keep_checking, args=(health,), name="health-checks", daemon=True).start()
        yield health


def _keep_checking(health: DaemonHealth) -> NoReturn:
    while True:
        health.check()
        time.sleep(CHECK_S)
