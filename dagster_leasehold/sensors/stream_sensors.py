"""The two sensors that `build_definitions` creates: one launches runs, one does all other work.

They are separate, because a launch must not wait for a publication or a slow source. Both are named
after their first stream, so their names are unique.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import dagster as dg

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.log_asset import log_asset_key
from dagster_leasehold.assets.partitions import asset_key, automation_job, definition_name
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.rules.liveness import steady_clock
from dagster_leasehold.sensors import EVERY_LOOP_S
from dagster_leasehold.sensors.compaction import compaction_step
from dagster_leasehold.sensors.janitor import janitor_step
from dagster_leasehold.sensors.on_commit import on_commit_step
from dagster_leasehold.sensors.outbox import outbox_step
from dagster_leasehold.sensors.publish import publish_step
from dagster_leasehold.sensors.rebalance import rebalance_step
from dagster_leasehold.sensors.shard_list import shard_list_step
from dagster_leasehold.sensors.steps import Step, StreamSteps, deployment_of_tick, opened_instance


def build_launching_sensor(
    streams: Sequence[ShardStream], deployment: Deployment, jobs: Sequence[dg.JobDefinition]
) -> dg.SensorDefinition:
    """Return the sensor `<stream>_rebalance`, which plans and launches runs.

    Args:
        deployment: the deployment whose nodes the description lists. A tick takes the deployment
            from the code location's resources.
    """
    nodes = "its nodes" if deployment.agents else ", ".join(deployment.nodes)
    alive = "" if deployment.agents else f"Keeps {nodes} alive. "
    return _sensor(
        f"{definition_name(streams[0])}_rebalance",
        f"{alive}Shares the shards of {_listed(streams)} with the other nodes of their groups, and "
        f"launches runs for the shards that {nodes} hold, and runs that merge small files.",
        lambda served: [
            *(rebalance_step(stream, served) for stream in streams),
            *(compaction_step(stream, served) for stream in streams if stream.retention.compact),
        ],
        jobs=[*jobs, *(automation_job(stream) for stream in streams)],
    )


def build_housekeeping_sensor(streams: Sequence[ShardStream]) -> dg.SensorDefinition:
    """Return the sensor `<stream>_housekeeping` of one or more streams."""

    def steps(served: Deployment) -> Iterator[Step]:
        for stream in streams:
            yield publish_step(stream, served)
            if stream.on_commit is not None:
                yield on_commit_step(stream, served)
            yield shard_list_step(stream, served)
            yield janitor_step(stream, served)
            yield outbox_step(stream, served)

    keys = [key for stream in streams for key in (asset_key(stream), log_asset_key(stream))]
    return _sensor(
        f"{definition_name(streams[0])}_housekeeping",
        f"For {_listed(streams)}: publishes committed batches, calls the hooks on commits, adds a "
        "partition for each new shard, cleans up after dead runs and reports their commits, and "
        "deletes old history and expired output.",
        steps,
        asset_selection=dg.AssetSelection.assets(*keys),
    )


def _sensor(
    name: str,
    description: str,
    steps: Callable[[Deployment], Iterable[Step]],
    *,
    jobs: Sequence[dg.JobDefinition | dg.UnresolvedAssetJobDefinition] | None = None,
    asset_selection: dg.AssetSelection | None = None,
) -> dg.SensorDefinition:
    of_process: list[StreamSteps] = []

    def steps_of_process(context: dg.SensorEvaluationContext) -> StreamSteps:
        if not of_process:
            served = deployment_of_tick(context)
            of_process.append(StreamSteps([*steps(served)], steady_clock))
        return of_process[0]

    @dg.sensor(
        name=name,
        jobs=jobs,
        asset_selection=asset_selection,
        minimum_interval_seconds=EVERY_LOOP_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=description,
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        work = steps_of_process(context)
        result = work.tick(opened_instance(context), context.cursor)
        if result.run_requests:
            # Dagster shows no reason for a tick that requests runs, so the reason goes to its log.
            context.log.info(work.explanation)
        return result

    return sensor


def _listed(streams: Sequence[ShardStream]) -> str:
    return ", ".join(stream.name for stream in streams)
