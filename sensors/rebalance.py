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
from dagster_leasehold.sensors.launch_round import Round, run_request
from dagster_leasehold.sensors.rebalance_memory import RebalanceMemory
from dagster_leasehold.sensors.tick_mark import leave_tick_mark

_LOG = logging.getLogger(__name__)


def build_rebalance_sensor(
    stream: ShardStream, deployment: Deployment, job: dg.JobDefinition, clock: Clock = steady_clock
) -> dg.SensorDefinition:
    """Return the sensor `<stream>_rebalance`; `clock` gives monotonic seconds.

    Its memory lives in the code server's process. The cursor carries the part that a restarted
    server must know: under which incarnation its nodes are alive, and since when others are not.
    """
    name = f"{definition_name(stream)}_rebalance"
    memories: list[RebalanceMemory] = []
    busy = Lock()

    def memory(instance: dg.DagsterInstance) -> RebalanceMemory:
        if not memories:
            address = ensure_instance_address(instance)
            memories.append(
                RebalanceMemory(stream, deployment, address=address, observer=name, clock=clock)
            )
        return memories[0]

    @dg.sensor(
        name=name,
        job=job,
        minimum_interval_seconds=EVERY_LOOP_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=_description(stream, deployment),
    )
    def rebalance(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        remembered = context.cursor or ""
        # The daemon gives a tick up after 60 s and starts the next, while the first goes on here.
        if not busy.acquire(blocking=False):
            reason = "The last tick is still at work: see what its store or source waits for."
            return dg.SensorResult(skip_reason=reason, cursor=remembered)
        ticked = False
        try:
            own = memory(context.instance)
            report = own.tick(remembered)
            remembered, ticked = report.remembered, True
            launched = _launched(own, context.instance, report)
        except LeaseholdError as error:
            context.log.warning(str(error))
            return dg.SensorResult(skip_reason=str(error), cursor=remembered)
        finally:
            if ticked and deployment.agents:
                leave_tick_mark(context, stream.key)
            busy.release()
        explanation = "; ".join((report.explanation, *launched.notes))
        log = context.log.warning if report.troubles else context.log.info
        log(explanation)
        incarnations = {node.name: node.incarnation for node in report.snapshot.nodes}
        requests = [
            run_request(stream, launch, incarnations[launch.node], own.rounds.definition)
            for launch in launched.launches
            if launch.node in incarnations
        ]
        return dg.SensorResult(
            run_requests=requests, skip_reason=None if requests else explanation, cursor=remembered
        )

    return rebalance


def _description(stream: ShardStream, deployment: Deployment) -> str:
    """Return the sensor's description; without agents, it keeps the nodes alive itself."""
    if deployment.agents:
        return (
            f"Shares the shards of {stream.name} with the group's other nodes, and launches runs "
            "for those that its nodes hold."
        )
    nodes = ", ".join(deployment.nodes)
    return (
        f"Keeps {nodes} alive, shares the shards of {stream.name} with the group's other nodes, "
        f"and launches runs for those that {nodes} hold."
    )


def _launched(memory: RebalanceMemory, instance: dg.DagsterInstance, report: TickReport) -> Round:
    """Return a round of launching; one that fails leaves what the tick did and remembers."""
    try:
        return memory.rounds.run(instance, report)
    except Exception as error:
        if not isinstance(error, LeaseholdError):
            _LOG.error("No run is launched: %s", sentence_of(error), exc_info=error)
        return Round(notes=(f"nothing is launched: {sentence_of(error)}",))
