"""A run consuming shards of one node: the heartbeat around the batch loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from dagster_leasehold.assets.consuming.bootstrapping import bootstrap_cursors
from dagster_leasehold.assets.consuming.consumption import Consumer
from dagster_leasehold.assets.consuming.consumption_report import ConsumptionReport
from dagster_leasehold.assets.consuming.following import Follow
from dagster_leasehold.assets.consuming.spark_sweeper import SparkSweeper
from dagster_leasehold.assets.consuming.sweep import GuardedApart, GuardedSweeper
from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.guarding.job_watch import STARVED_AFTER_S
from dagster_leasehold.assets.guarding.run_on_spark import RunOnSpark, guarded_run
from dagster_leasehold.assets.guarding.stall_guard import StallGuard, guarded_source
from dagster_leasehold.assets.output.folder_owner import owned
from dagster_leasehold.assets.output.table.publish_rounds import PublishingRun, PublishRounds
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.lease_store.errors import StoreError
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
    tell: Callable[[str], None] = _LOG.warning,
    ended: Callable[[str], bool] = lambda _: False,
    starved_after_s: float = STARVED_AFTER_S,
) -> tuple[list[ConsumptionReport], float]:
    """Consume shards that `node` holds; return a report per shard, and the duration in seconds.

    `after_commit` is called with every batch right after its commit, and `between_batches` about
    once a second while the run is at none. With `follow`, the run waits for more records once all
    are read; without, it ends then. `tell` takes a sentence for people while the run continues,
    such as after `starved_after_s` seconds when Spark runs no task; `ended` tells if another
    run is known to have ended.

    The run beats for its node, which lives on as long as the run works, should the sensor's process
    die. One that follows its shards plans for its node as well, and opens the shards it gains.

    Raises:
        LeaseholdError: what concerns the whole run, such as a store that does not answer.
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
            tell=tell,
            ended=ended,
            starved_after_s=starved_after_s,
        ) as on_spark,
        _member(store, pulse.group, Node(node, 0, incarnation)) as heartbeat,
        PublishingRun(rounds) as publishing,
    ):
        folder = owned(store, deployment.output_folder(stream.key))
        sweeper, apart = _guarded_sweepers(stream, on_spark, folder, heartbeat, guard)
        consumer = Consumer(
            stream=replace(stream, source=guarded_source(stream.source, guard)),
            store=store,
            node=node,
            run=run,
            sweeper=sweeper,
            apart=apart,
            heartbeat=heartbeat,
            clock=time.monotonic,
            stop_requested=deployment.leaving,
            after_commit=_commit_news(publishing, guard, after_commit),
            between_batches=lambda: guard.call(EVENTS, between_batches),
            bootstrap=bootstrap_cursors(pulse, node),
            follow=follow and _following(follow, guard, planner, run),
            unfinished_by=on_spark.succeed,
        )
        reports = consumer.consume(shards)
    return list(reports.values()), time.monotonic() - started_s


def _member(store: LeaseStore, group: Group, node: Node) -> Member:
    timing = Timing(timeout_s=group.timeout_s, beat_s=group.timeout_s * BEAT_FRACTION_MAX)
    return Member(store, group.key, node, timing, steady_clock)


def _commit_news(
    publishing: PublishingRun, guard: StallGuard, report: Callable[[Sequence[BatchCommit]], None]
) -> Callable[[Sequence[BatchCommit]], None]:
    """Return the function to call after a commit: it publishes, and reports under guard."""

    def committed(commits: Sequence[BatchCommit]) -> None:
        publishing.committed()
        guard.call(EVENTS, lambda: report(commits))

    return committed


def _guarded_sweepers(
    stream: ShardStream,
    spark: RunOnSpark,
    folder: OutputPlace,
    heartbeat: Member,
    guard: StallGuard,
) -> tuple[GuardedSweeper, GuardedApart]:
    on_spark = SparkSweeper(
        stream=stream, spark=spark, output_root=folder, doomed=lambda: not heartbeat.trusted
    )
    sweeper = GuardedSweeper(on_spark, guard, lambda: spark.awaited, lambda: spark.starved)
    return sweeper, GuardedApart(sweeper, on_spark.apart, guard, spark.note_hung)


def _following(follow: Follow, guard: StallGuard, planner: NodePlanner, run: str) -> Follow:
    """Return the way to follow: Dagster's storage is called under guard, and the run plans."""
    answer = "Dagster's storage to answer"

    def gained() -> Sequence[ShardId]:
        try:
            return planner.gained(run)
        except StoreError as error:
            # What keeps the run's own shards safe asks the store for itself.
            _LOG.warning("Run %s could not plan for its node: %s", run, error)
            return ()

    return replace(
        follow,
        requests=lambda: guard.call(answer, follow.requests),
        gained=gained,
        show=lambda progress: guard.call(answer, lambda: follow.show(progress)),
    )
