"""The sensor that cleans up after runs that died, and ends those that lost their leases."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import dagster as dg
from dagster import DagsterRun

from dagster_leasehold.assets.consuming.ownership import close_ended_tenure
from dagster_leasehold.assets.deployment import Deployment, instance_address
from dagster_leasehold.assets.partitions import definition_name
from dagster_leasehold.assets.run_process import ended_runs, process_gone
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.group_rows import Pulse
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.shard_rows import Progress
from dagster_leasehold.sensors import EVERY_LOOP_S
from dagster_leasehold.sensors.active_runs import ActiveRun, active_runs
from dagster_leasehold.sensors.history_rounds import HistoryRounds
from dagster_leasehold.sensors.lost_runs import HoldingMemory

PROCESS_ENDED = "The process of this run ended without a word."


@dataclass(slots=True)
class Janitor:
    """One stream's janitor; remembers between ticks which runs held a shard.

    Attributes:
        stream: whose runs and tenures.
        deployment: whose nodes.
        clock: monotonic seconds.
        new_id: makes run ids for tenures that are opened only to be closed.
    """

    stream: ShardStream
    deployment: Deployment
    clock: Clock
    new_id: Callable[[], str]
    _holding: HoldingMemory = field(default_factory=HoldingMemory)
    _steps: FailingSteps = field(init=False)

    def __post_init__(self) -> None:
        self._steps = FailingSteps(self.clock)

    def clean(self, instance: dg.DagsterInstance) -> list[str]:
        """One round; a line for each thing that was done.

        1. A run whose process this host knows to be gone is failed: Dagster would never notice.
        2. Shards that ended runs left open are freed, under a new epoch.
        3. A run that has held no shard for the group's timeout is terminated; one that cannot be,
           because nothing answers for it, is failed.

        Raises:
            StoreError: the lease store does not answer.
        """
        store, key = self.deployment.store(), self.stream.key
        self._steps.begin()
        notes: list[str] = []
        active: list[ActiveRun] = []
        for run in active_runs(instance, self.stream):
            failed = partial(self._fail_if_gone, instance, run)
            if self._steps.attempt(f"run {run.run_id}", failed, False):
                notes.append(f"run {run.run_id} failed: its process is gone")
            else:
                active.append(run)
        pulse = store.pulse(key)
        rows = store.progress(key, self._nodes(instance, pulse)).values()
        open_rows = [row for row in rows if row.consumer_run]
        free = partial(self._free, instance, open_rows, active)
        notes += self._steps.attempt("freeing what ended runs left open", free, [], at_once=True)
        holding = {row.consumer_run for row in open_rows}
        overdue = self._holding.overdue(
            active, holding, now_s=self.clock(), grace_s=pulse.group.timeout_s
        )
        for run_id in overdue:
            end = partial(self._end, instance, run_id)
            ended = self._steps.attempt(f"ending run {run_id}", end, "")
            notes += [ended] if ended else []
        return [*notes, *self._steps.notes]

    def _fail_if_gone(self, instance: dg.DagsterInstance, run: ActiveRun) -> bool:
        if not process_gone(run.process):
            return False
        self._fail(instance, run.run_id, PROCESS_ENDED)
        return True

    def _nodes(self, instance: dg.DagsterInstance, pulse: Pulse) -> list[NodeName]:
        return [node.name for node in self.deployment.own(pulse.nodes, instance_address(instance))]

    def _free(
        self,
        instance: dg.DagsterInstance,
        open_rows: list[Progress],
        active: list[ActiveRun],
    ) -> list[str]:
        """Close what runs left open that ended before they could; a line for each shard."""
        store, key = self.deployment.store(), self.stream.key
        open_runs = {row.consumer_run for row in open_rows}
        ended = ended_runs(instance, open_runs - {run.run_id for run in active})
        left = {row.shard: row.consumer_run for row in open_rows if row.consumer_run in ended}
        notes: list[str] = []
        for lease in store.snapshot(key).shards if left else ():
            run = left.get(lease.shard)
            if run is None or lease.consumer_owner is None or lease.consumer_run != run:
                continue
            close = partial(
                close_ended_tenure,
                store,
                key,
                lease.shard,
                lease.consumer_owner,
                ended=run,
                closing=self.new_id(),
            )
            if self._steps.attempt(f"shard {lease.shard}", close, False):
                notes.append(f"shard {lease.shard} is free of run {run}, which ended")
        return notes

    def _end(self, instance: dg.DagsterInstance, run_id: str) -> str:
        """Terminate a run that holds nothing; fail it where nothing answers for it."""
        try:
            stopped = instance.run_launcher.terminate(run_id)
        except Exception as error:
            # Whatever a launcher raises: its server is gone, or knows nothing of the run.
            stopped, why = False, type(error).__name__
        else:
            why = "its server knows nothing of it"
        if stopped:
            return f"run {run_id} holds no shard any more: terminated"
        self._fail(
            instance,
            run_id,
            "This run held no shard any more, because its node lost its leases, and it could not "
            f"be terminated ({why}). Other runs go on from its checkpoints.",
        )
        return f"run {run_id} holds no shard any more and could not be terminated: failed"

    @staticmethod
    def _fail(instance: dg.DagsterInstance, run_id: str, sentence: str) -> None:
        run: DagsterRun | None = instance.get_run_by_id(run_id)
        if run is not None and not run.is_finished:
            instance.report_run_failed(run, sentence)


def build_janitor_sensor(
    stream: ShardStream, deployment: Deployment, clock: Clock = steady_clock
) -> dg.SensorDefinition:
    """The sensor `<stream>_janitor`; `clock` gives monotonic seconds."""
    kept = Janitor(stream, deployment, clock, lambda: str(uuid.uuid4()))
    history = HistoryRounds(stream.key, deployment, clock, stream.output_age)

    @dg.sensor(
        name=f"{definition_name(stream)}_janitor",
        minimum_interval_seconds=EVERY_LOOP_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Fails runs of {stream.name} whose process is gone, frees the shards that "
        "they left open, ends runs that lost their leases, deletes old rows of history and "
        "forgets committed output that has expired.",
    )
    def janitor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        try:
            done = kept.clean(context.instance) + history.tick()
        except LeaseholdError as error:
            return dg.SkipReason(str(error))
        return dg.SkipReason("; ".join(done) or "No run is dead, and none goes on without a lease.")

    return janitor
