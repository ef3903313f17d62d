"""The rows of the outbox that are left to the outbox sensor: nobody else reports them."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from dagster_leasehold.assets.deployment import instance_address
from dagster_leasehold.assets.materialization import RUN_KEY
from dagster_leasehold.assets.partitions import asset_key
from dagster_leasehold.assets.run_process import ended_runs
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.journal_rows import OutboxEvent
from dagster_leasehold.lease_store.roles.groups import Groups

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
