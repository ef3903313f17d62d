"""The sensor that reports the commits of runs that died before they could report them."""

import json
from dataclasses import dataclass
from functools import partial

import dagster as dg

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.materialization import (
    committed_ranges,
    materialization_of,
    mirror_progress,
)
from dagster_leasehold.assets.partitions import definition_name
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.failpoints import Failpoint
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.journal_rows import OutboxEvent
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.sensors import EVERY_THIRD_LOOP_S
from dagster_leasehold.sensors.unreported import left_behind, not_shown

EVENTS_PER_TICK_MAX = 200


def delivered_before(cursor: str | None) -> list[int]:
    """Return the sequences that the last tick emitted; an unreadable cursor counts as none."""
    try:
        items = json.loads(cursor or "[]")
    except (ValueError, RecursionError):
        return []
    return [item for item in items if isinstance(item, int)] if isinstance(items, list) else []


def build_outbox_sensor(
    stream: ShardStream, deployment: Deployment, clock: Clock = steady_clock
) -> dg.SensorDefinition:
    """Return the sensor `<stream>_outbox`; `clock` gives monotonic seconds.

    Rows are flagged one tick after they were emitted, because Dagster stores a tick's events and
    then its cursor:

    1. tick n emits rows 7 and 8 and returns the cursor [7, 8];
    2. the daemon stores both events, then the cursor;
    3. tick n + 1 reads [7, 8] from the cursor and flags the rows.

    Killed before 2, nothing was stored and tick n + 1 emits them again. Killed within 2, the cursor
    is old, and tick n + 1 finds in Dagster what was stored. Flagged in tick n, they would be lost.
    """

    steps = FailingSteps(clock)

    @dg.sensor(
        name=f"{definition_name(stream)}_outbox",
        minimum_interval_seconds=EVERY_THIRD_LOOP_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Reports what runs of {stream.name} committed but could not report, because "
        "they were killed.",
    )
    def outbox(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        steps.begin()
        emitted = delivered_before(context.cursor)
        try:
            store = deployment.store()
            if emitted:
                store.mark_delivered(stream.key, emitted)
            pending = store.pending_events(stream.key)
            orphaned = left_behind(context.instance, stream, store, pending)
        except LeaseholdError as error:
            # The cursor stays: what it names is flagged as soon as the store answers again.
            return dg.SensorResult(skip_reason=str(error), cursor=context.cursor)
        due = [event for event in orphaned if not steps.wait_s(_step(event.shard))]
        reported = _reported(context.instance, stream, due[:EVENTS_PER_TICK_MAX], steps)
        if any(each.materializations for each in reported):
            failpoints.reach(Failpoint.BEFORE_EMIT)
        events = [event for each in reported for event in each.materializations]
        sequences = [event.sequence for each in reported for event in each.rows]
        explanation = (
            f"{len(pending)} undelivered, {len(pending) - len(orphaned)} left to their runs, "
            f"{len(sequences)} delivered as {len(events)} materializations."
        )
        mirror = partial(
            mirror_progress, store, stream, [ShardId(e.partition or "") for e in events]
        )
        if unmirrored := steps.attempt("telling the source's service", mirror, "", at_once=True):
            explanation = f"{explanation} {unmirrored}"
        for trouble in steps.notes:
            context.log.warning(trouble)
            explanation = f"{explanation} {trouble}."
        return dg.SensorResult(
            asset_events=events, cursor=json.dumps(sorted(sequences)), skip_reason=explanation
        )

    return outbox


@dataclass(frozen=True, slots=True)
class _Reported:
    """Rows of the outbox, and the materializations of those that Dagster does not show yet."""

    rows: list[OutboxEvent]
    materializations: list[dg.AssetMaterialization]


def _step(shard: ShardId) -> str:
    return f"reporting shard {shard}"


def _reported(
    instance: dg.DagsterInstance, stream: ShardStream, due: list[OutboxEvent], steps: FailingSteps
) -> list[_Reported]:
    """Return what is to be emitted, of all shards at once; nothing of a shard that fails."""
    by_shard: dict[str, list[OutboxEvent]] = {}
    for event in due:
        by_shard.setdefault(_step(event.shard), []).append(event)

    def report(shards: list[list[OutboxEvent]]) -> _Reported:
        rows = [event for events in shards for event in events]
        ranges = committed_ranges(not_shown(instance, stream, rows))
        return _Reported(rows, [materialization_of(stream, each) for each in ranges])

    return steps.attempt_all(by_shard, report)
