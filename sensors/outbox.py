"""The sensor that delivers what runs committed and died before they could report."""

import json

import dagster as dg

from assets.deployment import Deployment
from assets.materialization import committed_ranges, materialization_of
from assets.partitions import definition_name
from assets.progress_mirror import mirror_progress
from assets.shard_stream import ShardStream
from lease_store import failpoints
from lease_store.errors import LeaseholdError
from lease_store.failpoints import Failpoint
from sensors import EVERY_LOOP_S
from sensors.unreported import left_behind, not_shown

EVENTS_PER_TICK_MAX = 200


def delivered_before(cursor: str | None) -> list[int]:
    """The sequences that the tick before emitted; an unreadable cursor counts as none."""
    try:
        found = json.loads(cursor or "[]")
    except (ValueError, RecursionError):
        return []
    return [item for item in found if isinstance(item, int)] if isinstance(found, list) else []


def build_outbox_sensor(stream: ShardStream, deployment: Deployment) -> dg.SensorDefinition:
    """The sensor `<stream>_outbox`.

    Rows are flagged one tick after they were emitted, because Dagster stores a tick's events and
    then its cursor:

    1. tick n emits rows 7 and 8 and returns the cursor [7, 8];
    2. the daemon stores both events, then the cursor;
    3. tick n + 1 reads [7, 8] from the cursor and flags the rows.

    Killed before 2, nothing was stored and tick n + 1 emits them again. Killed within 2, the cursor
    is old, and tick n + 1 finds in Dagster what was stored. Flagged in tick n, they would be lost.
    """

    @dg.sensor(
        name=f"{definition_name(stream)}_outbox",
        minimum_interval_seconds=EVERY_LOOP_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Reports what runs of {stream.name} committed and could not report "
        "themselves, because they were killed.",
    )
    def outbox(context: dg.SensorEvaluationContext) -> dg.SensorResult:
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
        due = orphaned[:EVENTS_PER_TICK_MAX]
        ranges = committed_ranges(not_shown(context.instance, stream, due))
        if ranges:
            failpoints.reach(Failpoint.BEFORE_EMIT)
        said = (
            f"{len(pending)} undelivered, {len(pending) - len(orphaned)} left to their runs, "
            f"{len(due)} delivered as {len(ranges)} materializations."
        )
        if unmirrored := mirror_progress(store, stream, [found.shard for found in ranges]):
            said = f"{said} {unmirrored}"
        return dg.SensorResult(
            asset_events=[materialization_of(stream, committed) for committed in ranges],
            cursor=json.dumps([event.sequence for event in due]),
            skip_reason=said,
        )

    return outbox
