"""The step that rebalances a stream's group, and launches the runs of the served nodes."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime

import dagster as dg

from dagster_leasehold.assets.deployment import Deployment, ensure_instance_address
from dagster_leasehold.assets.partitions import definition_name
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark.connect_watch import register_keeper
from dagster_leasehold.lease_store.errors import LeaseholdError, UnknownGroup
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.process_identity import current_place
from dagster_leasehold.lease_store.rebalancing import FEW_SHARDS, Rebalancer, TickReport
from dagster_leasehold.lease_store.rules.failing_steps import sentence_of
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.shard_rows import Progress
from dagster_leasehold.lease_store.tracing import fail, note, span
from dagster_leasehold.sensors.active_runs import ActiveRuns
from dagster_leasehold.sensors.launch_round import LaunchRounds, Round, run_request
from dagster_leasehold.sensors.shard_list import sync_listing
from dagster_leasehold.sensors.statement_counts import Upkeep
from dagster_leasehold.sensors.steps import Outcome, Step, Tick
from dagster_leasehold.sensors.tick_mark import write_tick_mark
from dagster_leasehold.sensors.tick_watch import ServedShards, TickWatch, Wait

_LOG = logging.getLogger(__name__)
ROUNDS_MAX = 3
"""The most rounds of a tick. One finds a dead run, one frees its shards, one launches a run."""


class RebalanceState:
    """The state that a stream's ticks share: the observations of nodes, and the launches.

    The first tick creates it, because loading a code location must not open the lease store. Its
    times are monotonic.
    """

    def __init__(
        self,
        stream: ShardStream,
        deployment: Deployment,
        *,
        address: str,
        observer: str,
        clock: Clock,
    ) -> None:
        self._stream = stream
        self._deployment = deployment
        self._address = address
        store = deployment.store()
        self._rebalancer = Rebalancer(
            store,
            stream.key,
            serves=() if deployment.agents else deployment.nodes,
            timing=deployment.timing,
            observer=observer,
            incarnation_of=lambda _: uuid.uuid4().hex,
            clock=clock,
            beats=not deployment.agents,
            place=current_place(),
            serving=self._serving if deployment.agents else None,
            settings={name: stream.node(name, address=address) for name in deployment.nodes},
            follows_above=FEW_SHARDS,
        )
        self._upkeep = Upkeep(clock)
        if deployment.spark_folder is not None:
            # This process keeps Spark running for a while, so that the next run starts fast.
            register_keeper(deployment.spark_folder)
        self.rounds = LaunchRounds(stream, store, address, clock, lambda: str(uuid.uuid4()))

    def _serving(self, nodes: Iterable[Node]) -> tuple[NodeName, ...]:
        return self._deployment.served(nodes, self._address)

    @span("rebalance")
    def tick(self, remembered: str) -> TickReport:
        """Rebalance once; if the group has no shards yet, list them first.

        The step `shard_list` lists them at the same time, but this step would read its rows only at
        the next tick.
        """
        with suppress(UnknownGroup):
            report = self._tick(remembered)
            if report.snapshot.shards:
                return report
            remembered = report.remembered
        sync_listing(
            self._deployment.store(),
            self._stream,
            self._stream.source.list_shards(),
            timeout_s=self._deployment.timing.timeout_s,
        )
        return self._tick(remembered)

    def served(self, report: TickReport) -> ServedShards:
        """Return the served nodes' shards after the last round.

        If a run dies on another host, the agent there frees its shards, which only the lease store
        shows.
        """
        rounds, opened = self.rounds, _open_shards(report.progress.values())
        if not (self._deployment.agents and opened):
            return ServedShards(rounds.quiet, rounds.processes)

        def freed() -> bool:
            rows = self._deployment.store().progress(self._stream.key, report.owned)
            return not opened <= _open_shards(rows.values())

        return ServedShards(rounds.quiet, rounds.processes, freed)

    def _tick(self, remembered: str) -> TickReport:
        report = self._rebalancer.tick(remembered)
        note(nodes=len(report.owned), shards=len(report.snapshot.shards))
        if self._deployment.upkeep_file is not None:
            self._upkeep.add(report.statements)
            upkeep = self._upkeep.report(
                term_s=report.snapshot.group.timeout_s,
                nodes=len(report.owned),
                at=datetime.now(UTC),
            )
            # An error in this report must not stop the node's heartbeats.
            with suppress(OSError):
                upkeep.save(self._deployment.upkeep_file(self._stream.key))
        return report


def rebalance_step(
    stream: ShardStream,
    deployment: Deployment,
    clock: Clock = steady_clock,
    wait: Wait | None = None,
) -> Step:
    """Return the step `rebalance`, which assigns shards to nodes and launches runs.

    The code server's process keeps its state. Its cursor has the part that a restarted server
    needs: the incarnations of its own nodes, and how long other nodes have sent no heartbeat.

    Args:
        wait: waits a number of seconds within a tick; None uses a wait that the end of the tick
            interrupts.
    """
    states: list[RebalanceState] = []
    watch = TickWatch(stream.source, stream.pace.commit_interval_s, clock)

    def state(instance: dg.DagsterInstance) -> RebalanceState:
        if not states:
            address = ensure_instance_address(instance)
            observer = f"{definition_name(stream)}_rebalance"
            states.append(
                RebalanceState(stream, deployment, address=address, observer=observer, clock=clock)
            )
        return states[0]

    def work(tick: Tick) -> Outcome:
        remembered, has_ticked, began_s = tick.cursor, False, clock()
        freed: list[str] = []
        try:
            own = state(tick.instance)
            report = own.tick(remembered)
            remembered, has_ticked = report.remembered, True
            launch_round = _launched(own, tick.runs, report)
            for _ in range(ROUNDS_MAX - 1):
                if launch_round.freed:
                    freed += launch_round.notes
                elif launch_round.launches or not watch.wait_for_work(
                    tick.instance, own.served(report), began_s, wait or tick.over.wait
                ):
                    break
                report = own.tick(remembered)
                remembered = report.remembered
                launch_round = _launched(own, ActiveRuns(tick.instance), report)
        except LeaseholdError as error:
            return Outcome(str(error), cursor=remembered, trouble=True)
        finally:
            if has_ticked and deployment.agents:
                write_tick_mark(tick.instance, stream.key)
        return Outcome(
            "; ".join((report.explanation, *freed, *launch_round.notes)),
            _requests(stream, report, launch_round, own.rounds.definition),
            remembered,
            trouble=bool(report.troubles),
        )

    return Step(stream, "rebalance", work)


def _open_shards(rows: Iterable[Progress]) -> set[tuple[ShardId, str]]:
    return {(row.shard, row.consumer_run) for row in rows if row.consumer_run}


def _requests(
    stream: ShardStream, report: TickReport, launch_round: Round, definition: str
) -> list[dg.RunRequest]:
    incarnations = {node.name: node.incarnation for node in report.snapshot.nodes}
    return [
        run_request(stream, launch, incarnations[launch.node], definition)
        for launch in launch_round.launches
        if launch.node in incarnations
    ]


@span("launch")
def _launched(state: RebalanceState, runs: ActiveRuns, report: TickReport) -> Round:
    """Launch runs; a failure does not discard the rest of the tick."""
    try:
        launch_round = state.rounds.run(runs, report)
        note(runs=len(launch_round.launches))
        return launch_round
    except Exception as error:
        if not isinstance(error, LeaseholdError):
            _LOG.error("No run is launched: %s", sentence_of(error), exc_info=error)
        fail(sentence_of(error))
        return Round(notes=(f"nothing is launched: {sentence_of(error)}",))
