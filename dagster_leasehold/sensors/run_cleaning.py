"""Cleans up after dead runs, and ends runs that have lost their leases."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import dagster as dg
from dagster import DagsterRun

from dagster_leasehold.assets.consuming.ownership import close_ended_tenure
from dagster_leasehold.assets.deployment import Deployment, instance_address
from dagster_leasehold.assets.run_process import ended_runs, process_ended
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.group_rows import Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.roles.tenures import Tenures
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.rules.unchanged import Unchanged
from dagster_leasehold.lease_store.shard_rows import Progress
from dagster_leasehold.sensors.active_runs import ActiveRun, ActiveRuns

PROCESS_ENDED = "The process of this run ended without reporting a result."
PARTITIONS_GRACE_S = 3_600.0
"""How long a run of partitions can have no shard open, in seconds: between two portions of its
shards, or while it stores the events of a thousand partitions."""
NEVER_HELD_GRACE_S = 120.0
"""The longest time from a run's start to its first open shard, in seconds; Spark starts later."""


class Ending(NamedTuple):
    """Why the janitor ends a run.

    Attributes:
        reason: the reason as the tick's line has it, after the run's name.
        sentence: the beginning of the sentence in a run that could not be terminated.
    """

    reason: str
    sentence: str


HOLDS_NOTHING = Ending(
    "no longer holds a shard", "This run no longer held a shard, because its node lost its leases"
)
WORKED_TOO_LONG = Ending(
    "has worked for too long",
    "This run worked for longer than its budget and its stall limit allow",
)


@dataclass(slots=True)
class RunsWithoutShards:
    """How long each started run has had no shard open.

    A run that loses its last lease stops at its next check, unless it hangs in a job or its process
    died on a host that cannot be reached. Such a run cannot commit, but it uses cores and a place
    in Dagster's queue.
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
        """Return the started runs that have had no shard open for `grace_s` seconds.

        After its last shard, a run that a user or a backfill launched has `PARTITIONS_GRACE_S`. A
        run of the sensors has `NEVER_HELD_GRACE_S` to open its first shard. Other runs that never
        opened a shard, such as replays, have no limit.
        """
        for run_id in holding:
            self._held_s[run_id] = now_s
        # Only the sensors' runs open their shards at once. A run of one partition can first wait
        # for another run of its shard, for as long as its config allows.
        started = {run.run_id: run.launched for run in active if run.started}
        self._held_s = {run: at for run, at in self._held_s.items() if run in started}
        self._seen_s = {run: self._seen_s.get(run, now_s) for run in started}
        without_shard = {
            run
            for run, at in self._held_s.items()
            if now_s - at > (grace_s if started[run] else max(grace_s, PARTITIONS_GRACE_S))
        }
        never_opened = {
            run
            for run, launched in started.items()
            if launched
            and run not in self._held_s
            and now_s - self._seen_s[run] > max(grace_s, NEVER_HELD_GRACE_S)
        }
        return sorted(without_shard | never_opened)


@dataclass(slots=True)
class RunCleaning:
    """Cleans up the runs of one stream.

    The times of runs are this process's own. Dagster stores the time of the run's host: if that
    host's clock were an hour behind, all of its runs would seem to have worked for an hour.
    """

    stream: ShardStream
    deployment: Deployment
    clock: Clock
    new_id: Callable[[], str]
    _holding: RunsWithoutShards = field(default_factory=RunsWithoutShards)
    _working: Unchanged[str] = field(default_factory=Unchanged[str])
    _steps: FailingSteps = field(init=False)

    def __post_init__(self) -> None:
        self._steps = FailingSteps(self.clock)

    def clean(self, runs: ActiveRuns) -> list[str]:
        """Clean up once, and return a line for each action.

        1. Mark runs as failed if their process on this host has ended; Dagster would not notice.
        2. Free the shards that ended runs left open, under a new epoch.
        3. Terminate runs that have had no shard open for the group's timeout, or that have worked
           longer than their launcher allowed. If that fails, mark them as failed.
        """
        store, key, instance = self.deployment.store(), self.stream.key, runs.instance
        self._steps.begin()
        dead_runs = DeadRunCleanup(store, key, self.new_id, self._steps)
        active, notes = dead_runs.fail_dead(instance, runs.of(self.stream))
        pulse = store.pulse(key)
        nodes = [each.name for each in self.deployment.own(pulse.nodes, instance_address(instance))]
        rows = store.progress(key, nodes).values()
        notes += dead_runs.free(instance, rows, active, lambda: store.snapshot(key))
        open_rows = [row for row in rows if row.consumer_run]
        holding = {row.consumer_run for row in open_rows}
        overdue = self._holding.overdue(
            active, holding, now_s=self.clock(), grace_s=pulse.group.timeout_s
        )
        limits = {run.run_id: run.work_max_s for run in active if run.work_max_s is not None}
        worked_s = self._working.update(dict.fromkeys(limits), self.clock())
        overtime = sorted(run for run, limit_s in limits.items() if worked_s[run] > limit_s)
        endings = dict.fromkeys(overtime, WORKED_TOO_LONG)
        for run_id, ending in (endings | dict.fromkeys(overdue, HOLDS_NOTHING)).items():
            end = partial(self._end, instance, run_id, ending)
            ended = self._steps.attempt(f"ending run {run_id}", end, "")
            notes += [ended] if ended else []
        return [*notes, *self._steps.notes]

    def _end(self, instance: dg.DagsterInstance, run_id: str, ending: Ending) -> str:
        trouble = "its code server does not have it"
        try:
            if instance.run_launcher.terminate(run_id):
                return f"run {run_id} {ending.reason}: terminated"
        except Exception as error:
            # A launcher can raise any error, for example because its server has ended.
            trouble = type(error).__name__
        sentence = (
            f"{ending.sentence}, and it could not be terminated ({trouble}). Other runs continue "
            "from its checkpoints."
        )
        _fail(instance, run_id, sentence)
        return f"run {run_id} {ending.reason} and could not be terminated: failed"


@dataclass(frozen=True, slots=True)
class DeadRunCleanup:
    """Marks dead runs as failed, and frees their shards."""

    store: Tenures
    key: GroupKey
    new_id: Callable[[], str]
    steps: FailingSteps

    def fail_dead(
        self, instance: dg.DagsterInstance, active: Iterable[ActiveRun]
    ) -> tuple[list[ActiveRun], list[str]]:
        """Mark runs as failed if their process has ended; return the others, and lines about it."""
        remaining: list[ActiveRun] = []
        notes: list[str] = []
        for run in active:
            failed = partial(self._fail_if_dead, instance, run)
            if self.steps.attempt(f"run {run.run_id}", failed, False):
                notes.append(f"run {run.run_id} failed: its process has ended")
            else:
                remaining.append(run)
        return remaining, notes

    def free(
        self,
        instance: dg.DagsterInstance,
        rows: Collection[Progress],
        active: Collection[ActiveRun],
        snapshot: Callable[[], Snapshot],
    ) -> list[str]:
        """Close the tenures of ended runs; return a line for each shard that is free now.

        Args:
            rows: the shards that nodes of this deployment hold.
            snapshot: reads the group; called only if a shard must be freed.
        """
        free = partial(self._free, instance, rows, {run.run_id for run in active}, snapshot)
        return self.steps.attempt("freeing shards of ended runs", free, [], at_once=True)

    def _fail_if_dead(self, instance: dg.DagsterInstance, run: ActiveRun) -> bool:
        if not process_ended(run.process):
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
        open_shards = {row.shard: row.consumer_run for row in rows if row.consumer_run in ended}
        notes: list[str] = []
        for lease in snapshot().shards if open_shards else ():
            run, node = open_shards.get(lease.shard), lease.consumer_owner
            if run is None or node is None:
                continue
            # Only the dead run's tenure is closed. A run that has opened the shard since keeps it.
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
