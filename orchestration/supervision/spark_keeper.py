"""The supervision of a warm Spark Connect server, beside the runs that use it."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess
from dagster_leasehold.orchestration.supervision.spark_warm_up import (
    EMBEDDED,
    LOG_FILE,
    START_TIMEOUT_S,
)
from dagster_leasehold.orchestration.supervision.supervised_child import RestartWaits

WAIT_FIRST_S = 2.0
WAIT_MAX_S = 60.0


class SparkKeeper:
    """The supervision of a folder's embedded Spark server: started, and again when it has ended.

    Runs start it too when they find none, under the same lock: this one only makes sure that they
    find it warm. Does nothing where the settings name another kind of Spark.

    Args:
        settings: whose Spark it is.
        environment: of the process that starts it.
        clock: monotonic seconds.
    """

    def __init__(self, settings: Settings, environment: Mapping[str, str], clock: Clock) -> None:
        self._folder = settings.spark_folder
        self._environment = dict(environment)
        self._clock = clock
        self._active = settings.spark == EMBEDDED
        self._start: ChildProcess | None = None
        self._started_at = 0.0
        self._begin_at = clock()
        self._waits = RestartWaits(WAIT_FIRST_S, WAIT_MAX_S)

    def look(self) -> None:
        """Start the server if it does not run; to be called every second or so."""
        if not self._active:
            return
        now = self._clock()
        if self._start is not None:
            self._end_start(now)
            return
        from dagster_leasehold.assets.spark.connect_server import running

        if running(self._folder) is not None:
            self._waits.settle(now - self._started_at)
            return
        if now < self._begin_at:
            return
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._start = ChildProcess(
            "the start of Spark",
            [
                sys.executable,
                "-m",
                "dagster_leasehold.orchestration.supervision.spark_warm_up",
                str(self._folder),
            ],
            log=self._folder / LOG_FILE,
            environment=self._environment,
        )
        self._start.__enter__()
        self._started_at = now

    def _end_start(self, now: float) -> None:
        """Note the outcome of a start that has come to its end."""
        assert self._start is not None
        code = self._start.exit_code()
        if code is None and now - self._started_at < START_TIMEOUT_S:
            return
        why = self._start.last_line() if code else f"no answer within {START_TIMEOUT_S:.0f} s."
        self._start.stop()
        self._start = None
        self._begin_at = now + self._waits.next_s()
        say(f"Spark did not start: {why}" if code != 0 else "Spark is warm.")

    def stop(self) -> None:
        """Stop the server."""
        from dagster_leasehold.assets.spark.connect_server import stop

        if self._start is not None:
            # A server that is still starting has no state yet, and could not be stopped.
            self._start.wait(START_TIMEOUT_S)
            self._start.stop()
            self._start = None
        if self._active:
            stop(self._folder)
