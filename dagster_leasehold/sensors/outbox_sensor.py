"""The sensor that reports the commits of runs that died before they could report them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import dagster as dg

from dagster_leasehold.assets.deployment import Deployment, instance_address
from dagster_leasehold.assets.materialization import (
    RUN_KEY,
    committed_ranges,
    materialization_of,
    mirror_progress,
)
from dagster_leasehold.assets.partitions import asset_key, definition_name
from dagster_leasehold.assets.run_process import ended_runs
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.journal_rows import OutboxEvent
from dagster_leasehold.lease_store.roles.groups import Groups
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.tracing import fail, span
from dagster_leasehold.sensors import EVERY_THIRD_LOOP_S

EVENTS_PER_TICK_MAX = 200
SHOWN_MAX = 2_000
"""The most materializations that are read, the newest; older ones may be reported again."""


def left_behind(
    instance: dg.DagsterInstance, stream: ShardStream, store: Groups, pending: Sequence[OutboxEvent]
) -> list[OutboxEvent]:
    """Return the events of runs that will not report them themselves any more, in order.

    A run that the instance does not know is another deployment's. That deployment reports it, as
    long as the node that held the shard is a member of the group and registered from there.
    """
    ended = ended_runs(instance, {event.run for event in pending})
    if not ended:
        return []
    unknown = ended - {
        run.run_id for run in instance.get_runs(filters=dg.RunsFilter(run_ids=sorted(ended)))
    }
    if unknown:
        address = instance_address(instance)
        nodes = store.snapshot(stream.key).nodes
        elsewhere = {node.name for node in nodes if node.member and node.address != address}
        ended -= {
            event.run
            for event in pending
            if event.run in unknown and event.payload.get("holder") in elsewhere
        }
    return [event for event in pending if event.run in ended]


def not_shown(
    instance: dg.DagsterInstance, stream: ShardStream, events: Sequence[OutboxEvent]
) -> list[OutboxEvent]:
    """Return the events that no materialization covers yet.

    A run can die between its report and the flag on its rows, and the daemon between a tick's
    events and the tick's cursor. Either left materializations that name the batches.
    """
    if not events:
        return []
    shards: list[str] = sorted({event.shard for event in events})
    shown = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key(stream), asset_partitions=shards), limit=SHOWN_MAX
    )
    spans: dict[tuple[str, str | None], list[tuple[int, int]]] = {}
    for record in shown.records:
        event = record.asset_materialization
        if event is None or "first_batch" not in event.metadata:
            continue
        reporter = event.metadata.get(RUN_KEY)
        run = str(reporter.value) if reporter else record.run_id
        first, last = (_number(event.metadata[key].value) for key in ("first_batch", "last_batch"))
        spans.setdefault((run, event.partition), []).append((first, last))

    def covered(event: OutboxEvent) -> bool:
        batch = _number(event.batch_id)
        return any(
            first <= batch <= last for first, last in spans.get((event.run, event.shard), [])
        )

    return [event for event in events if not covered(event)]


def _number(batch_id: object) -> int:
    return int(str(batch_id).rpartition(".")[2])


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
        asset_selection=dg.AssetSelection.assets(asset_key(stream)),
        minimum_interval_seconds=EVERY_THIRD_LOOP_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Reports what runs of {stream.name} committed but could not report, because "
        "they were killed.",
    )
    @span("tick", stream.key, sensor="outbox")
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
            fail(str(error))
            # The cursor stays: what it names is flagged as soon as the store answers again.
            return dg.SensorResult(skip_reason=str(error), cursor=context.cursor)
        due = [event for event in orphaned if not steps.wait_s(_step(event.shard))]
        reported = _reported(context.instance, stream, due[:EVENTS_PER_TICK_MAX], steps)
        if any(each.materializations for each in reported):
            failpoints.reach("before_emit")
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
