"""Consumes one node's shards in a Dagster run: the batch loop, its heartbeat and watchdog.

The assets and jobs of a stream call it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from dagster_leasehold.assets.consuming.bootstrapping import bootstrap_cursors
from dagster_leasehold.assets.consuming.consumption import Consumer
from dagster_leasehold.assets.consuming.consumption_report import ConsumptionReport
from dagster_leasehold.assets.consuming.following import Follow
from dagster_leasehold.assets.consuming.spark_sweeper import SparkSweeper
from dagster_leasehold.assets.consuming.sweep import GuardedSeparateJobs, GuardedSweeper
from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.guarding.job_watch import STARVED_AFTER_S
from dagster_leasehold.assets.guarding.run_on_spark import RunOnSpark, guarded_run
from dagster_leasehold.assets.guarding.stall_guard import StallGuard, guarded_source
from dagster_leasehold.assets.output.folder_owner import owned
from dagster_leasehold.assets.output.table.assigned_location import create_assigned_table
from dagster_leasehold.assets.output.table.columns import ColumnAgreement, stream_routes
from dagster_leasehold.assets.output.table.publish_rounds import PublishingRun, PublishRounds
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.lease_store.errors import InvalidSetting, StoreError
from dagster_leasehold.lease_store.group_rows import BEAT_FRACTION_MAX, Group, Node, Timing
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchCommit
from dagster_leasehold.lease_store.member import Member
from dagster_leasehold.lease_store.node_planning import NodePlanner
from dagster_leasehold.lease_store.rules.liveness import steady_clock
from dagster_leasehold.lease_store.store import LeaseStore

_LOG = logging.getLogger(__name__)
EVENTS = "Dagster's storage to take events"


def consume_shards(
    stream: ShardStream,
    deployment: Deployment,
    *,
    spark: SparkResource,
    node: NodeName,
    incarnation: str,
    run: str,
    shards: Sequence[ShardId],
    after_commit: Callable[[Sequence[BatchCommit]], None] = lambda _: None,
    between_batches: Callable[[], None] = lambda: None,
    follow: Follow | None = None,
    warn: Callable[[str], None] = _LOG.warning,
    ended: Callable[[str], bool] = lambda _: False,
    starved_after_s: float = STARVED_AFTER_S,
) -> tuple[list[ConsumptionReport], float]:
    """Consume shards that `node` holds; return a report per shard, and the duration in seconds.

    `after_commit` is called with the batches right after each commit, and `between_batches` about
    once a second between batches. With `follow`, the run waits for more records when it has caught
    up; otherwise it ends. `warn` logs a warning, for example that Spark has run no task for
    `starved_after_s` seconds. `ended` returns True if another run has ended.

    The run sends heartbeats for its node, so the node stays alive if the sensor's process dies. A
    run that follows its shards also plans for its node, and opens the shards that the node gains.

    Raises:
        LeaseholdError: the whole run failed, for example because the store does not answer.
    """
    store = deployment.store()
    pulse = store.pulse(stream.key)
    planner = NodePlanner(store, stream.key, node, observer=f"run {run}", clock=steady_clock)
    nodes = {node: incarnation}
    rounds = PublishRounds(stream, deployment, nodes.copy, time.monotonic, run, ended)
    started_s = time.monotonic()
    with (
        StallGuard(stream.pace.stall_limit_s, time.monotonic) as guard,
        guarded_run(
            spark,
            guard,
            run=run,
            work=f"stream {stream.name}",
            warn=warn,
            ended=ended,
            starved_after_s=starved_after_s,
        ) as on_spark,
        _member(store, pulse.group, Node(node, 0, incarnation)) as heartbeat,
        PublishingRun(rounds) as publishing,
    ):
        sweeper, separate_jobs = _guarded_sweepers(stream, deployment, on_spark, heartbeat, guard)
        consumer = Consumer(
            stream=replace(stream, source=guarded_source(stream.source, guard)),
            store=store,
            node=node,
            run=run,
            sweeper=sweeper,
            separate_jobs=separate_jobs,
            heartbeat=heartbeat,
            clock=time.monotonic,
            stop_requested=deployment.leaving,
            after_commit=_publishing_commits(publishing, guard, after_commit),
            between_batches=lambda: guard.call(EVENTS, between_batches),
            bootstrap=bootstrap_cursors(pulse, node),
            follow=follow and _guarded_follow(follow, guard, planner, run),
            unfinished_by=on_spark.add_predecessor,
        )
        reports = consumer.consume(shards)
    return list(reports.values()), time.monotonic() - started_s


def _output_folder(store: LeaseStore, stream: ShardStream, deployment: Deployment) -> OutputPlace:
    """Return the folder of the group's output, whose location the catalog can assign."""
    if deployment.catalog.assigns:
        if stream.route_column:
            raise InvalidSetting(
                f"Catalog {deployment.catalog.name} assigns the location of each table, and the "
                "tables of routes share their files: remove route, or use another catalog."
            )
        create_assigned_table(store, stream.key, stream.iceberg, deployment.catalog)
    return owned(store, deployment.output_folder(stream.key))


def _member(store: LeaseStore, group: Group, node: Node) -> Member:
    timing = Timing(timeout_s=group.timeout_s, beat_s=group.timeout_s * BEAT_FRACTION_MAX)
    return Member(store, group.key, node, timing, steady_clock)


def _publishing_commits(
    publishing: PublishingRun, guard: StallGuard, report: Callable[[Sequence[BatchCommit]], None]
) -> Callable[[Sequence[BatchCommit]], None]:
    """Return a function that publishes after a commit, and reports it under the watchdog."""

    def committed(commits: Sequence[BatchCommit]) -> None:
        publishing.committed()
        guard.call(EVENTS, lambda: report(commits))

    return committed


def _guarded_sweepers(
    stream: ShardStream,
    deployment: Deployment,
    spark: RunOnSpark,
    heartbeat: Member,
    guard: StallGuard,
) -> tuple[GuardedSweeper, GuardedSeparateJobs]:
    store = deployment.store()
    on_spark = SparkSweeper(
        stream=stream,
        spark=spark,
        output_root=_output_folder(store, stream, deployment),
        must_stop=lambda: not heartbeat.trusted,
        names=ColumnAgreement(store, stream.key).earlier_names(),
        routes=partial(stream_routes, store, stream.key),
    )
    sweeper = GuardedSweeper(on_spark, guard, lambda: spark.awaited, lambda: spark.starved)
    return sweeper, GuardedSeparateJobs(sweeper, on_spark.retry, guard, spark.mark_hung)


def _guarded_follow(follow: Follow, guard: StallGuard, planner: NodePlanner, run: str) -> Follow:
    """Return `follow` with the node's planner, and with the watchdog over Dagster's storage."""
    answer = "Dagster's storage to answer"

    def gained() -> Sequence[ShardId]:
        try:
            return planner.gained(run)
        except StoreError as error:
            # The run's own shards stay safe, because the heartbeat still checks their leases.
            _LOG.warning("Run %s could not plan for its node: %s", run, error)
            return ()

    return replace(
        follow,
        requests=lambda: guard.call(answer, follow.requests),
        gained=gained,
        show=lambda progress: guard.call(answer, lambda: follow.show(progress)),
    )
