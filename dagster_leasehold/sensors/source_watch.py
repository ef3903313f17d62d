"""Looks at the source between two ticks, for streams whose records may not wait for the next one.

Dagster's daemon ticks every 5 s, and a run takes three more to its first commit. With a commit
interval of 5 s and more a tick sees in time that a record is due. With a shorter one the step
`rebalance` goes on, and looks at the shards that no run serves until something comes, for this
stream or for another one of the tick.

A tick that waits holds one of the daemon's threads: where the daemon has none, none waits. What is
missed is seen by the next tick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import dagster as dg

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
"""The pause between two looks, in times of what a look takes, where that is more than usual."""


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
class SourceWatch:
    """The looks at a stream's source between two ticks.

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
        self,
        instance: dg.DagsterInstance,
        quiet: Mapping[ShardId, QuietShard],
        began_s: float,
        wait: Wait,
    ) -> bool:
        """Return True as soon as a quiet shard has changed; False once the next tick is near.

        `began_s` is the beginning of the tick, in monotonic seconds.
        """
        if not quiet or self.commit_interval_s >= LOOK_S or not _has_threads(instance):
            return False
        places = {shard: each.check_point for shard, each in quiet.items()}
        pause_s, until_s = POLL_S, began_s + WATCH_S
        while self.clock() + pause_s <= until_s:
            if wait(pause_s):
                return False
            looked_s = self.clock()
            try:
                bounds = bounds_for(self.source, places)
            except Exception:
                # Of whatever client the source has; the next tick asks again, and says so.
                return False
            if any(bounds.get(shard) != each.bounds for shard, each in quiet.items()):
                return True
            pause_s = max(POLL_S, (self.clock() - looked_s) * LOOK_PAUSE)
        return False


def _has_threads(instance: dg.DagsterInstance) -> bool:
    return bool((instance.get_settings("sensors") or {}).get("use_threads"))
