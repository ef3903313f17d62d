"""A stream's schedule, which launches runs at fixed times in addition to the sensor."""

import dagster as dg

from dagster_leasehold.assets.deployment import LEASEHOLD, deployment_in, instance_address
from dagster_leasehold.assets.partitions import definition_name
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.group_rows import Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.sensors.active_runs import ActiveRuns, queued_shards
from dagster_leasehold.sensors.launch_choice import Launch
from dagster_leasehold.sensors.launch_round import run_request

CRON = "*/5 * * * *"


def due_launches(
    snapshot: Snapshot, nodes: tuple[NodeName, ...], busy_shards: set[str], shards_per_run: int
) -> list[Launch]:
    """Return runs for the shards of `nodes` that no run has open and that are not busy."""
    launches: list[Launch] = []
    for node in nodes:
        own_shards: list[ShardId] = [
            row.shard
            for row in snapshot.shards
            if row.consumer_owner == node and not row.consumer_run and row.shard not in busy_shards
        ]
        for first in range(0, len(own_shards), shards_per_run):
            launches.append(Launch(node, tuple(own_shards[first : first + shards_per_run])))
    return launches


def build_schedule(stream: ShardStream, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Return the schedule `<stream>_every_5_minutes`, stopped until a user starts it."""

    @dg.schedule(
        name=f"{definition_name(stream)}_every_5_minutes",
        job=job,
        cron_schedule=CRON,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Consumes all shards of {stream.name} that this deployment holds, even if no "
        "records are unread. The rebalance sensor launches runs only for shards with unread "
        "records. Start this schedule as well if your source cannot report unread records.",
        required_resource_keys={LEASEHOLD},
    )
    def every_5_minutes(
        context: dg.ScheduleEvaluationContext,
    ) -> list[dg.RunRequest] | dg.SkipReason:
        deployment = deployment_in(context.resources)
        try:
            snapshot = deployment.store().snapshot(stream.key)
        except LeaseholdError as error:
            return dg.SkipReason(str(error))
        active = ActiveRuns(context.instance).of(stream)
        busy_shards = {shard for run in active for shard in run.shards}
        shards = [row.shard for row in snapshot.shards]
        busy_shards |= queued_shards(context.instance, stream, shards)
        address = instance_address(context.instance)
        own_nodes = deployment.own(snapshot.nodes, address)
        incarnations = {node.name: node.incarnation for node in own_nodes}
        nodes = tuple(incarnations)
        launches = due_launches(snapshot, nodes, busy_shards, stream.pace.shards_per_run)
        if not launches:
            return dg.SkipReason(f"This deployment holds no idle shard of {stream.name}.")
        return [run_request(stream, launch, incarnations[launch.node]) for launch in launches]

    return every_5_minutes
