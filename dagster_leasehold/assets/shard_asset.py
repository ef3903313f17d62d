"""The asset of a stream: materializing a partition consumes that shard from its checkpoint."""

import time
from collections.abc import Iterable, Sequence
from functools import partial

import dagster as dg
from pydantic import Field

from dagster_leasehold.assets.backfill_siblings import Siblings
from dagster_leasehold.assets.checks import check_specs
from dagster_leasehold.assets.consuming.node_consumption import consume_shards
from dagster_leasehold.assets.consuming.placement import Placer
from dagster_leasehold.assets.consuming.run_progress import CatchUpLines
from dagster_leasehold.assets.deployment import LEASEHOLD, Deployment, deployment_in
from dagster_leasehold.assets.log_asset import log_asset_key
from dagster_leasehold.assets.partition_events import (
    MaterializeEvents,
    partition_results,
    report_partition,
)
from dagster_leasehold.assets.partitions import (
    GROUP_NAME,
    NODE_TAG,
    asset_key,
    asset_op_name,
    listed_shards,
    node_of_launcher,
    output_key,
    shard_partitions,
)
from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan
from dagster_leasehold.assets.run_process import part_of_run, run_ended, tag_shards
from dagster_leasehold.assets.shard_replay import FROM, TO, ReplayedPartitions, replay_partitions
from dagster_leasehold.assets.shard_run import ShardRun
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark.spark_resource import SparkResource, spark_of_run
from dagster_leasehold.assets.table_metadata import definition_metadata
from dagster_leasehold.lease_store import tracing
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.progress import ProgressLines
from dagster_leasehold.shard_sources.lag import lags_of


class ShardConfig(dg.Config):
    """The launchpad's config of a materialization; all fields are optional.

    Attributes:
        node: the node to consume for; by default, the node that holds the shard.
        wait_s: the longest wait for another run of the shard to end, in seconds.
        from: replay committed batches from this position instead of consuming: `begin`, a cursor
            or an ISO 8601 time.
        to: replay committed batches before this position: `end`, a cursor or an ISO 8601 time.
        quarantined: replay only batches with quarantined records; without `from` and `to`, all of
            these batches.
    """

    node: str | None = None
    wait_s: float = 60.0
    replay_from: str | None = Field(default=None, alias=FROM)
    replay_to: str | None = Field(default=None, alias=TO)
    quarantined: bool = False

    @property
    def consumes(self) -> bool:
        """True if the config does not request a replay."""
        return self.replay_from is None and self.replay_to is None and not self.quarantined


def build_shard_asset(stream: ShardStream, deployment: Deployment) -> dg.AssetsDefinition:
    """Return the asset of a stream: one partition for each of its shards.

    Args:
        deployment: the deployment whose table the definition describes. A run uses the deployment
            among its resources instead.
    """
    key, partitions = asset_key(stream), shard_partitions(stream)
    spec = dg.AssetSpec(
        key,
        description=f"Records of the stream {stream.name}, each committed once; one partition per "
        "shard. Materialize a partition to consume the unread records of its shard, or, with "
        "`from` or `to` in the config, to replay its committed records.",
        kinds={"pyspark", "iceberg", "parquet"},
        group_name=GROUP_NAME,
        deps=[log_asset_key(stream)],
        partitions_def=partitions,
        metadata={"consumer_group": str(stream.key), **definition_metadata(stream, deployment)},
    ).with_io_manager_key(output_key(stream))

    @dg.multi_asset(
        name=asset_op_name(stream),
        specs=[spec],
        check_specs=check_specs(stream),
        partitions_def=partitions,
        required_resource_keys={LEASEHOLD},
        backfill_policy=_backfill_policy(deployment),
    )
    def shard_asset(context: dg.AssetExecutionContext, config: ShardConfig) -> MaterializeEvents:
        try:
            with part_of_run(context.instance, context.run.run_id, stream):
                work = partial(_materialize, context, config, stream)
                yield from stream.carry_out(context, work)
        except LeaseholdError as error:
            raise dg.Failure(str(error), allow_retries=False) from error

    return shard_asset


def _backfill_policy(deployment: Deployment) -> dg.BackfillPolicy:
    """Return the split of a backfill into runs: one per partition if nodes have agents.

    Then the launcher sends each run to the node that holds its partition, and `Siblings` joins the
    runs of each node.
    """
    if deployment.agents:
        return dg.BackfillPolicy.multi_run(max_partitions_per_run=1)
    return dg.BackfillPolicy.single_run()


def _materialize(
    context: dg.AssetExecutionContext, config: ShardConfig, stream: ShardStream
) -> MaterializeEvents:
    deployment = deployment_in(context.resources)
    spark = spark_of_run(deployment.spark)
    shards = _requested_shards(context, stream)
    siblings = Siblings(
        context.instance, context.run, stream, partial(_holders, stream, deployment)
    )
    work = "Consuming" if config.consumes else "Replaying"
    context.log.info(f"{work} shards {listed_shards(shards)} of {stream.name}.")
    tag_shards(context.instance, context.run.run_id, shards)
    rounds = siblings.rounds(shards)
    results = _consume_or_replay(
        context, config, spark, stream, deployment, shards=shards, rounds=rounds
    )
    tag_shards(context.instance, context.run.run_id, (), results.read)
    all_shards = [*shards, *siblings.shards]
    failed = results.refusals(all_shards)
    complete = [shard for shard in all_shards if shard not in failed]
    # The partitions of other runs are reported first: after the run's own partitions, Dagster
    # considers the backfill complete.
    for shard in complete if failed else siblings.shards:
        report_partition(context, stream, results, shard)
    if isinstance(results, ShardRun):
        results.observe(context, failed)
    if not failed:
        yield from partition_results(context, stream, shards, results)
    # Dagster stores a yielded event before it resumes this generator, so the commits can be
    # flagged as delivered now.
    if isinstance(results, ShardRun):
        results.mark_delivered()
    siblings.remove(complete)
    if failed:
        raise dg.Failure(results.refusal(all_shards), allow_retries=False)


def _holders(stream: ShardStream, deployment: Deployment) -> dict[ShardId, str]:
    """Return the node that holds each shard; empty without agents, where all runs share a host."""
    if not deployment.agents:
        return {}
    rows = deployment.store().snapshot(stream.key).shards
    return {row.shard: row.consumer_owner or "" for row in rows}


def _consume_or_replay(
    context: dg.AssetExecutionContext,
    config: ShardConfig,
    spark: SparkResource,
    stream: ShardStream,
    deployment: Deployment,
    *,
    shards: Sequence[ShardId],
    rounds: Iterable[Sequence[ShardId]],
) -> ShardRun | ReplayedPartitions:
    if config.consumes:
        return _consume(context, config, spark, stream, deployment, rounds=rounds)
    span = ReplaySpan.parse(config.replay_from, config.replay_to, quarantined=config.quarantined)
    run_id = context.run.run_id
    with tracing.span("run", stream.key, job="replay", run=run_id, shards=len(shards)):
        return replay_partitions(context, stream, deployment, spark=spark, rounds=rounds, span=span)


def _consume(
    context: dg.AssetExecutionContext,
    config: ShardConfig,
    spark: SparkResource,
    stream: ShardStream,
    deployment: Deployment,
    *,
    rounds: Iterable[Sequence[ShardId]],
) -> ShardRun:
    run_id = context.run.run_id
    results = ShardRun(stream, deployment.store(), run_id)
    node_name = config.node or node_of_launcher(context.run)
    lines = ProgressLines("Consuming", "records", context.log.info, time.monotonic)
    placer = Placer(context.instance, stream.key, deployment, run=run_id, target=node_name)
    for shards in rounds:
        for portion in placer.portions(shards, stream.pace.shards_per_run):
            placement = placer.place(portion, wait_s=config.wait_s, log=context.log.info)
            results.refuse(placement.refused)
            for node, node_shards in placement.by_node().items():
                context.instance.add_run_tags(run_id, {NODE_TAG: node})
                marks = {"job": "materialize", "run": run_id, "node": node}
                with tracing.span("run", stream.key, **marks, shards=len(node_shards)):
                    reports, seconds = consume_shards(
                        stream,
                        deployment,
                        spark=spark,
                        node=node,
                        incarnation=placement.incarnations[node],
                        run=run_id,
                        shards=node_shards,
                        after_commit=CatchUpLines(
                            lines, partial(_unread, stream, deployment, node_shards)
                        ),
                        warn=context.log.warning,
                        ended=lambda run: run_ended(context.instance, run),
                    )
                results.add(reports, seconds=seconds)
    return results


def _unread(stream: ShardStream, deployment: Deployment, shards: Sequence[ShardId]) -> int | None:
    leases = deployment.store().snapshot(stream.key).shards
    lags = lags_of(stream.source, [lease for lease in leases if lease.shard in shards])
    counts = lags.records.values()
    return None if None in counts else sum(count or 0 for count in counts)


def _requested_shards(context: dg.AssetExecutionContext, stream: ShardStream) -> list[ShardId]:
    if not (context.has_partition_key or context.has_partition_key_range):
        raise dg.Failure(
            f"Choose a partition: {stream.name} has one per shard, and this run was launched "
            "without a partition.",
            allow_retries=False,
        )
    return [ShardId(key) for key in context.partition_keys]
