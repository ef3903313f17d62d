"""Looks between two ticks, for streams whose records may not wait for the next one.

Dagster's daemon ticks every 5 s, and a run takes three more to its first commit. With a commit
interval of 5 s and more a tick sees in time that a record is due. With a shorter one the step
`rebalance` continues, and looks at the shards that no run serves until something comes, for this
stream or for another one of the tick, and at the runs of the others until one of them has died.

A tick that waits holds one of the daemon's threads: where the daemon has none, none waits. What is
missed is seen by the next tick.
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
"""Waits for some seconds, and returns True if the tick has ended meanwhile."""

WATCH_S = 4.0
"""The time from the beginning of a tick to its end, in seconds: less than to the next one."""
POLL_S = 0.5
LOOK_PAUSE = 4.0
"""The pause between two looks, in multiples of a look's time, where that is more
than usual."""


@dataclass(frozen=True, slots=True)
class QuietShard:
    """A shard that no run serves, and that has nothing to read.

    Attributes:
        check_point: the place of its next reader; None where it has not begun.
        bounds: of the shard at the last look.
    """

    check_point: str | None
    bounds: ShardBounds


@dataclass(frozen=True, slots=True)
class Served:
    """The state that a tick has seen of the shards that it serves.

    Attributes:
        quiet: the shards that no run serves.
        processes: of the runs at work, as `assets.run_process` notes them.
        freed: returns True once a run has released a shard that it had open.
    """

    quiet: Mapping[ShardId, QuietShard]
    processes: Collection[str] = ()
    freed: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class TickWatch:
    """The looks of a stream's tick until the next one is near.

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

        `began_s` is the beginning of the tick, in monotonic seconds.
        """
        nothing = not served.quiet and not served.processes
        if nothing or self.commit_interval_s >= LOOK_S or not _has_threads(instance):
            return False
        pause_s, until_s = POLL_S, began_s + WATCH_S
        while self.clock() + pause_s <= until_s:
            if wait(pause_s):
                return False
            looked_s = self.clock()
            try:
                if any(map(process_gone, served.processes)) or served.freed():
                    return True
                if self._changed(served.quiet):
                    return True
            except Exception:
                # Any error of the source's or store's client; the next tick asks again, and says
                # so.
                return False
            pause_s = max(POLL_S, (self.clock() - looked_s) * LOOK_PAUSE)
        return False

    def _changed(self, quiet: Mapping[ShardId, QuietShard]) -> bool:
        places = {shard: each.check_point for shard, each in quiet.items()}
        bounds = bounds_for(self.source, places) if places else {}
        return any(bounds.get(shard) != each.bounds for shard, each in quiet.items())


def _has_threads(instance: dg.DagsterInstance) -> bool:
    return bool((instance.get_settings("sensors") or {}).get("use_threads"))
