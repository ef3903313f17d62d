"""The sensor that requests complete hours of a downstream asset and counts late records."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial

import dagster as dg

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.output.expired_output import expired_output
from dagster_leasehold.assets.windows.event_frontier import HOUR, Frontier, complete_hours, frontier
from dagster_leasehold.assets.windows.hourly_asset import HourlyAsset, WindowConfig, hour_key
from dagster_leasehold.assets.windows.window_run import lease_times
from dagster_leasehold.lease_store.errors import LeaseholdError, SourceUnavailable
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.times import time_text
from dagster_leasehold.lease_store.tracing import fail, span
from dagster_leasehold.lease_store.window_rows import EventWindow
from dagster_leasehold.sensors import EVERY_LOOP_S
from dagster_leasehold.sensors.active_runs import partitions_in_work
from dagster_leasehold.sensors.asked_hours import OWED_MAX, AskedHours, HoursInWork, OwedHour
from dagster_leasehold.sensors.late_records import LateRecords, windows_of
from dagster_leasehold.sensors.steps import deployment_of_tick, opened_instance
from dagster_leasehold.shard_sources.lag import bounds_of

HOURS_PER_TICK_MAX = 24
UNKNOWN = Frontier(None, None, "it is not known which hours are complete")


@dataclass(slots=True)
class IdleShards:
    """How long each shard has been caught up, by this process's own clock.

    After a restart the time counts from 0: an hour is then requested later, never too early.
    """

    _since_s: dict[ShardId, tuple[str | None, float]] = field(
        default_factory=dict[ShardId, tuple[str | None, float]]
    )

    def idle(
        self, caught_up: dict[ShardId, str | None], *, now_s: float, allowance_s: float
    ) -> set[ShardId]:
        """Return the shards caught up at one checkpoint for at least `allowance_s` seconds.

        Args:
            caught_up: the shards that are caught up now, with their checkpoints.
            now_s: the time, in monotonic seconds.
            allowance_s: how long a shard counts as active after it has caught up, in seconds.
        """
        unchanged = {
            shard: since
            for shard, since in self._since_s.items()
            if shard in caught_up and since[0] == caught_up[shard]
        }
        self._since_s = {shard: (at, now_s) for shard, at in caught_up.items()} | unchanged
        return {shard for shard, (_, at) in self._since_s.items() if now_s - at >= allowance_s}


@dataclass(slots=True)
class WatermarkRounds:
    """The decisions of ticks, and the state that ticks share.

    Attributes:
        hourly: the downstream asset.
        deployment: the deployment of its stream.
        clock: monotonic seconds.
    """

    hourly: HourlyAsset
    deployment: Deployment
    clock: Clock
    _idle: IdleShards = field(default_factory=IdleShards)
    _late: LateRecords | None = None
    _steps: FailingSteps = field(init=False)
    _asked: AskedHours = field(init=False)

    def __post_init__(self) -> None:
        self._steps = FailingSteps(self.clock)
        self._asked = AskedHours(self.clock, self.hourly.late.wait_s, self.hourly.since)

    def tick(self, cursor: str | None, in_work: HoursInWork) -> dg.SensorResult:
        """Request complete hours, and failed ones again.

        Args:
            cursor: the cursor that the last tick returned.
            in_work: returns the hours among the given ones that have an unfinished run.

        Raises:
            StoreError: the lease store does not answer.
        """
        self._steps.begin()
        asked, store = self._asked, self.deployment.store()
        remembers = asked.recall(cursor, self.hourly.since)
        leases = store.snapshot(self.hourly.stream.key).shards
        reached, hours = self._steps.attempt(
            "looking for complete hours",
            partial(self._complete, leases),
            (UNKNOWN, []),
            at_once=True,
        )
        launchable = self._launchable(hours)
        counted = self._steps.attempt(
            "looking for late records",
            partial(self._look_late, store, leases, remembers=remembers),
            [],
            at_once=True,
        )
        again = self._steps.attempt(
            "finding hours to request again", partial(self._due, in_work), [], at_once=True
        )
        requests = [self._request(at) for at in again]
        for at in launchable:
            requests.append(self._request(at))
            asked.next = at + HOUR
        cursor = asked.remember()
        explanation = self._explanation(reached, launchable, len(hours) - len(launchable), counted)
        return dg.SensorResult(
            run_requests=requests,
            asset_events=[self._observation(window) for window in counted],
            skip_reason=None if requests else explanation,
            cursor=cursor,
        )

    @property
    def troubles(self) -> list[str]:
        """One line for each failed step of the last tick, and for hours that stay incomplete."""
        return [*self._asked.notes(), *self._steps.notes]

    def _due(self, in_work: HoursInWork) -> list[datetime]:
        """Return the owed hours to request now, except hours whose output has expired.

        Each run of such an hour would fail.
        """
        due = self._asked.due(in_work)
        store, key = self.deployment.store(), self.hourly.stream.key
        expired = expired_output(store, key).values() if due else ()
        for at in [at for at in due if any(each.may_hold(at, at + HOUR) for each in expired)]:
            self._asked.lose(at)
            due.remove(at)
        return due

    def _complete(self, leases: Sequence[ShardLease]) -> tuple[Frontier, list[datetime]]:
        """Return until when all output is complete, and the hours not requested yet.

        The source lists its shards only if an hour seems complete, and only after the lease tables
        were read. In the other order, an hour could count as complete too early; see `shard_times`.
        """
        times = lease_times(leases)
        if self.hourly.idle_after_s is not None:
            idle = self._idle.idle(
                self._caught_up(leases), now_s=self.clock(), allowance_s=self.hourly.idle_after_s
            )
            times = [replace(shard, idle=shard.shard in idle) for shard in times]
        out_of_order = timedelta(seconds=self.hourly.out_of_order_s)
        reached = frontier(times, out_of_order=out_of_order)
        if self._asked.crowded or not self._hours_until(reached):
            return reached, []
        listed = {row.shard for row in self.hourly.stream.source.list_shards()}
        unlisted = listed - {lease.shard for lease in leases}
        reached = frontier(times, unlisted=unlisted, out_of_order=out_of_order)
        return reached, self._hours_until(reached)

    def _hours_until(self, reached: Frontier) -> list[datetime]:
        return complete_hours(self._asked.next, reached.until, HOURS_PER_TICK_MAX)

    def _caught_up(self, leases: Sequence[ShardLease]) -> dict[ShardId, str | None]:
        """Return the checkpoints of the shards that have nothing to read, as far as known."""
        places = {
            lease.shard: lease.check_point for lease in leases if lease.state is not ShardState.OVER
        }
        try:
            bounds = bounds_of(self.hourly.stream.source, places, self._steps)
        except SourceUnavailable:
            return {}
        return {
            shard: place
            for shard, place in places.items()
            if shard in bounds and (place or bounds[shard].begin) == bounds[shard].end
        }

    def _launchable(self, hours: Sequence[datetime]) -> list[datetime]:
        """Return the hours that are partitions in Dagster: up to this host's current time."""
        if not hours:
            return []
        last = self.hourly.partitions.get_last_partition_key()
        return [hour for hour in hours if last is not None and hour_key(hour) <= last]

    def _look_late(
        self, store: LeaseStore, leases: Sequence[ShardLease], *, remembers: bool
    ) -> list[EventWindow]:
        """Drop completed hours and count late records; return the rows that changed."""
        asked, late = self._asked, self._late
        if late is None:
            root = self.deployment.output_folder(self.hourly.stream.key)
            late = LateRecords(self.hourly, store, root, self._steps, self.deployment.catalog)
        first = late.begin(leases, asked.next)
        self._late = late
        if first is not None:
            self._take_up(late, first, remembers=remembers)
        late.look(leases, asked.next)
        rows = windows_of(store, self.hourly, late.hours | asked.owed.keys())
        asked.settle(rows)
        counted = late.count(rows)
        for window in counted:
            if window.rerun:
                asked.owe(window)
        return counted

    def _take_up(
        self, late: LateRecords, windows: Sequence[EventWindow], *, remembers: bool
    ) -> None:
        """Add, once in a process, the hours that are missing from a lost cursor."""
        starts = {window.start for window in windows}
        for window in windows:
            if window.rerun:
                self._asked.owe(window)
        at = late.since(self._asked.next)
        while not remembers and at < self._asked.next and len(self._asked.owed) < OWED_MAX:
            if at not in starts:
                self._asked.owed[at] = OwedHour(attempts=1)
            at += HOUR

    def _request(self, at: datetime) -> dg.RunRequest:
        key, why = hour_key(at), self._asked.ask(at).why
        return dg.RunRequest(
            run_key=f"{self.hourly.name}:{key}:{why}",
            partition_key=key,
            asset_selection=[self.hourly.key],
            # This process decided that the hour is complete; the run could not tell by itself.
            run_config=dg.RunConfig(
                ops={self.hourly.key.to_python_identifier(): WindowConfig(even_if_incomplete=True)}
            ),
        )

    def _observation(self, window: EventWindow) -> dg.AssetObservation:
        return dg.AssetObservation(
            self.hourly.key,
            partition=hour_key(window.start),
            description="Records arrived after their hour was completed.",
            metadata={"late_records": window.late, "policy": self.hourly.late.action.value},
        )

    def _explanation(
        self,
        reached: Frontier,
        launched: Sequence[datetime],
        early: int,
        counted: Sequence[EventWindow],
    ) -> str:
        parts = [reached.clause]
        if launched:
            parts.append(f"requested {len(launched)} hours from {hour_key(launched[0])} on")
        if early:
            parts.append(f"{early} hours lie ahead of this host's clock")
        if self._asked.crowded:
            parts.append("no further hours are requested until runs of the earlier ones have ended")
        for window in counted:
            action = self.hourly.late.action.value
            parts.append(f"{window.late} late records of {hour_key(window.start)}: {action}")
        parts.append(f"next is {time_text(self._asked.next.astimezone(UTC))}")
        return "; ".join([*parts, *self.troubles])


def build_watermark_sensor(hourly: HourlyAsset, clock: Clock = steady_clock) -> dg.SensorDefinition:
    """Return the sensor `<asset>_watermark`; `clock` returns monotonic seconds."""
    of_process: list[WatermarkRounds] = []

    @dg.sensor(
        name=f"{hourly.name}_watermark",
        asset_selection=dg.AssetSelection.assets(hourly.key),
        minimum_interval_seconds=EVERY_LOOP_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Requests an hour of {hourly.name} when every shard of {hourly.stream.name} "
        "has passed it, requests it again if its run failed, and counts records that arrive after "
        "their hour was completed.",
    )
    @span("tick", hourly.stream.key, sensor="watermark")
    def watermark(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        def in_work(hours: Collection[datetime]) -> set[datetime]:
            keys = {hour_key(at): at for at in hours}
            instance = opened_instance(context)
            return {keys[key] for key in partitions_in_work(instance, hourly.key, keys)}

        if not of_process:
            of_process.append(WatermarkRounds(hourly, deployment_of_tick(context), clock))
        rounds = of_process[0]
        try:
            result = rounds.tick(context.cursor, in_work)
        except LeaseholdError as error:
            fail(str(error))
            context.log.warning(str(error))
            return dg.SensorResult(skip_reason=str(error), cursor=context.cursor)
        for trouble in rounds.troubles:
            context.log.warning(trouble)
        return result

    return watermark
