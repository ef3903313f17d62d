"""Waiting for what the sensors and runs do, and noticing when they cannot."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.orchestration.demo.progress import Progress
from dagster_leasehold.orchestration.demo.standing import Standing, standing
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess
from dagster_leasehold.orchestration.supervision.dagster_processes import active_runs, failed_runs
from dagster_leasehold.orchestration.supervision.spark_warm_up import SparkWarmUp

if TYPE_CHECKING:
    from dagster_leasehold.assets.shard_stream import ShardStream
    from dagster_leasehold.lease_store.roles.groups import Groups

POLL_S = 0.25
DRAIN_S = 30.0


class DemoFailed(LeaseholdError):
    """The demo did not reach its end; the message says how far it came and where the log is."""


class Watch:
    """Watches one demo until its deadline.

    Args:
        settings: of the demo's home.
        store: its lease store.
        stream: what is consumed.
        dagster: the daemon.
        spark: the server that is being started.
        progress: where each standing is shown.
        clock: monotonic seconds.
        timeout_s: how long all waits together may take, in seconds.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        store: Groups,
        stream: ShardStream,
        dagster: ChildProcess,
        spark: SparkWarmUp,
        progress: Progress,
        clock: Callable[[], float],
        timeout_s: float,
    ) -> None:
        self._settings = settings
        self._store = store
        self._stream = stream
        self._dagster = dagster
        self._spark = spark
        self._progress = progress
        self._clock = clock
        self._timeout_s = timeout_s
        self._deadline = clock() + timeout_s

    def until(self, reached: Callable[[Standing], bool]) -> None:
        """Wait until a standing is reached, showing each.

        Raises:
            DemoFailed: the daemon has ended, Spark did not start, or the time is up.
        """
        while True:
            now = standing(self._store, self._stream.key, self._stream.source)
            self._progress.show(now)
            if reached(now):
                return
            if self._spark.error:
                raise DemoFailed(self._spark.error)
            if (code := self._dagster.exit_code()) is not None:
                raise DemoFailed(
                    f"{self._dagster.name} ended with code {code}: see {self._dagster.log}."
                )
            if self._clock() >= self._deadline:
                failed = failed_runs(self._settings)
                raise DemoFailed(
                    f"After {self._timeout_s:.0f} s, {now.lag:,} records were not consumed yet and "
                    f"{failed} runs had failed: see {self._dagster.log}."
                )
            time.sleep(POLL_S)

    def drain(self) -> None:
        """Wait until Dagster has no run any more: one that a stop interrupts would look failed."""
        deadline = self._clock() + DRAIN_S
        while active_runs(self._settings) and self._clock() < deadline:
            time.sleep(POLL_S)
