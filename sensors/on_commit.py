"""The sensor that calls a stream's `on_commit` for what was committed."""

from __future__ import annotations

import random
from collections.abc import Callable

import dagster as dg

from dagster_leasehold.assets.deployment import Deployment, instance_address
from dagster_leasehold.assets.partitions import definition_name
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.sensors import EVERY_LOOP_S
from dagster_leasehold.sensors.hook_delivery import HookDelivery


def build_on_commit_sensor(
    stream: ShardStream,
    deployment: Deployment,
    *,
    clock: Clock = steady_clock,
    jitter: Callable[[], float] = random.random,
) -> dg.SensorDefinition:
    """The sensor `<stream>_on_commit`, for a stream that declares the hook.

    `clock` gives monotonic seconds, `jitter` a number in [0, 1).
    """
    delivery = HookDelivery(stream, deployment, clock=clock, jitter=jitter)

    @dg.sensor(
        name=f"{definition_name(stream)}_on_commit",
        minimum_interval_seconds=EVERY_LOOP_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Calls the hook of {stream.name} for each committed batch, in order per "
        "shard, and again where it failed.",
    )
    def on_commit(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        try:
            report = delivery.tick(instance_address(context.instance))
        except LeaseholdError as error:
            context.log.warning(str(error))
            return dg.SensorResult(skip_reason=str(error))
        if report.failures or report.troubles:
            context.log.warning(str(report))
        return dg.SensorResult(skip_reason=str(report))

    return on_commit
