"""The asset of a stream: materializing a partition consumes that shard from its checkpoint."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from dagster_leasehold.assets.checks import check_specs, joint_results
from dagster_leasehold.assets.consuming.node_consumption import consume_shards
from dagster_leasehold.assets.consuming.placement import Placement, Placer
from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.event_storage import stored_together
from dagster_leasehold.assets.log_asset import log_asset_key
from dagster_leasehold.assets.partitions import (
    NODE_TAG,
    asset_key,
    asset_op_name,
    output_key,
    shard_partitions,
    spark_key,
)
from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan
from dagster_leasehold.assets.run_process import part_of_run
from dagster_leasehold.assets.shard_replay import FROM, TO, ReplayedPartitions, replay_partitions
from dagster_leasehold.assets.shard_run import ProgressReports, ShardRun, log_check
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.assets.table_metadata import definition_metadata
from dagster_leasehold.lease_store import tracing
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId

MaterializeEvents = Iterator[dg.MaterializeResult[Any]]


class ShardConfig(dg.Config):
    """The launchpad's config of a materialization; everything may be left out.

    Attributes:
        node: consume for this node; by default, for whichever node holds the shard.
        wait_s: how long to wait for another run of the shard to end, in seconds.
        from: replay what was committed from here on, instead of consuming: `begin`, a cursor or
            an ISO 8601 time.
        to: replay what was committed before this: `end`, a cursor or an ISO 8601 time.
        quarantined: replay only batches with records in quarantine; alone, all of them.
    """

    node: str | None = None
    wait_s: float = 60.0
    replay_from: str | None = Field(default=None, alias=FROM)
    replay_to: str | None = Field(default=None, alias=TO)
    quarantined: bool = False


def build_shard_asset(stream: ShardStream, deployment: Deployment) -> dg.AssetsDefinition:
    """Return the asset of a stream: its key is the stream's name, its partitions are the shards."""
    key, partitions = asset_key(stream), shard_partitions(stream)
    spec = dg.AssetSpec(
        key,
        description=f"Records of the stream {stream.name}, each committed once; one partition per "
        "shard. Materialize a partition to consume what is unread of its shard; with `from` or "
        "`to` in the config, to replay what is committed of it.",
        kinds={"pyspark", "parquet"},
        group_name="streams",
        deps=[log_asset_key(stream)],
        partitions_def=partitions,
        metadata={"consumer_group": str(stream.key), **definition_metadata(stream, deployment)},
    ).with_io_manager_key(output_key(stream))

    @dg.multi_asset(
        name=asset_op_name(stream),
        specs=[spec],
        check_specs=check_specs(stream),
        partitions_def=partitions,
        required_resource_keys={spark_key(stream)},
    )
    def shard_asset(context: dg.AssetExecutionContext, config: ShardConfig) -> MaterializeEvents:
        try:
            spark: SparkResource = getattr(context.resources, spark_key(stream))
            with part_of_run(context.instance, context.run.run_id, stream):
                yield from _materialize(context, config, spark, stream, deployment)
        except LeaseholdError as error:
            raise dg.Failure(str(error), allow_retries=False) from error

    return shard_asset


def _materialize(
    context: dg.AssetExecutionContext,
    config: ShardConfig,
    spark: SparkResource,
    stream: ShardStream,
    deployment: Deployment,
) -> MaterializeEvents:
    shards = _shards_asked_for(context, stream)
    run_id = context.run.run_id
    if config.replay_from is not None or config.replay_to is not None or config.quarantined:
        span = ReplaySpan.parse(
            config.replay_from, config.replay_to, quarantined=config.quarantined
        )
        with tracing.span("run", stream.key, job="replay", run=run_id, shards=len(shards)):
            replayed = replay_partitions(
                context, stream, deployment, spark=spark, shards=shards, span=span
            )
        # Shards that keep their old output fail the run after the others were replayed.
        if failure := replayed.failure():
            raise dg.Failure(failure, allow_retries=False)
        yield _shown(context, stream, shards, replayed)
        return
    placer = Placer(
        context.instance,
        stream.key,
        deployment,
        run=run_id,
        wanted=config.node or context.run.tags.get(NODE_TAG),
    )
    placement = placer.place(shards, wait_s=config.wait_s, log=context.log.info)
    done = _consume(context, spark, stream, deployment, placement)
    refusal = done.refusal(shards)
    if refusal:
        done.deliver(context)
        raise dg.Failure(refusal, allow_retries=False)
    yield _shown(context, stream, shards, done)
    # Dagster has stored the event before it asks for more, so that flagging now loses nothing.
    done.mark_delivered()


def _shown(
    context: dg.AssetExecutionContext,
    stream: ShardStream,
    shards: Sequence[ShardId],
    done: ShardRun | ReplayedPartitions,
) -> dg.MaterializeResult[Any]:
    """Return the event of a run's partitions; a range of them has one result per check."""
    checks = {shard: done.checks(shard) for shard in shards}
    with stored_together(context.instance):
        for shard in shards:
            context.add_asset_metadata(done.metadata(shard), asset_key(stream), shard)
            for check in () if len(shards) == 1 else checks[shard]:
                log_check(context, check.evaluation(stream, shard))
    results = joint_results(check for shard in shards for check in checks[shard])
    return dg.MaterializeResult(asset_key=asset_key(stream), check_results=results)


def _consume(
    context: dg.AssetExecutionContext,
    spark: SparkResource,
    stream: ShardStream,
    deployment: Deployment,
    placement: Placement,
) -> ShardRun:
    done = ShardRun(stream, deployment.store(), context.run.run_id)
    for node, held in placement.by_node().items():
        context.instance.add_run_tags(context.run.run_id, {NODE_TAG: node})
        marks = {"job": "materialize", "run": context.run.run_id, "node": node}
        with tracing.span("run", stream.key, **marks, shards=len(held)):
            reports, seconds = consume_shards(
                stream,
                deployment,
                spark=spark,
                node=node,
                incarnation=placement.incarnations[node],
                run=context.run.run_id,
                shards=held,
                after_commit=ProgressReports(done, context, time.monotonic),
            )
        done.add(reports, seconds=seconds)
    return done


def _shards_asked_for(context: dg.AssetExecutionContext, stream: ShardStream) -> list[ShardId]:
    if not (context.has_partition_key or context.has_partition_key_range):
        raise dg.Failure(
            f"Choose a partition: {stream.name} has one per shard, and this run was launched "
            "without any.",
            allow_retries=False,
        )
    return [ShardId(key) for key in context.partition_keys]
