"""Checks between two ticks, for streams whose commit interval is shorter than a tick's.

Dagster's daemon ticks every 5 s, and a run needs another 3 s to its first commit. If the commit
interval is at least 5 s, a tick notices in time that a record is due. If it is shorter, the step
`rebalance` does not return at once. Until shortly before the next tick it polls the shards that no
run serves for new records, and the processes of runs for one that has died. It also returns as soon
as another stream of the same tick requests runs.

A waiting tick occupies one of the daemon's threads. If the daemon is configured without threads,
no tick waits. The next tick sees everything that was missed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import dagster as dg

from dagster_leasehold.assets.run_process import process_gone
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.tracing import span
from dagster_leasehold.sensors.launch_choice import LOOK_S
from dagster_leasehold.shard_sources.source import ShardBounds, ShardSource, bounds_for

Wait = Callable[[float], object]
"""Waits for a number of seconds, and returns True if the tick has ended in the meantime."""

WATCH_S = 4.0
"""The longest time of a waiting tick, in seconds: less than the time to the next tick."""
POLL_S = 0.5
ENDED_S = 0.125
"""The interval between two checks of the runs' processes, in seconds; a check costs very little."""
LOOK_PAUSE = 4.0
"""The shortest pause between two checks, as a multiple of the time that a check takes."""


@dataclass(frozen=True, slots=True)
class QuietShard:
    """A shard that no run serves, and that has nothing to read.

    Attributes:
        check_point: the cursor where the next run starts; None if nothing was committed yet.
        bounds: of the shard at the last check.
    """

    check_point: str | None
    bounds: ShardBounds


@dataclass(frozen=True, slots=True)
class Served:
    """The shards and runs of the served nodes, as the tick last saw them.

    Attributes:
        quiet: the shards that no run serves and that have nothing to read.
        processes: the processes of active runs, as `assets.run_process` records them.
        freed: returns True once a run has released a shard that it had open.
    """

    quiet: Mapping[ShardId, QuietShard]
    processes: Collection[str] = ()
    freed: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class TickWatch:
    """Polls for one stream until the next tick is near.

    Attributes:
        source: of the stream.
        commit_interval_s: the longest time that a record waits, in seconds.
        clock: monotonic seconds.
    """

    source: ShardSource
    commit_interval_s: float
    clock: Clock

    @span("watch")
    def news(
        self, instance: dg.DagsterInstance, served: Served, began_s: float, wait: Wait
    ) -> bool:
        """Return True as soon as there is something to do; False once the next tick is near.

        `began_s` is the start of the tick, in monotonic seconds.
        """
        nothing = not served.quiet and not served.processes
        if nothing or self.commit_interval_s >= LOOK_S or not _has_threads(instance):
            return False
        pause_s, until_s, looked_s = POLL_S, began_s + WATCH_S, self.clock()
        while self.clock() + (step_s := ENDED_S if served.processes else pause_s) <= until_s:
            if wait(step_s):
                return False
            if any(map(process_gone, served.processes)):
                return True
            if self.clock() - looked_s < pause_s:
                continue
            looked_s = self.clock()
            try:
                if served.freed() or self._changed(served.quiet):
                    return True
            except Exception:
                # Any error of the source's or store's client; the next tick reports it.
                return False
            pause_s = max(POLL_S, (self.clock() - looked_s) * LOOK_PAUSE)
        return False

    def _changed(self, quiet: Mapping[ShardId, QuietShard]) -> bool:
        places = {shard: each.check_point for shard, each in quiet.items()}
        bounds = bounds_for(self.source, places) if places else {}
        return any(bounds.get(shard) != each.bounds for shard, each in quiet.items())


def _has_threads(instance: dg.DagsterInstance) -> bool:
    return bool((instance.get_settings("sensors") or {}).get("use_threads"))
