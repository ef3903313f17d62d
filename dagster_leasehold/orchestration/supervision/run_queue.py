"""A run coordinator: sensor runs bypass the queue if no run is queued and no limit is near.

Dagster uses it if it is in `dagster.yaml`.
"""

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
"""The longest wait of a sensor for a launch, in seconds."""


class PromptRunCoordinator(QueuedRunCoordinator):
    """A run queue, which sensor runs bypass if no run is queued and no limit would be reached.

    It has the configuration of `QueuedRunCoordinator`, which it replaces. All other runs are
    queued.
    """

    def __init__(self, *args: Any, **config: Any) -> None:
        super().__init__(*args, **config)
        self._launching = threading.Lock()

    def submit_run(self, context: SubmitRunContext) -> DagsterRun:
        """Launch or queue a run.

        1. A node's code server hangs, and a launch waits for it for a minute.
        2. The sensor waits only for about a second. Otherwise its next tick would be late, and all
           nodes would release their shards.
        3. Runs of other nodes are queued in the meantime, and the queue launches them on threads.
        """
        run = context.dagster_run
        # One launch at a time: two launches that count active runs at once could exceed a limit.
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
            # Waits until the run has started or the launch has ended, because a run that stays
            # NOT_STARTED would count as active forever.
            if run.status is not DagsterRunStatus.NOT_STARTED or not launch.is_alive():
                return run

    def _launch(self, run: DagsterRun, context: SubmitRunContext) -> None:
        # If the launch fails, Dagster marks the run as failed and stores the reason.
        with suppress(Exception):
            self._instance.launch_run(run.run_id, context.workspace)
        self._launching.release()

    def _has_room(self, run: DagsterRun) -> bool:
        """Return True if no run is queued, and there is room for this run and one more."""
        queue = self._instance.get_concurrency_config().run_queue_config
        if queue is None or queue.max_user_code_failure_retries:
            return False
        runs_max = queue.max_concurrent_runs
        ahead = self._instance.get_runs(
            RunsFilter(statuses=AHEAD), limit=runs_max if runs_max > 0 else None
        )
        if any(other.status is DagsterRunStatus.QUEUED for other in ahead):
            return False
        fits = runs_max < 0 or len(ahead) + 1 < runs_max
        return fits and not near_limits(run, ahead, queue.tag_concurrency_limits or ())


def _of_sensor(run: DagsterRun) -> bool:
    """Return True for a new run that a sensor requested for a node, without pools."""
    pools = run.run_op_concurrency
    return (
        run.status is DagsterRunStatus.NOT_STARTED
        and {NODE_TAG, STREAM_TAG} <= run.tags.keys()
        and not (pools and pools.all_pools)
    )


def near_limits(
    run: DagsterRun, ahead: Sequence[DagsterRun], limits: Iterable[Mapping[str, Any]]
) -> bool:
    """Return True if this run and the runs ahead of it would reach a tag concurrency limit."""
    for limit in limits:
        key, limited_value = limit["key"], limit.get("value")
        value = run.tags.get(key)
        if value is None or (isinstance(limited_value, str) and value != limited_value):
            continue
        per_value = isinstance(limited_value, str) or bool(
            limited_value and limited_value["applyLimitPerUniqueValue"]
        )
        values_ahead = [other.tags[key] for other in ahead if key in other.tags]
        count = values_ahead.count(value) if per_value else len(values_ahead)
        if count + 1 >= limit["limit"]:
            return True
    return False
