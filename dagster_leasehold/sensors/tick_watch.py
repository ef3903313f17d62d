"""Polls between two ticks, for streams whose commit interval is shorter than a tick's interval.

Dagster's daemon ticks every 5 s, and a run takes another 3 s to its first commit. With a commit
interval of less than 5 s, a tick could notice too late that a record is due. So the step
`rebalance` continues until shortly before the next tick. It polls the shards that no run serves for
new records, and checks whether a run's process has died. It returns earlier if another
stream of the same tick requests runs.

A waiting tick occupies one of the daemon's threads, so no tick waits if the daemon runs sensors
without threads. The next tick finds everything that was missed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import dagster as dg

from dagster_leasehold.assets.run_process import process_ended
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.tracing import span
from dagster_leasehold.sensors.launch_choice import TICK_INTERVAL_S
from dagster_leasehold.shard_sources.source import ShardBounds, ShardSource, bounds_for

Wait = Callable[[float], object]
"""Waits for a number of seconds; returns True if the tick has ended."""

WATCH_S = 4.0
"""The longest duration of a waiting tick, in seconds: less than the time to the next tick."""
POLL_S = 0.5
ENDED_S = 0.125
"""The interval of checks of the runs' processes, in seconds; a check costs very little."""
POLL_PAUSE_FACTOR = 4.0
"""The shortest pause between two polls of shards, as a multiple of a poll's duration."""


@dataclass(frozen=True, slots=True)
class QuietShard:
    """A shard that no run serves and that has nothing to read.

    Attributes:
        check_point: the cursor where the next run starts; None if nothing was committed yet.
        bounds: the bounds of the shard at the last poll.
    """

    check_point: str | None
    bounds: ShardBounds


@dataclass(frozen=True, slots=True)
class ServedShards:
    """The shards and runs of the served nodes after the last round of the tick.

    Attributes:
        quiet: the shards that no run serves and that have nothing to read.
        processes: the processes of active runs, as `assets.run_process` records them.
        freed: returns True once a run has released an open shard.
    """

    quiet: Mapping[ShardId, QuietShard]
    processes: Collection[str] = ()
    freed: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class TickWatch:
    """Polls for one stream until the next tick is near."""

    source: ShardSource
    commit_interval_s: float
    clock: Clock

    @span("watch")
    def wait_for_work(
        self, instance: dg.DagsterInstance, served: ServedShards, began_s: float, wait: Wait
    ) -> bool:
        """Poll until there is work (return True) or the next tick is near (return False).

        `began_s` is the start of the tick, in monotonic seconds.
        """
        nothing = not served.quiet and not served.processes
        if nothing or self.commit_interval_s >= TICK_INTERVAL_S or not _has_threads(instance):
            return False
        pause_s, until_s, polled_s = POLL_S, began_s + WATCH_S, self.clock()
        while self.clock() + (step_s := ENDED_S if served.processes else pause_s) <= until_s:
            if wait(step_s):
                return False
            if any(map(process_ended, served.processes)):
                return True
            if self.clock() - polled_s < pause_s:
                continue
            polled_s = self.clock()
            try:
                if served.freed() or self._changed(served.quiet):
                    return True
            except Exception:
                # Any error of the source's or store's client: the next tick reports it.
                return False
            pause_s = max(POLL_S, (self.clock() - polled_s) * POLL_PAUSE_FACTOR)
        return False

    def _changed(self, quiet: Mapping[ShardId, QuietShard]) -> bool:
        places = {shard: each.check_point for shard, each in quiet.items()}
        bounds = bounds_for(self.source, places) if places else {}
        return any(bounds.get(shard) != each.bounds for shard, each in quiet.items())


def _has_threads(instance: dg.DagsterInstance) -> bool:
    return bool((instance.get_settings("sensors") or {}).get("use_threads"))
