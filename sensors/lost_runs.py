"""Which runs go on although they hold no shard any more: a memory of who held one when."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from dagster_leasehold.sensors.active_runs import ActiveRun

NEVER_HELD_GRACE_S = 120.0
"""How long a run may take from its start to its first shard; it opens them before Spark starts."""


@dataclass(slots=True)
class HoldingMemory:
    """Since when each started run holds no shard.

    A run that lost its last lease stops by itself at its next look. One that does not look hangs
    in a job, or has no process any more on a host that nobody can ask: it could commit nothing,
    but it costs cores, and keeps its place in Dagster's queue.
    """

    _held_s: dict[str, float] = field(default_factory=dict)
    _seen_s: dict[str, float] = field(default_factory=dict)

    def overdue(
        self,
        active: Collection[ActiveRun],
        holding: Collection[str],
        *,
        now_s: float,
        grace_s: float,
    ) -> list[str]:
        """Started runs that have held no shard for `grace_s` seconds.

        A run that was never seen to hold one has `NEVER_HELD_GRACE_S`; one that serves no shard,
        such as a replay, has no limit.
        """
        for run_id in holding:
            self._held_s[run_id] = now_s
        # Only runs of the sensors open their shards at once: one for a single partition may wait
        # for another run of its shard for as long as its config says.
        started = {run.run_id: run.launched for run in active if run.started}
        self._held_s = {run: at for run, at in self._held_s.items() if run in started}
        self._seen_s = {run: self._seen_s.get(run, now_s) for run in started}
        lost = {run for run, at in self._held_s.items() if now_s - at > grace_s}
        never = {
            run
            for run, launched in started.items()
            if launched
            and run not in self._held_s
            and now_s - self._seen_s[run] > max(grace_s, NEVER_HELD_GRACE_S)
        }
        return sorted(lost | never)
