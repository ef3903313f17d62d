"""The sensor that requests complete hours of a downstream asset and counts late records."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

import dagster as dg

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.output.expired_output import expired_output
from dagster_leasehold.assets.windows.hourly_asset import HourlyAsset, WindowConfig, hour_key
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.event_frontier import (
    HOUR,
    Frontier,
    complete_hours,
    frontier,
)
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.rules.unchanged import Unchanged
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.times import time_text
from dagster_leasehold.lease_store.tracing import fail, span
from dagster_leasehold.lease_store.window_rows import EventWindow
from dagster_leasehold.sensors import EVERY_LOOP_S
from dagster_leasehold.sensors.active_runs import active_partitions
from dagster_leasehold.sensors.late_records import LateRecords, windows_of
from dagster_leasehold.sensors.requested_hours import HoursInWork, RequestedHours
from dagster_leasehold.sensors.steps import deployment_of_tick, opened_instance
from dagster_leasehold.shard_sources.shard_times import shard_times, unlisted_shards

HOURS_PER_TICK_MAX = 24
UNKNOWN = Frontier(None, None, "the complete hours are unknown")


@dataclass(slots=True)
class WatermarkRounds:
    """The decisions of ticks, and the state that ticks share."""

    hourly: HourlyAsset
    deployment: Deployment
    clock: Clock
    _caught_up: Unchanged[ShardId] = field(default_factory=Unchanged[ShardId])
    _late: LateRecords | None = None
    _steps: FailingSteps = field(init=False)
    _requested: RequestedHours = field(init=False)

    def __post_init__(self) -> None:
        self._steps = FailingSteps(self.clock)
        self._requested = RequestedHours(self.clock, self.hourly.late.wait_s, self.hourly.since)

    def tick(self, cursor: str | None, in_work: HoursInWork) -> dg.SensorResult:
        """Request complete hours, and failed hours again.

        Args:
            cursor: the cursor that the last tick returned.
            in_work: returns the given hours that have an unfinished run.
        """
        self._steps.begin()
        requested, store = self._requested, self.deployment.store()
        requested.load(cursor, self.hourly.since)
        leases = store.snapshot(self.hourly.stream.key).shards
        progress, hours = self._steps.attempt(
            "finding complete hours", partial(self._complete, leases), (UNKNOWN, []), at_once=True
        )
        launchable = self._launchable(hours)
        changed_rows = self._steps.attempt(
            "counting late records", partial(self._count_late, store, leases), [], at_once=True
        )
        retries = self._steps.attempt(
            "finding hours to request again", partial(self._due, in_work), [], at_once=True
        )
        requests = [self._request(at) for at in retries]
        for at in launchable:
            requests.append(self._request(at))
            requested.next = at + HOUR
        cursor = requested.save()
        explanation = self._explanation(
            progress, launchable, len(hours) - len(launchable), changed_rows
        )
        return dg.SensorResult(
            run_requests=requests,
            asset_events=[self._observation(window) for window in changed_rows],
            skip_reason=None if requests else explanation,
            cursor=cursor,
        )

    @property
    def troubles(self) -> list[str]:
        """Lines about failed steps of the last tick, and about hours that stay incomplete."""
        return [*self._requested.notes(), *self._steps.notes]

    def _due(self, in_work: HoursInWork) -> list[datetime]:
        """Return the incomplete hours to request now; drop hours with expired output."""
        due = self._requested.due(in_work)
        store, key = self.deployment.store(), self.hourly.stream.key
        expired = expired_output(store, key).values() if due else ()
        for at in [at for at in due if any(each.may_hold(at, at + HOUR) for each in expired)]:
            self._requested.drop_expired(at)
            due.remove(at)
        return due

    def _complete(self, leases: Sequence[ShardLease]) -> tuple[Frontier, list[datetime]]:
        """Return the time until which output is complete, and the new complete hours.

        The source lists its shards only if an hour seems complete.
        """
        source = self.hourly.stream.source
        times = shard_times(
            source,
            leases,
            self._caught_up,
            self._steps,
            now_s=self.clock(),
            allowance_s=self.hourly.idle_after_s,
        )
        out_of_order = timedelta(seconds=self.hourly.out_of_order_s)
        progress = frontier(times, out_of_order=out_of_order)
        if self._requested.full or not self._hours_until(progress):
            return progress, []
        unlisted = unlisted_shards(source, leases)
        progress = frontier(times, unlisted=unlisted, out_of_order=out_of_order)
        return progress, self._hours_until(progress)

    def _hours_until(self, progress: Frontier) -> list[datetime]:
        return complete_hours(self._requested.next, progress.until, HOURS_PER_TICK_MAX)

    def _launchable(self, hours: Sequence[datetime]) -> list[datetime]:
        """Return the hours that are Dagster partitions, which end at this host's current time."""
        if not hours:
            return []
        last = self.hourly.partitions.get_last_partition_key()
        return [hour for hour in hours if last is not None and hour_key(hour) <= last]

    def _count_late(self, store: LeaseStore, leases: Sequence[ShardLease]) -> list[EventWindow]:
        """Remove complete hours, and count late records; return the changed rows."""
        requested, late = self._requested, self._late
        if late is None:
            root = self.deployment.output_folder(self.hourly.stream.key)
            late = LateRecords(self.hourly, store, root, self._steps, self.deployment.catalog)
        first = late.begin(leases, requested.next)
        self._late = late
        for window in first or ():
            # A lost cursor listed it.
            if window.rerun:
                requested.add_rerun(window)
        late.read_ledger(leases, requested.next)
        rows = windows_of(store, self.hourly, late.hours | requested.incomplete.keys())
        requested.remove_complete(rows)
        changed_rows = late.count(rows)
        for window in changed_rows:
            if window.rerun:
                requested.add_rerun(window)
        return changed_rows

    def _request(self, at: datetime) -> dg.RunRequest:
        key, key_end = hour_key(at), self._requested.request(at).run_key_end
        return dg.RunRequest(
            run_key=f"{self.hourly.name}:{key}:{key_end}",
            partition_key=key,
            asset_selection=[self.hourly.key],
            # The run cannot check that the hour is complete; this process decides it.
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
        progress: Frontier,
        launched: Sequence[datetime],
        early: int,
        changed_rows: Sequence[EventWindow],
    ) -> str:
        parts = [progress.clause]
        if launched:
            parts.append(f"requested {len(launched)} hours from {hour_key(launched[0])} on")
        if early:
            parts.append(f"{early} complete hours are in the future by this host's clock")
        if self._requested.full:
            parts.append("further hours are requested after runs of earlier hours have ended")
        for window in changed_rows:
            action = self.hourly.late.action.value
            parts.append(f"{window.late} late records of {hour_key(window.start)}: {action}")
        parts.append(f"the next hour is {time_text(self._requested.next.astimezone(UTC))}")
        return "; ".join([*parts, *self.troubles])


def build_watermark_sensor(hourly: HourlyAsset, clock: Clock = steady_clock) -> dg.SensorDefinition:
    """Return the sensor `<asset>_watermark`; `clock` returns monotonic seconds."""
    of_process: list[WatermarkRounds] = []

    @dg.sensor(
        name=f"{hourly.name}_watermark",
        asset_selection=dg.AssetSelection.assets(hourly.key),
        minimum_interval_seconds=EVERY_LOOP_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Requests an hour of {hourly.name} once all shards of {hourly.stream.name} "
        "have passed it, requests it again if its run failed, and counts late records.",
    )
    @span("tick", hourly.stream.key, sensor="watermark")
    def watermark(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        def in_work(hours: Collection[datetime]) -> set[datetime]:
            keys = {hour_key(at): at for at in hours}
            instance = opened_instance(context)
            return {keys[key] for key in active_partitions(instance, hourly.key, keys)}

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
