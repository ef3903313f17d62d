"""The sensor that rebalances a stream's group for the served nodes and launches their runs."""

import logging
from threading import Lock

import dagster as dg

from dagster_leasehold.assets.deployment import Deployment, ensure_instance_address
from dagster_leasehold.assets.partitions import definition_name
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.rules.failing_steps import sentence_of
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.tick_report import TickReport
from dagster_leasehold.sensors import EVERY_LOOP_S
from dagster_leasehold.sensors.launch_round import Round
from dagster_leasehold.sensors.rebalance_memory import RebalanceMemory
from dagster_leasehold.sensors.run_requests import run_request
from dagster_leasehold.sensors.tick_mark import leave_tick_mark

_LOG = logging.getLogger(__name__)


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
    kept: list[RebalanceMemory] = []
    busy = Lock()

    def memory(instance: dg.DagsterInstance) -> RebalanceMemory:
        if not kept:
            address = ensure_instance_address(instance)
            kept.append(
                RebalanceMemory(stream, deployment, address=address, observer=name, clock=clock)
            )
        return kept[0]

    @dg.sensor(
        name=name,
        job=job,
        minimum_interval_seconds=EVERY_LOOP_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"{_beating(deployment)}hares the shards of {stream.name} with the group's "
        "other nodes, and launches runs for what they hold.",
    )
    def rebalance(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        remembered = context.cursor or ""
        # The daemon gives a tick up after 60 s and starts the next, while the first goes on here.
        if not busy.acquire(blocking=False):
            said = "The tick before is still at work: see what its store or source waits for."
            return dg.SensorResult(skip_reason=said, cursor=remembered)
        ticked = False
        try:
            known = memory(context.instance)
            report = known.tick(remembered)
            remembered, ticked = report.remembered, True
            found = _launched(known, context.instance, report)
        except LeaseholdError as error:
            context.log.warning(str(error))
            return dg.SensorResult(skip_reason=str(error), cursor=remembered)
        finally:
            if ticked and deployment.agents:
                leave_tick_mark(context, stream.key)
            busy.release()
        said = "; ".join((report.explanation, *found.notes))
        log = context.log.warning if report.troubles else context.log.info
        log(said)
        incarnations = {node.name: node.incarnation for node in report.snapshot.nodes}
        requests = [
            run_request(stream, launch, incarnations[launch.node])
            for launch in found.launches
            if launch.node in incarnations
        ]
        return dg.SensorResult(
            run_requests=requests, skip_reason=None if requests else said, cursor=remembered
        )

    return rebalance


def _beating(deployment: Deployment) -> str:
    """The beginning of the description: whom the sensor itself keeps alive."""
    return "S" if deployment.agents else f"Keeps {', '.join(deployment.nodes)} alive, s"


def _launched(known: RebalanceMemory, instance: dg.DagsterInstance, report: TickReport) -> Round:
    """A round of launching; one that fails leaves what the tick did, and what it remembers."""
    try:
        return known.rounds.run(instance, report)
    except Exception as error:
        if not isinstance(error, LeaseholdError):
            _LOG.error("No run is launched: %s", sentence_of(error), exc_info=error)
        return Round(notes=(f"nothing is launched: {sentence_of(error)}",))
