"""The cleaning up after runs that died, and the ending of runs that lost their leases."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import dagster as dg
from dagster import DagsterRun

from dagster_leasehold.assets.consuming.ownership import close_ended_tenure
from dagster_leasehold.assets.deployment import Deployment, instance_address
from dagster_leasehold.assets.run_process import ended_runs, process_gone
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.group_rows import Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.roles.tenures import Tenures
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.shard_rows import Progress
from dagster_leasehold.sensors.active_runs import ActiveRun, ActiveRuns

PROCESS_ENDED = "The process of this run ended without a word."
PARTITIONS_GRACE_S = 3_600.0
"""The longest time that a run of partitions can hold none of them, between two portions of its
shards or while it stores the events of a thousand."""
NEVER_HELD_GRACE_S = 120.0
"""The longest time from a run's start to its first shard; it opens shards before Spark starts."""


class Ending(NamedTuple):
    """The sentences on a run that is ended: in the tick, and in the run where it has to be failed.

    Attributes:
        terminated: that it was.
        failed: that it could not be terminated, and was failed.
        sentence: why, for the reader of the failed run.
    """

    terminated: str
    failed: str
    sentence: str


HOLDS_NOTHING = Ending(
    "run {run} no longer holds a shard: terminated",
    "run {run} no longer holds a shard and could not be terminated: failed",
    "This run no longer held a shard, because its node lost its leases, and it could not be "
    "terminated ({why}). Other runs continue from its checkpoints.",
)
WORKED_TOO_LONG = Ending(
    "run {run} has worked for too long: terminated",
    "run {run} has worked for too long and could not be terminated: failed",
    "This run worked for longer than its budget and its stall limit allow, and it could not be "
    "terminated ({why}). Other runs continue from its checkpoints.",
)


@dataclass(slots=True)
class HoldingMemory:
    """A memory of the time since when each started run holds no shard.

    A run that lost its last lease stops by itself at its next look. One that does not look hangs
    in a job, or lost its process on a host that cannot be reached: it could commit nothing,
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
        """Return the started runs that have held no shard for `grace_s` seconds.

        One that a person or a backfill launched has `PARTITIONS_GRACE_S` from its last shard on. A
        run of the sensors that was never seen to hold one has `NEVER_HELD_GRACE_S`; one that serves
        no shard, such as a replay, has no limit.
        """
        for run_id in holding:
            self._held_s[run_id] = now_s
        # Only runs of the sensors open their shards at once: one for a single partition can wait
        # for another run of its shard for as long as its config says.
        started = {run.run_id: run.launched for run in active if run.started}
        self._held_s = {run: at for run, at in self._held_s.items() if run in started}
        self._seen_s = {run: self._seen_s.get(run, now_s) for run in started}
        lost = {
            run
            for run, at in self._held_s.items()
            if now_s - at > (grace_s if started[run] else max(grace_s, PARTITIONS_GRACE_S))
        }
        never = {
            run
            for run, launched in started.items()
            if launched
            and run not in self._held_s
            and now_s - self._seen_s[run] > max(grace_s, NEVER_HELD_GRACE_S)
        }
        return sorted(lost | never)


@dataclass(slots=True)
class WorkMemory:
    """A memory of the time since when each run is at work, by the observer's own clock.

    The times that Dagster stores are of the run's host, and are not compared with any other's: the
    runs of a host whose clock is an hour behind would all seem to have worked for an hour.
    """

    _seen_s: dict[str, float] = field(default_factory=dict)

    def overdue(self, limits: Mapping[str, float], *, now_s: float) -> list[str]:
        """Return the runs that have been at work for longer than their limits, in seconds."""
        self._seen_s = {run: self._seen_s.get(run, now_s) for run in limits}
        return sorted(run for run, at in self._seen_s.items() if now_s - at > limits[run])


@dataclass(slots=True)
class RunCleaning:
    """The cleaning of one stream; it remembers between ticks which runs held a shard.

    Attributes:
        stream: of the runs and tenures.
        deployment: of the nodes.
        clock: monotonic seconds.
        new_id: makes run ids for tenures that are opened only to be closed.
    """

    stream: ShardStream
    deployment: Deployment
    clock: Clock
    new_id: Callable[[], str]
    _holding: HoldingMemory = field(default_factory=HoldingMemory)
    _working: WorkMemory = field(default_factory=WorkMemory)
    _steps: FailingSteps = field(init=False)

    def __post_init__(self) -> None:
        self._steps = FailingSteps(self.clock)

    def clean(self, runs: ActiveRuns) -> list[str]:
        """Clean up once, and return a line for each thing that was done.

        1. A run whose process this host knows to be gone is failed: Dagster would never notice.
        2. Shards that ended runs left open are freed, under a new epoch.
        3. A run that has held no shard for the group's timeout is terminated; one that cannot be,
           because nothing answers for it, is failed. So is one that works for longer than its
           launcher allowed it.

        Raises:
            StoreError: the lease store does not answer.
        """
        store, key, instance = self.deployment.store(), self.stream.key, runs.instance
        self._steps.begin()
        burial = Burial(store, key, self.new_id, self._steps)
        active, notes = burial.fail_gone(instance, runs.of(self.stream))
        pulse = store.pulse(key)
        nodes = [each.name for each in self.deployment.own(pulse.nodes, instance_address(instance))]
        rows = store.progress(key, nodes).values()
        notes += burial.free(instance, rows, active, lambda: store.snapshot(key))
        open_rows = [row for row in rows if row.consumer_run]
        holding = {row.consumer_run for row in open_rows}
        overdue = self._holding.overdue(
            active, holding, now_s=self.clock(), grace_s=pulse.group.timeout_s
        )
        limits = {run.run_id: run.work_max_s for run in active if run.work_max_s is not None}
        overtime = self._working.overdue(limits, now_s=self.clock())
        endings = dict.fromkeys(overtime, WORKED_TOO_LONG)
        for run_id, ending in (endings | dict.fromkeys(overdue, HOLDS_NOTHING)).items():
            end = partial(self._end, instance, run_id, ending)
            ended = self._steps.attempt(f"ending run {run_id}", end, "")
            notes += [ended] if ended else []
        return [*notes, *self._steps.notes]

    def _end(self, instance: dg.DagsterInstance, run_id: str, ending: Ending) -> str:
        """Terminate a run; fail it if nothing answers for it."""
        why = "its server knows nothing of it"
        try:
            if instance.run_launcher.terminate(run_id):
                return ending.terminated.format(run=run_id)
        except Exception as error:
            # Any error of a launcher: its server is gone, or knows nothing of the run.
            why = type(error).__name__
        _fail(instance, run_id, ending.sentence.format(why=why))
        return ending.failed.format(run=run_id)


@dataclass(frozen=True, slots=True)
class Burial:
    """The end of runs that died: their shards are free for the next run.

    Attributes:
        store: the lease store.
        key: of the group.
        new_id: makes run ids for tenures that are opened only to be closed.
        steps: what fails is tried again later, and keeps nothing else from being done.
    """

    store: Tenures
    key: GroupKey
    new_id: Callable[[], str]
    steps: FailingSteps

    def fail_gone(
        self, instance: dg.DagsterInstance, active: Iterable[ActiveRun]
    ) -> tuple[list[ActiveRun], list[str]]:
        """Fail runs whose process is gone; return the others, and a line for each that failed."""
        left: list[ActiveRun] = []
        notes: list[str] = []
        for run in active:
            failed = partial(self._fail_if_gone, instance, run)
            if self.steps.attempt(f"run {run.run_id}", failed, False):
                notes.append(f"run {run.run_id} failed: its process is gone")
            else:
                left.append(run)
        return left, notes

    def free(
        self,
        instance: dg.DagsterInstance,
        rows: Collection[Progress],
        active: Collection[ActiveRun],
        snapshot: Callable[[], Snapshot],
    ) -> list[str]:
        """Close what ended runs left open; return a line for each shard that is free now.

        Args:
            instance: knows which runs have ended.
            rows: of the shards that nodes of this deployment hold.
            active: the runs that have not ended.
            snapshot: the group, asked for if there is anything to free.
        """
        free = partial(self._free, instance, rows, {run.run_id for run in active}, snapshot)
        return self.steps.attempt("freeing what ended runs left open", free, [], at_once=True)

    def _fail_if_gone(self, instance: dg.DagsterInstance, run: ActiveRun) -> bool:
        if not process_gone(run.process):
            return False
        _fail(instance, run.run_id, PROCESS_ENDED)
        return True

    def _free(
        self,
        instance: dg.DagsterInstance,
        rows: Collection[Progress],
        active: Collection[str],
        snapshot: Callable[[], Snapshot],
    ) -> list[str]:
        open_runs = {row.consumer_run for row in rows if row.consumer_run}
        ended = ended_runs(instance, open_runs.difference(active))
        left = {row.shard: row.consumer_run for row in rows if row.consumer_run in ended}
        notes: list[str] = []
        for lease in snapshot().shards if left else ():
            run, node = left.get(lease.shard), lease.consumer_owner
            if run is None or node is None:
                continue
            # A run that has opened the shard meanwhile keeps it: the dead run's tenure is named.
            close = partial(
                close_ended_tenure,
                self.store,
                self.key,
                lease.shard,
                node,
                ended=run,
                closing=self.new_id(),
            )
            if self.steps.attempt(f"shard {lease.shard}", close, False):
                notes.append(f"shard {lease.shard} is free of run {run}, which ended")
        return notes


def _fail(instance: dg.DagsterInstance, run_id: str, sentence: str) -> None:
    run: DagsterRun | None = instance.get_run_by_id(run_id)
    if run is not None and not run.is_finished:
        instance.report_run_failed(run, sentence)
