"""One round of launching runs for the served nodes' shards that have unread records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import dagster as dg

from dagster_leasehold.assets import partitions
from dagster_leasehold.assets.consume_job import ConsumeConfig
from dagster_leasehold.assets.definition_mark import definition_mark
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import LeaseLost, SourceError, counted
from dagster_leasehold.lease_store.group_rows import Node, Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import Changed, Opened
from dagster_leasehold.lease_store.rebalancing import TickReport
from dagster_leasehold.lease_store.roles.tenures import Tenures
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.starting_point import pending_bootstraps
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import Progress
from dagster_leasehold.sensors.active_runs import (
    SHARDS_PER_READ,
    ActiveRun,
    ActiveRuns,
    queued_shards,
)
from dagster_leasehold.sensors.following_runs import FollowingRuns
from dagster_leasehold.sensors.launch_choice import (
    CaughtUpTimes,
    IdleShard,
    Launch,
    LaunchHistory,
    Work,
    choose_launches,
    next_work,
)
from dagster_leasehold.sensors.obstacle_reports import ObstacleReports, obstacles_of
from dagster_leasehold.sensors.run_cleaning import DeadRunCleanup
from dagster_leasehold.sensors.tick_watch import QuietShard
from dagster_leasehold.shard_sources.lag import bounds_of, bounds_step
from dagster_leasehold.shard_sources.source import ShardBounds

FINISHED_PER_ROUND_MAX = 100
MAX_RETRIES_TAG = "dagster/max_retries"
OVERTIME_S = 900
"""How long a run can exceed its budget and stall limit before the janitor ends it, in seconds."""


@dataclass(frozen=True, slots=True)
class Round:
    """The runs that a round launches, and notes about its actions and about waiting shards.

    Attributes:
        freed: True if it only freed shards of dead runs, for which the next round launches runs.
    """

    launches: tuple[Launch, ...] = ()
    notes: tuple[str, ...] = ()
    freed: bool = False


@dataclass(slots=True)
class LaunchRounds:
    """The rounds of launching for the served nodes, with the state that they share.

    Attributes:
        address: the address that the served nodes are registered with. A node with the same name
            and another address belongs to another process, and so do its runs.
        definition: the mark of the stream's definition, passed to the launched runs.
        quiet: the shards that had nothing to read and no run in the last round.
        processes: the processes of the runs that were active in the last round.
    """

    stream: ShardStream
    store: Tenures
    address: str
    clock: Callable[[], float]
    new_id: Callable[[], str]
    definition: str = field(init=False)
    quiet: dict[ShardId, QuietShard] = field(default_factory=dict[ShardId, QuietShard])
    processes: tuple[str, ...] = ()
    _history: LaunchHistory = field(default_factory=LaunchHistory)
    _reads: CaughtUpTimes = field(init=False)
    _following: FollowingRuns = field(init=False)
    _obstacles: ObstacleReports = field(init=False)
    _source_errors: dict[ShardId, str] = field(default_factory=dict[ShardId, str])
    _steps: FailingSteps = field(init=False)

    def __post_init__(self) -> None:
        self.definition = definition_mark(self.stream)
        self._steps = FailingSteps(self.clock)
        self._obstacles = ObstacleReports(self.stream, self.clock)
        self._reads = CaughtUpTimes(
            self.stream.pace.commit_interval_s, self.stream.limits.records_max
        )
        self._following = FollowingRuns(
            self.definition,
            self.stream.pace.run_budget_s,
            self.stream.pace.shards_per_run,
            self.clock,
            self.new_id,
        )

    def run(self, runs: ActiveRuns, report: TickReport) -> Round:
        """Run one round, based on the report of a tick of rebalancing."""
        self.quiet, self.processes, self._source_errors = {}, (), {}
        if report.snapshot.group.paused:
            return Round(notes=("the group is paused, so no run is launched",))
        self._steps.begin()
        try:
            return self._run(runs, report)
        finally:
            obstacles = obstacles_of(report, quiet=self.quiet, source_errors=self._source_errors)
            report_obstacles = partial(self._obstacles.report, runs.instance, obstacles)
            self._steps.attempt("reporting the check of progress", report_obstacles, None)

    def _run(self, runs: ActiveRuns, report: TickReport) -> Round:
        instance = runs.instance
        self._history.keep(
            {row.shard for row in report.snapshot.shards if row.state is not ShardState.OVER}
        )
        dead_runs = DeadRunCleanup(self.store, self.stream.key, self.new_id, self._steps)
        active, notes = dead_runs.fail_dead(instance, runs.of(self.stream))
        self.processes = tuple(run.process for run in active if run.process)
        progress_rows = self._held(report)
        if freed := dead_runs.free(instance, progress_rows, active, lambda: report.snapshot):
            return Round(notes=(*notes, *freed), freed=True)
        self._following.update(active, report.progress)
        self._history.drop(self._following.missed)
        notes += self._following.stop(instance)
        apart = _runs_of_blocked(active, report.progress)
        ready = self._ready(report, active, notes)
        joined = self._join(instance, report, ready, notes, {run.run_id for run in apart})
        ready = [idle for idle in ready if idle.shard not in joined]
        launches, queued = self._choose(instance, ready, active, apart)
        ready = [idle for idle in ready if idle.shard not in queued]
        if queued:
            notes.append(
                f"{counted(len(queued), 'shard')} left to active runs of single partitions"
            )
        by_shard = {idle.shard: idle for idle in ready}
        for launch in launches:
            self._history.note(launch, by_shard, self.clock())
            notes.append(
                f"launched a run for {counted(len(launch.shards), 'shard')} of {launch.node}"
            )
        if launches:
            failpoints.reach("before_launch")
        launched = {shard for launch in launches for shard in launch.shards}
        if waiting := [idle for idle in ready if idle.shard not in launched]:
            notes.append(f"{counted(len(waiting), 'shard')} waiting for a run of the node to end")
            searching = {run.node for run in apart}
            nodes = {i.node for i in waiting if not (i.blocked and i.node in searching)}
            self._following.make_room(instance, nodes)
        return Round(tuple(launches), (*notes, *self._steps.notes))

    def _join(
        self,
        instance: dg.DagsterInstance,
        report: TickReport,
        ready: list[IdleShard],
        notes: list[str],
        apart: Collection[str],
    ) -> set[ShardId]:
        """Offer shards to runs with room; return the shards that need no new run now."""
        if not ready:
            return set()
        starting = pending_bootstraps(report.snapshot)
        eligible = [
            idle
            for idle in ready
            if idle.shard not in starting and not idle.blocked and not self._history.tried(idle)
        ]
        offers, waiting = self._following.share(eligible, apart=apart)
        offered = [shard for shards in offers.values() for shard in shards]
        queued = queued_shards(instance, self.stream, offered) if offered else set[ShardId]()
        by_shard = {idle.shard: idle for idle in ready}
        for run_id, selection in offers.items():
            if shards := [shard for shard in selection if shard not in queued]:
                self._following.offer(instance, run_id, shards)
                launch = Launch(by_shard[shards[0]].node, tuple(shards))
                self._history.note(launch, by_shard, self.clock())
                notes.append(
                    f"{counted(len(shards), 'shard')} of {launch.node} joined run {run_id}"
                )
        if waiting:
            notes.append(f"{counted(len(waiting), 'shard')} waiting for a run that is starting")
        return {shard for shard in offered if shard not in queued} | waiting

    def _choose(
        self,
        instance: dg.DagsterInstance,
        ready: list[IdleShard],
        active: list[ActiveRun],
        apart: list[ActiveRun],
    ) -> tuple[list[Launch], set[ShardId]]:
        """Return the runs to launch, and the shards that an active run will serve."""
        # The node comes from a run's tags, which any user can write; runs without one do not count.
        runs_active, apart_active = (
            Counter(run.node for run in runs if run.node) for runs in (active, apart)
        )
        queued: set[ShardId] = set()
        free: set[ShardId] = set()
        while True:
            launches = choose_launches(
                [idle for idle in ready if idle.shard not in queued],
                history=self._history,
                runs_active=runs_active,
                shards_per_run=self.stream.pace.shards_per_run,
                apart_active=apart_active,
            )
            launched_shards = {shard for launch in launches for shard in launch.shards}
            if launched_shards <= free:
                return launches, queued
            # Some of the next shards are checked as well, because a backfill can serve thousands.
            others = (i.shard for i in ready if i.shard not in free | queued | launched_shards)
            candidates = [*(launched_shards - free), *islice(others, SHARDS_PER_READ)]
            waiting = queued_shards(instance, self.stream, candidates)
            queued |= waiting
            free |= set(candidates) - waiting

    def _ready(
        self, report: TickReport, active: list[ActiveRun], notes: list[str]
    ) -> list[IdleShard]:
        """Return the due shards that no run serves; finish shards that were read to their end."""
        idle = self._idle(report, self._following.opening_shards(active))
        self._reads.keep(idle.keys())
        # The least recently served shards come first.
        queue = sorted(idle, key=lambda shard: (self._history.launch_number(shard), shard))
        places = {shard: report.progress[shard].check_point for shard in queue}
        bounds = self._bounds(places)
        works = self._works(report, places, bounds)
        finishing = [shard for shard, work in works.items() if work is Work.FINISH]
        finished = sum(
            self._steps.attempt(
                f"finishing shard {shard}",
                partial(self._finish, shard, idle[shard], bounds[shard].end),
                False,
            )
            for shard in finishing[:FINISHED_PER_ROUND_MAX]
        )
        self.quiet = {
            shard: QuietShard(places[shard], bounds[shard])
            for shard, work in works.items()
            if work is Work.NONE
        }
        unread = [shard for shard, work in works.items() if work is Work.READ]
        for shard in works.keys() - set(unread):
            self._reads.record_caught_up(shard, self.clock())
        rows = report.progress
        unread_shards = [
            IdleShard(
                shard,
                idle[shard],
                places[shard],
                bounds[shard],
                rows[shard].consumer_epoch,
                rows[shard].blocked,
                rows[shard].suspicion,
            )
            for shard in unread
        ]
        eligible = [i for i in unread_shards if not self._history.wait_s(i, self.clock())]
        if waiting := len(unread) - len(eligible):
            notes.append(
                f"{counted(waiting, 'shard')} waiting because the last run committed nothing"
            )
        # If a record of one shard is due, all unread shards of its node are read together.
        due = {shard.node for shard in eligible if self._due(shard)}
        ready = [shard for shard in eligible if shard.node in due]
        if early := len(eligible) - len(ready):
            notes.append(f"{counted(early, 'shard')} waiting until a record is due")
        if finished:
            notes.append(f"finished {counted(finished, 'shard')}, read to the end")
        if idle and not unread and not self._steps.notes:
            notes.append(f"nothing to read in {counted(len(idle), 'shard')} that no run serves")
        notes.append(f"active runs: {len(active)}")
        return ready

    def _bounds(self, places: Mapping[ShardId, str | None]) -> dict[ShardId, ShardBounds]:
        try:
            bounds = bounds_of(self.stream.source, places, self._steps)
        except SourceError as error:
            self._source_errors = dict.fromkeys(places, str(error))
            raise
        errors = {shard: self._steps.error_of(bounds_step(shard)) for shard in places}
        self._source_errors = {shard: error for shard, error in errors.items() if error}
        return bounds

    def _due(self, idle: IdleShard) -> bool:
        if idle.bounds.finished:
            return True
        place = idle.check_point or idle.bounds.begin
        count = partial(self.stream.source.lag, idle.shard, place, idle.bounds)
        step = f"counting the unread records of shard {idle.shard}"
        return self._reads.due(idle.shard, self._steps.attempt(step, count, None), self.clock())

    def _works(
        self,
        report: TickReport,
        places: Mapping[ShardId, str | None],
        bounds: Mapping[ShardId, ShardBounds],
    ) -> dict[ShardId, Work]:
        snapshot = report.snapshot
        starting = pending_bootstraps(snapshot)
        children = {row.shard for row in snapshot.shards if row.parents}
        position = snapshot.group.initial_position

        def work(shard: ShardId) -> Work:
            if shard in starting:
                return Work.READ
            return next_work(places[shard], bounds[shard], position, child=shard in children)

        return {
            shard: self._steps.attempt(f"shard {shard}", partial(work, shard), Work.NONE)
            for shard in places
            if shard in bounds
        }

    def _idle(self, report: TickReport, opening: set[str]) -> dict[ShardId, NodeName]:
        subscribable = _subscribable(report.snapshot)
        return {
            shard: node
            for shard, node in self._owners(report).items()
            if shard in report.progress
            and not report.progress[shard].consumer_run
            and shard not in opening
            and shard in subscribable
        }

    def _held(self, report: TickReport) -> list[Progress]:
        """Return the progress of the shards of served nodes, including shards in transfer."""
        own_nodes = {node.name for node in self._own_nodes(report)}
        rows = report.snapshot.shards
        shards = {row.shard for row in rows if row.consumer_owner in own_nodes}
        return [row for row in report.progress.values() if row.shard in shards]

    def _own_nodes(self, report: TickReport) -> list[Node]:
        return [node for node in report.snapshot.nodes if node.address == self.address]

    def _owners(self, report: TickReport) -> Mapping[ShardId, NodeName]:
        """Map each shard of a served node that accepts runs to that node."""
        own_nodes = {node.name for node in self._own_nodes(report) if node.accepts_runs}
        return {
            shard: node
            for node, shards in report.owned.items()
            if node in own_nodes
            for shard in shards
        }

    def _finish(self, shard: ShardId, node: NodeName, end: str) -> bool:
        """Finish a shard that was read to its end before the source made it read-only."""
        opened = self.store.open_tenure(self.stream.key, shard, node, self.new_id())
        if not isinstance(opened, Opened):
            return False
        if isinstance(self.store.finish_empty(opened.tenure, end), Changed):
            return True
        with suppress(LeaseLost):
            self.store.close_tenure(opened.tenure, reason="it could not be finished")
        return False


def _runs_of_blocked(active: list[ActiveRun], rows: Mapping[ShardId, Progress]) -> list[ActiveRun]:
    blocked = {row.shard for row in rows.values() if row.blocked}
    serving = {rows[shard].consumer_run for shard in blocked}
    return [run for run in active if run.run_id in serving or run.shards & blocked]


def _subscribable(snapshot: Snapshot) -> set[ShardId]:
    return {row.shard for row in snapshot.shards if row.subscribable}


def run_request(
    stream: ShardStream, launch: Launch, incarnation: str, definition: str = ""
) -> dg.RunRequest:
    """Return the request for a run of `consume_<stream>`.

    It has no run key, because Dagster launches only one run per key; leases prevent two runs from
    consuming the same shard. Dagster does not retry the run, since the next tick launches one for
    the node that holds the shards then. With `definition`, the run follows its shards; without it,
    the run ends once they are read.
    """
    config = ConsumeConfig(
        node=launch.node,
        incarnation=incarnation,
        shards=list(launch.shards),
        follow=bool(definition),
        definition=definition,
    )
    return dg.RunRequest(
        job_name=partitions.consume_job_name(stream),
        run_config=dg.RunConfig(ops={partitions.consume_op_name(stream): config}),
        tags=tags_of(
            stream, launch, work_max_s=stream.pace.run_budget_s + stream.pace.stall_limit_s
        ),
    )


def tags_of(stream: ShardStream, launch: Launch, *, work_max_s: float) -> dict[str, str]:
    """Return the tags of a run on a node; `work_max_s` limits its time, in seconds."""
    return {
        partitions.NODE_TAG: launch.node,
        partitions.STREAM_TAG: stream.name,
        **partitions.shards_tag(launch.shards),
        # A run that hangs normally ends before this limit. Dagster's own tag is not used, since it
        # compares the clocks of two hosts.
        partitions.WORK_MAX_TAG: str(round(work_max_s) + OVERTIME_S),
        MAX_RETRIES_TAG: "0",
    }
