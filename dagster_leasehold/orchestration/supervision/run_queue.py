"""Dagster's run queue, which runs of the sensors pass by while no limit is near."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from dagster import DagsterRun, DagsterRunStatus, QueuedRunCoordinator, RunsFilter, SubmitRunContext

from dagster_leasehold.assets.partitions import NODE_TAG, STREAM_TAG

AHEAD = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]
LAUNCH_S = 1.0
"""The longest time that a sensor waits for a launch, in seconds."""


class PromptRunCoordinator(QueuedRunCoordinator):
    """A queue that launches a run of the sensors at once while no run waits and no limit is near.

    It takes the place of `QueuedRunCoordinator` in `dagster.yaml`, with the same configuration. All
    other runs are queued, and so is each run as soon as it would reach one of the limits.
    """

    def __init__(self, *args: Any, **config: Any) -> None:
        super().__init__(*args, **config)
        self._launching = threading.Lock()

    def submit_run(self, context: SubmitRunContext) -> DagsterRun:
        """Launch a run, or queue it.

        1. A node's server hangs, and a launch waits for it for a minute.
        2. The sensor waits for a second: late ticks would make all nodes give their shards away.
        3. Meanwhile runs of other nodes are queued, and launched by several threads.
        """
        run = context.dagster_run
        # Two launches that look at once would see the same room.
        if not _of_sensor(run) or not self._launching.acquire(blocking=False):
            return super().submit_run(context)
        with ExitStack() as stack:
            stack.callback(self._launching.release)
            if not self._has_room(run):
                return super().submit_run(context)
            stack.pop_all()
        launch = threading.Thread(target=self._launch, args=(run, context), daemon=True)
        launch.start()
        while True:
            launch.join(LAUNCH_S)
            run = self._instance.get_run_by_id(run.run_id) or run
            # A run that this process left behind as not started would count as active for ever.
            if run.status is not DagsterRunStatus.NOT_STARTED or not launch.is_alive():
                return run

    def _launch(self, run: DagsterRun, context: SubmitRunContext) -> None:
        # Dagster fails a run that cannot be launched, and stores why.
        with suppress(Exception):
            self._instance.launch_run(run.run_id, context.workspace)
        self._launching.release()

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


def _of_sensor(run: DagsterRun) -> bool:
    """Return True for a new run of a sensor for a node, which takes no place in a pool."""
    pools = run.run_op_concurrency
    return (
        run.status is DagsterRunStatus.NOT_STARTED
        and {NODE_TAG, STREAM_TAG} <= run.tags.keys()
        and not (pools and pools.all_pools)
    )


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
