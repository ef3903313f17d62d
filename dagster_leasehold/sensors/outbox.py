"""The step that reports the commits of runs that died before they reported them."""

from __future__ import annotations

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
from dagster_leasehold.assets.partitions import asset_key
from dagster_leasehold.assets.run_process import ended_runs
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.journal_rows import OutboxEvent
from dagster_leasehold.lease_store.roles.groups import Groups
from dagster_leasehold.lease_store.roles.outbox import Outbox
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.sensors import EVERY_THIRD_LOOP_S
from dagster_leasehold.sensors.steps import Outcome, Step, Tick

EVENTS_PER_TICK_MAX = 200
MATERIALIZATIONS_MAX = 2_000
"""The most materializations that are read, newest first. An older commit can be reported twice."""


def unreported_events(
    instance: dg.DagsterInstance, stream: ShardStream, store: Groups, pending: Sequence[OutboxEvent]
) -> list[OutboxEvent]:
    """Return the events of runs that have ended without reporting them, in order.

    A run that is not in the instance belongs to another deployment, which reports its events while
    the node that held the shard is a member with that deployment's address.
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


def without_materialization(
    instance: dg.DagsterInstance, stream: ShardStream, events: Sequence[OutboxEvent]
) -> list[OutboxEvent]:
    """Return the events that no materialization covers.

    A run or this sensor can die after it has reported materializations, which name the batches,
    and before it has flagged the rows.
    """
    if not events:
        return []
    shards: list[str] = sorted({event.shard for event in events})
    materializations = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key(stream), asset_partitions=shards),
        limit=MATERIALIZATIONS_MAX,
    )
    spans: dict[tuple[str, str | None], list[tuple[int, int]]] = {}
    for record in materializations.records:
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


def outbox_step(stream: ShardStream, deployment: Deployment, clock: Clock = steady_clock) -> Step:
    """Return the step `outbox`; `clock` returns monotonic seconds.

    It flags the rows after Dagster has stored their events. If it is killed in between, the next
    call finds the events in Dagster and only flags the rows.
    """
    steps = FailingSteps(clock)

    def work(tick: Tick) -> Outcome:
        steps.begin()
        store = deployment.store()
        pending = store.pending_events(stream.key)
        orphans = unreported_events(tick.instance, stream, store, pending)
        due = [event for event in orphans if not steps.wait_s(_step(event.shard))]
        by_shard: dict[str, list[OutboxEvent]] = {}
        for event in due[:EVENTS_PER_TICK_MAX]:
            by_shard.setdefault(_step(event.shard), []).append(event)
        report = partial(_report, tick.instance, stream, store)
        reported = steps.attempt_all(by_shard, report)
        shards = [shard for each in reported for shard in each.shards]
        left_to_runs, rows = len(pending) - len(orphans), sum(each.rows for each in reported)
        line = (
            f"{len(pending)} unreported commits, {left_to_runs} left to active runs; "
            f"reported {rows} commits as {len(shards)} materializations."
        )
        mirror = partial(mirror_progress, store, stream, shards)
        unmirrored = steps.attempt(
            "writing checkpoints to the source's service", mirror, "", at_once=True
        )
        troubles = [each for each in (unmirrored, *(f"{note}." for note in steps.notes)) if each]
        return Outcome(" ".join((line, *troubles)), trouble=bool(troubles))

    return Step(stream, "outbox", work, EVERY_THIRD_LOOP_S)


@dataclass(frozen=True, slots=True)
class _ReportCount:
    rows: int
    shards: list[ShardId]


def _step(shard: ShardId) -> str:
    return f"reporting shard {shard}"


def _report(
    instance: dg.DagsterInstance,
    stream: ShardStream,
    store: Outbox,
    shards: list[list[OutboxEvent]],
) -> _ReportCount:
    """Report the events of several shards that Dagster does not have yet, and flag the rows."""
    rows = [event for events in shards for event in events]
    events = [
        materialization_of(stream, each)
        for each in committed_ranges(without_materialization(instance, stream, rows))
    ]
    if events:
        failpoints.reach("before_emit")
    for event in events:
        instance.report_runless_asset_event(event)
    store.mark_delivered(stream.key, [event.sequence for event in rows])
    return _ReportCount(len(rows), [ShardId(event.partition or "") for event in events])
