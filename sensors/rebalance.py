"""The sensor that rebalances a stream's group for the served nodes and launches their runs."""

import uuid
from dataclasses import dataclass

import dagster as dg

from assets.deployment import Deployment
from assets.partitions import definition_name
from assets.shard_stream import ShardStream
from lease_store.errors import LeaseholdError, UnknownGroup
from lease_store.liveness import Clock, steady_clock
from lease_store.rebalancing import Rebalancer
from sensors import EVERY_LOOP_S
from sensors.launch_round import LaunchRounds
from sensors.run_requests import run_request


@dataclass(slots=True)
class _Kept:
    """What the code server keeps between ticks: whom it saw when, on its own clock."""

    rebalancer: Rebalancer
    rounds: LaunchRounds


def build_rebalance_sensor(
    stream: ShardStream,
    deployment: Deployment,
    job: dg.JobDefinition,
    clock: Clock = steady_clock,
) -> dg.SensorDefinition:
    """The sensor `<stream>_rebalance`; `clock` gives monotonic seconds.

    Its memory lives in the code server's process. The cursor carries the part that a restarted
    server must know: under which incarnation its nodes are alive, and since when others are not.
    """
    name = f"{definition_name(stream)}_rebalance"
    kept: list[_Kept] = []

    def memory() -> _Kept:
        if not kept:
            store = deployment.store()
            rebalancer = Rebalancer(
                store,
                stream.key,
                serves=deployment.nodes,
                timing=deployment.timing,
                observer=name,
                incarnation_of=lambda _: uuid.uuid4().hex,
                clock=clock,
            )
            rounds = LaunchRounds(stream, store, clock, lambda: str(uuid.uuid4()))
            kept.append(_Kept(rebalancer, rounds))
        return kept[0]

    @dg.sensor(
        name=name,
        job=job,
        minimum_interval_seconds=EVERY_LOOP_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Keeps {', '.join(deployment.nodes)} alive, shares the shards of "
        f"{stream.name} with the group's other nodes, and launches runs for what they hold.",
    )
    def rebalance(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        remembered = context.cursor or ""
        try:
            report = memory().rebalancer.tick(remembered)
            remembered = report.remembered
            found = memory().rounds.run(context.instance, report)
        except UnknownGroup:
            said = (
                f"Consumer group {stream.key} does not exist yet: {name} waits for the shard list."
            )
            return dg.SensorResult(skip_reason=said, cursor=remembered)
        except LeaseholdError as error:
            context.log.warning(str(error))
            return dg.SensorResult(skip_reason=str(error), cursor=remembered)
        said = "; ".join((report.explanation, *found.notes))
        context.log.info(said)
        incarnations = memory().rebalancer.incarnations
        requests = [
            run_request(stream, launch, incarnations[launch.node]) for launch in found.launches
        ]
        return dg.SensorResult(
            run_requests=requests, skip_reason=None if requests else said, cursor=remembered
        )

    return rebalance
