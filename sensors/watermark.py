"""The sensor that asks for the hours that every shard has passed, and watches for late records."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import dagster as dg

from assets.deployment import Deployment
from assets.event_frontier import HOUR, Frontier, ShardTime, complete_hours, frontier
from assets.hourly_asset import HourlyAsset, WindowConfig, hour_key
from assets.partitions import STREAM_TAG
from assets.window_run import shard_times
from lease_store.errors import LeaseholdError, SourceUnavailable
from lease_store.event_windows import EventWindow
from lease_store.identifiers import ShardId
from lease_store.liveness import Clock, steady_clock
from lease_store.records import ShardLease
from lease_store.store import LeaseStore
from sensors import EVERY_LOOP_S
from sensors.late_records import LateRecords
from sensors.source_bounds import bounds_of

HOURS_PER_TICK_MAX = 24


def asked_until(cursor: str | None, since: datetime) -> datetime:
    """The first hour that no run was asked for; an unreadable cursor begins anew.

    Asking again is harmless: Dagster launches one run per run key.
    """
    try:
        found = datetime.fromisoformat(cursor or "")
    except ValueError:
        return since
    return max(found, since) if found.tzinfo is not None else since


@dataclass(slots=True)
class IdleShards:
    """Since when each shard is caught up, on this process's own clock.

    A restart forgets, and counts anew: hours are held back longer, never less.
    """

    _since_s: dict[ShardId, tuple[str | None, float]] = field(
        default_factory=dict[ShardId, tuple[str | None, float]]
    )

    def idle(
        self,
        caught_up: dict[ShardId, str | None],
        *,
        now_s: float,
        allowance_s: float,
    ) -> set[ShardId]:
        """The shards that were caught up, at one checkpoint, for at least `allowance_s` seconds.

        Args:
            caught_up: the checkpoints of those that are caught up now.
            now_s: the time, in monotonic seconds.
            allowance_s: how long a shard holds back after it was caught up.
        """
        kept = {
            shard: since
            for shard, since in self._since_s.items()
            if shard in caught_up and since[0] == caught_up[shard]
        }
        self._since_s = {shard: (at, now_s) for shard, at in caught_up.items()} | kept
        return {shard for shard, (_, at) in self._since_s.items() if now_s - at >= allowance_s}


@dataclass(slots=True)
class WatermarkRounds:
    """What one tick decides; remembers idle shards and what was looked through for late records.

    Attributes:
        hourly: the downstream asset.
        deployment: where its stream's ledger and files are.
        clock: monotonic seconds.
    """

    hourly: HourlyAsset
    deployment: Deployment
    clock: Clock
    _idle: IdleShards = field(default_factory=IdleShards)
    _late: LateRecords | None = None
    _asked_again: dict[datetime, tuple[int, float]] = field(
        default_factory=dict[datetime, tuple[int, float]]
    )

    def tick(self, cursor: str | None) -> dg.SensorResult:
        """Ask for what is complete; the cursor is the first hour that was not asked for.

        Raises:
            SourceError: the source does not answer.
            StoreError: the lease store does not answer.
        """
        hourly, store = self.hourly, self.deployment.store()
        next_hour = asked_until(cursor, hourly.since)
        shards, unlisted = shard_times(store, hourly.stream)
        leases = store.snapshot(hourly.stream.key).shards
        found = self._frontier(shards, unlisted, leases)
        hours = complete_hours(next_hour, found.until, HOURS_PER_TICK_MAX)
        launchable = self._launchable(hours)
        late = self._late_records(store)
        counted = late.look(leases, next_hour)
        requests = [self._request(hour, "complete") for hour in launchable]
        requests += [
            self._request(window.start, f"late.{window.version}")
            for window in self._due_again(late.reruns())
        ]
        if launchable:
            next_hour = launchable[-1] + HOUR
        said = self._said(found, next_hour, launchable, len(hours) - len(launchable), counted)
        return dg.SensorResult(
            run_requests=requests,
            asset_events=[self._observation(window) for window in counted],
            skip_reason=None if requests else said,
            cursor=next_hour.isoformat(),
        )

    def _frontier(
        self,
        shards: Sequence[ShardTime],
        unlisted: Collection[ShardId],
        leases: Sequence[ShardLease],
    ) -> Frontier:
        allowance_s = self.hourly.idle_after_s
        if allowance_s is not None:
            idle = self._idle.idle(
                self._caught_up(leases), now_s=self.clock(), allowance_s=allowance_s
            )
            shards = [replace(shard, idle=shard.shard in idle) for shard in shards]
        out_of_order = timedelta(seconds=self.hourly.out_of_order_s)
        return frontier(shards, unlisted=unlisted, out_of_order=out_of_order)

    def _caught_up(self, leases: Sequence[ShardLease]) -> dict[ShardId, str | None]:
        """The checkpoints of shards that have nothing to read; none where nobody can tell."""
        try:
            places = {lease.shard: lease.check_point for lease in leases}
            bounds, _ = bounds_of(self.hourly.stream.source, places)
        except SourceUnavailable:
            return {}
        return {
            lease.shard: lease.check_point
            for lease in leases
            if lease.shard in bounds
            and (lease.check_point or bounds[lease.shard].begin) == bounds[lease.shard].end
        }

    def _launchable(self, hours: Sequence[datetime]) -> list[datetime]:
        """The hours that Dagster knows as partitions: those that this host's clock has passed."""
        if not hours:
            return []
        last = self.hourly.partitions.get_last_partition_key()
        return [hour for hour in hours if last is not None and hour_key(hour) <= last]

    def _late_records(self, store: LeaseStore) -> LateRecords:
        if self._late is None:
            root = self.deployment.output_folder(self.hourly.stream.key)
            self._late = LateRecords(self.hourly, store, root)
        return self._late

    def _due_again(self, waiting: Sequence[EventWindow]) -> list[EventWindow]:
        """Hours to make again now: not the same twice, and none too often."""
        now_s = self.clock()
        self._asked_again = {
            window.start: self._asked_again[window.start]
            for window in waiting
            if window.start in self._asked_again
        }
        due: list[EventWindow] = []
        for window in waiting:
            version, at_s = self._asked_again.get(window.start, (0, float("-inf")))
            if version != window.version and now_s - at_s >= self.hourly.late.wait_s:
                self._asked_again[window.start] = (window.version, now_s)
                due.append(window)
        return due

    def _request(self, hour: datetime, why: str) -> dg.RunRequest:
        key = hour_key(hour)
        return dg.RunRequest(
            run_key=f"{self.hourly.name}:{key}:{why}",
            partition_key=key,
            asset_selection=[self.hourly.key],
            # Whether the hour is complete was decided here, with what only this process knows.
            run_config=dg.RunConfig(ops={self.hourly.name: WindowConfig(even_if_incomplete=True)}),
            tags={STREAM_TAG: self.hourly.stream.name},
        )

    def _observation(self, window: EventWindow) -> dg.AssetObservation:
        return dg.AssetObservation(
            self.hourly.key,
            partition=hour_key(window.start),
            description="Records came after their hour was made.",
            metadata={
                "late_records": window.late,
                "policy": self.hourly.late.action.value,
            },
        )

    def _said(
        self,
        found: Frontier,
        next_hour: datetime,
        launched: Sequence[datetime],
        early: int,
        counted: Sequence[EventWindow],
    ) -> str:
        parts = [found.said]
        if launched:
            parts.append(f"asked for {len(launched)} hours from {hour_key(launched[0])} on")
        if early:
            parts.append(f"{early} hours lie ahead of this host's clock")
        for window in counted:
            action = self.hourly.late.action.value
            parts.append(f"{window.late} late records of {hour_key(window.start)}: {action}")
        parts.append(f"next is {next_hour.astimezone(UTC).isoformat()}")
        return "; ".join(parts)


def build_watermark_sensor(
    hourly: HourlyAsset, deployment: Deployment, clock: Clock = steady_clock
) -> dg.SensorDefinition:
    """The sensor `<asset>_watermark`; `clock` gives monotonic seconds."""
    rounds = WatermarkRounds(hourly, deployment, clock)

    @dg.sensor(
        name=f"{hourly.name}_watermark",
        asset_selection=dg.AssetSelection.assets(hourly.key),
        minimum_interval_seconds=EVERY_LOOP_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Asks for an hour of {hourly.name} when every shard of {hourly.stream.name} "
        "has passed it, and counts the records that come too late for theirs.",
    )
    def watermark(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        try:
            result = rounds.tick(context.cursor)
        except LeaseholdError as error:
            context.log.warning(str(error))
            return dg.SensorResult(skip_reason=str(error), cursor=context.cursor)
        return result

    return watermark
