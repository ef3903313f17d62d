"""The sensor that cleans up after runs that died, and deletes old history."""

from __future__ import annotations

import uuid

import dagster as dg

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.partitions import definition_name
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.sensors import EVERY_THIRD_LOOP_S
from dagster_leasehold.sensors.history_rounds import HistoryRounds
from dagster_leasehold.sensors.run_cleaning import RunCleaning


def build_janitor_sensor(
    stream: ShardStream, deployment: Deployment, clock: Clock = steady_clock
) -> dg.SensorDefinition:
    """Return the sensor `<stream>_janitor`; `clock` gives monotonic seconds."""
    cleaning = RunCleaning(stream, deployment, clock, lambda: str(uuid.uuid4()))
    history = HistoryRounds(stream.key, deployment, clock, stream.output_age)

    @dg.sensor(
        name=f"{definition_name(stream)}_janitor",
        minimum_interval_seconds=EVERY_THIRD_LOOP_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Fails runs of {stream.name} whose process is gone, frees the shards that "
        "they left open, ends runs that lost their leases, deletes old rows of history and "
        "forgets committed output that has expired.",
    )
    def janitor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        try:
            done = cleaning.clean(context.instance) + history.tick()
        except LeaseholdError as error:
            return dg.SkipReason(str(error))
        return dg.SkipReason("; ".join(done) or "No run is dead, and none goes on without a lease.")

    return janitor
