"""The Dagster runs of one node, for its agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagster_leasehold.assets.partitions import NODE_TAG
from dagster_leasehold.assets.run_process import process_ended, recorded_process
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.sensors.run_cleaning import PROCESS_ENDED

if TYPE_CHECKING:
    from dagster import DagsterInstance, DagsterRun, DagsterRunStatus

RUNS_MAX = 200


class NodeRuns:
    """The runs of a node in Dagster's storage."""

    def __init__(self, instance: DagsterInstance, node: NodeName) -> None:
        self._instance = instance
        self._node = node
        self._processes: list[str] = []

    @property
    def ended(self) -> bool:
        """True if a run's process has ended since the last call of `fail_dead`."""
        return any(map(process_ended, self._processes))

    def fail_dead(self) -> list[str]:
        """Mark runs as failed if their process on this host has ended; return their ids."""
        from dagster import DagsterRunStatus

        failed: list[str] = []
        self._processes = []
        for run in self._with(DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING):
            process = recorded_process(run)
            if process_ended(process):
                self._instance.report_run_failed(run, PROCESS_ENDED)
                say(f"Run {run.run_id} failed: its process has ended.")
                failed.append(run.run_id)
            else:
                self._processes.append(process)
        return failed

    def cancel_queued(self) -> None:
        """Cancel the queued runs of a leaving node."""
        from dagster import DagsterRunStatus

        for run in self._with(DagsterRunStatus.QUEUED):
            self._instance.report_run_canceled(
                run, message=f"Node {self._node} left before this run began."
            )

    def has_active_runs(self) -> bool:
        """Return True if a run of the node is starting, started or being canceled."""
        from dagster import DagsterRunStatus

        return bool(
            self._with(
                DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING
            )
        )

    def _with(self, *statuses: DagsterRunStatus) -> Sequence[DagsterRun]:
        from dagster import RunsFilter

        filters = RunsFilter(statuses=list(statuses), tags={NODE_TAG: self._node})
        return self._instance.get_runs(filters=filters, limit=RUNS_MAX)
