"""Dagster's run queue, which runs of the sensors pass by while no limit is near."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dagster import DagsterRun, DagsterRunStatus, QueuedRunCoordinator, RunsFilter, SubmitRunContext

from dagster_leasehold.assets.partitions import NODE_TAG, STREAM_TAG
from dagster_leasehold.lease_store.rules.liveness import steady_clock

AHEAD = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]
LATE_S = 5.0
QUEUED_S = 60.0
"""How long runs are queued after a launch that took longer than `LATE_S`: from the queue, several
threads launch, so that a node that answers late does not keep the runs of others waiting."""


class PromptRunCoordinator(QueuedRunCoordinator):
    """A queue that launches a run of the sensors at once while no run waits and no limit is near.

    It takes the place of `QueuedRunCoordinator` in `dagster.yaml`, with the same configuration. All
    other runs are queued, and so is each run as soon as it would reach one of the limits.
    """

    def __init__(self, *args: Any, **config: Any) -> None:
        super().__init__(*args, **config)
        self._launching = threading.Lock()
        self._queued_until = float("-inf")

    def submit_run(self, context: SubmitRunContext) -> DagsterRun:
        """Launch a run, or queue it."""
        run = context.dagster_run
        # Two that look at once would see the same room.
        if not self._may_launch(run) or not self._launching.acquire(blocking=False):
            return super().submit_run(context)
        try:
            if not self._has_room(run):
                return super().submit_run(context)
            began_s = steady_clock()
            # Dagster fails a run that cannot be launched, and stores why.
            with suppress(Exception):
                self._instance.launch_run(run.run_id, context.workspace)
            if (now := steady_clock()) - began_s > LATE_S:
                self._queued_until = now + QUEUED_S
        finally:
            self._launching.release()
        return self._instance.get_run_by_id(run.run_id) or run

    def _may_launch(self, run: DagsterRun) -> bool:
        pools = run.run_op_concurrency
        return (
            run.status is DagsterRunStatus.NOT_STARTED
            and {NODE_TAG, STREAM_TAG} <= run.tags.keys()
            and not (pools and pools.all_pools)
            and steady_clock() >= self._queued_until
        )

    def _has_room(self, run: DagsterRun) -> bool:
        """Return True if no run waits, and one more could begin beside this one."""
        queue = self._instance.get_concurrency_config().run_queue_config
        if queue is None or queue.max_user_code_failure_retries:
            return False
        most = queue.max_concurrent_runs
        ahead = self._instance.get_runs(
            RunsFilter(statuses=AHEAD), limit=most if most > 0 else None
        )
        if any(each.status is DagsterRunStatus.QUEUED for each in ahead):
            return False
        fits = most < 0 or len(ahead) + 1 < most
        return fits and not near_limits(run, ahead, queue.tag_concurrency_limits or ())


def near_limits(
    run: DagsterRun, ahead: Sequence[DagsterRun], limits: Iterable[Mapping[str, Any]]
) -> bool:
    """Return True if a run beside others would leave no room below one of the limits on tags."""
    for each in limits:
        key, only = each["key"], each.get("value")
        value = run.tags.get(key)
        if value is None or (isinstance(only, str) and value != only):
            continue
        of_value = isinstance(only, str) or bool(only and only["applyLimitPerUniqueValue"])
        counted = [other.tags[key] for other in ahead if key in other.tags]
        if (counted.count(value) if of_value else len(counted)) + 1 >= each["limit"]:
            return True
    return False
