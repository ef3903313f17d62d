"""The schedule of a stream, for deployments that want fixed times instead of a sensor's runs."""

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
    snapshot: Snapshot, nodes: tuple[NodeName, ...], taken: set[str], shards_per_run: int
) -> list[Launch]:
    """Return runs for all shards that served nodes hold and that no run serves."""
    launches: list[Launch] = []
    for node in nodes:
        own_shards: list[ShardId] = [
            row.shard
            for row in snapshot.shards
            if row.consumer_owner == node and not row.consumer_run and row.shard not in taken
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
        description=f"Consumes all shards of {stream.name} that this deployment holds, even those "
        "with nothing new. The rebalance sensor launches runs when there is something to "
        "read: start this schedule in addition to it, for a source whose news it cannot see.",
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
        taken = {shard for run in active for shard in run.shards}
        taken |= queued_shards(context.instance, stream, [row.shard for row in snapshot.shards])
        address = instance_address(context.instance)
        own = deployment.own(snapshot.nodes, address)
        incarnations = {node.name: node.incarnation for node in own}
        nodes = tuple(incarnations)
        launches = due_launches(snapshot, nodes, taken, stream.pace.shards_per_run)
        if not launches:
            return dg.SkipReason(f"No shard of {stream.name} is held here and idle.")
        return [run_request(stream, launch, incarnations[launch.node]) for launch in launches]

    return every_5_minutes
