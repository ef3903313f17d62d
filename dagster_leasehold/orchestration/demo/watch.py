"""The watch over a demo: how much is consumed, and if the sensors and runs can go on."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from dagster_leasehold.lease_store.errors import LeaseholdError, UnknownGroup
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.roles.groups import Groups
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.orchestration.presentation import console, say
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess
from dagster_leasehold.orchestration.supervision.dagster_processes import active_runs, count_runs
from dagster_leasehold.orchestration.supervision.spark_warm_up import SparkWarmUp
from dagster_leasehold.shard_sources.source import ShardBounds, ShardSource

if TYPE_CHECKING:
    from dagster_leasehold.assets.shard_stream import ShardStream
    from dagster_leasehold.lease_store.roles.groups import Groups

POLL_S = 0.25
LINE_EVERY_S = 3.0
DRAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Standing:
    """The standing of a stream's shards.

    Attributes:
        available: records in the log.
        consumed: records up to the checkpoints.
        states: shards by state; those that no sensor has seen yet are `unseen`.
        owned: all shards that can be consumed have an owner.
        open_runs: shards that a run has open.
        complete: every record is consumed, every read-only shard is over, and no run is at work.
    """

    available: int
    consumed: int
    states: dict[str, int]
    owned: bool
    open_runs: int
    complete: bool

    @property
    def lag(self) -> int:
        """Records that are not consumed yet."""
        return self.available - self.consumed


def standing(store: Groups, key: GroupKey, source: ShardSource) -> Standing:
    """Return the standing of the stream now.

    The leases are read before the log: what is appended in between counts as not consumed, so
    that a stream is never called complete too early.
    """
    try:
        leases = {lease.shard: lease for lease in store.snapshot(key).shards}
    except UnknownGroup:
        leases = {}
    shards = [entry.shard for entry in source.list_shards()]
    bounds = source.bounds(shards)
    available = consumed = 0
    complete = True
    for shard in shards:
        lease = leases.get(shard)
        total = source.lag(shard, bounds[shard].begin, bounds[shard]) or 0
        left = total
        if lease is not None and lease.check_point is not None:
            left = source.lag(shard, lease.check_point, bounds[shard]) or 0
        available += total
        consumed += total - left
        complete = complete and left == 0 and _settled(lease, bounds[shard])
    states = Counter(lease.state.value for lease in leases.values())
    states["unseen"] = len([shard for shard in shards if shard not in leases])
    return Standing(
        available=available,
        consumed=consumed,
        states={state: number for state, number in sorted(states.items()) if number},
        owned=bool(leases)
        and all(lease.state.held for lease in leases.values() if lease.state.consumable),
        open_runs=sum(lease.consumer_run != "" for lease in leases.values()),
        complete=complete,
    )


def _settled(lease: ShardLease | None, bounds: ShardBounds) -> bool:
    """Return True if no run has the shard open, and it is over if it can take no more records."""
    if lease is None or lease.consumer_run:
        return False
    return lease.state is ShardState.OVER if bounds.finished else lease.state.held


class StageDisplay:
    """A bar on a terminal, a line every few seconds elsewhere; to be entered with `with`.

    Args:
        clock: monotonic seconds.
        expected: the records that will have been loaded at the end.
    """

    def __init__(self, clock: Callable[[], float], expected: int) -> None:
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self._clock = clock
        self._begin = clock()
        self._expected = expected
        self._last_line = float("-inf")
        self._bar: Bar | None = None
        if sys.stdout.isatty():
            self._bar = Bar(
                TimeElapsedColumn(),
                BarColumn(bar_width=24),
                TextColumn("{task.description}"),
                console=console(),
                transient=True,
            )
            self._task = self._bar.add_task("starting", total=max(expected, 1))

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def stage(self, text: str) -> None:
        """Print the stage that begins now; it stays on the screen."""
        line = f"{self._clock() - self._begin:6.1f} s  {text}"
        if self._bar is not None:
            self._bar.console.print(line, markup=False)
        else:
            say(line)
            sys.stdout.flush()

    def show(self, now: Standing) -> None:
        """Show how far the demo is."""
        states = ", ".join(f"{number} {state}" for state, number in now.states.items())
        text = f"consumed {now.consumed:,} of {self._expected:,}, lag {now.lag:,}; shards: {states}"
        if self._bar is not None:
            self._bar.update(self._task, completed=now.consumed, description=text)
        elif self._clock() - self._last_line >= LINE_EVERY_S:
            self._last_line = self._clock()
            self.stage(text)


class DemoFailed(LeaseholdError):
    """The demo did not reach its end; the message says how far it came, and where the log is."""


@dataclass(frozen=True)
class Watch:
    """The watch over one demo.

    Attributes:
        settings: of the demo's home.
        store: its lease store.
        stream: that is consumed.
        dagster: the daemon.
        spark: the server that is being started.
        display: of each standing.
        timeout_s: the longest time of all waits together, in seconds.
        began_at: the time of its clock at which it began.
    """

    settings: Settings
    store: Groups
    stream: ShardStream
    dagster: ChildProcess
    spark: SparkWarmUp
    display: StageDisplay
    timeout_s: float
    began_at: float = field(default_factory=time.monotonic)

    def until(self, reached: Callable[[Standing], bool]) -> None:
        """Wait until a standing is reached, showing each.

        Raises:
            DemoFailed: the daemon has ended, Spark did not start, or the time is up.
        """
        while True:
            now = standing(self.store, self.stream.key, self.stream.source)
            self.display.show(now)
            if reached(now):
                return
            if self.spark.error:
                raise DemoFailed(self.spark.error)
            if self.dagster.exit_code() is not None:
                raise DemoFailed(self.dagster.ending)
            if time.monotonic() >= self.began_at + self.timeout_s:
                failed = count_runs(self.settings, "FAILURE")
                raise DemoFailed(
                    f"After {self.timeout_s:.0f} s, {now.lag:,} records were not consumed yet and "
                    f"{failed} runs had failed: see {self.dagster.log}."
                )
            time.sleep(POLL_S)

    def drain(self) -> None:
        """Wait until Dagster has no run left: a run that a stop interrupts would look failed."""
        deadline = time.monotonic() + DRAIN_S
        while active_runs(self.settings) and time.monotonic() < deadline:
            time.sleep(POLL_S)
