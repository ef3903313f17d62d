"""The job `consume_<stream>`: each run consumes several shards of one node in one Spark session.

The rebalance sensor and the schedule launch it.
"""

import time
from collections.abc import Iterator
from typing import Any

import dagster as dg

from dagster_leasehold.assets import shard_run
from dagster_leasehold.assets.consuming.following import Follow
from dagster_leasehold.assets.consuming.node_consumption import consume_shards
from dagster_leasehold.assets.consuming.run_progress import RunProgress, read_text
from dagster_leasehold.assets.consuming.run_requests import RequestBox
from dagster_leasehold.assets.deployment import LEASEHOLD, deployment_in
from dagster_leasehold.assets.partitions import consume_job_name, consume_op_name, listed_shards
from dagster_leasehold.assets.run_process import run_ended, tag_run, tag_shards
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark.spark_resource import spark_of_run
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.tracing import fail, span


class ConsumeConfig(dg.Config):
    """The shards that a run consumes, and the node that holds them.

    Attributes:
        node: the node that holds the shards.
        incarnation: the node's incarnation, for the run's heartbeats.
        shards: the shards; the run skips a shard that the node no longer holds.
        follow: True to wait for more records once all are read, until the run's budget ends.
        definition: the mark of the stream's definition in the process that launched the run.
    """

    node: str
    incarnation: str
    shards: list[str]
    follow: bool = False
    definition: str = ""


def build_consume_job(stream: ShardStream) -> dg.JobDefinition:
    """Return the job `consume_<stream>`."""

    @dg.op(
        name=consume_op_name(stream),
        description="Consumes shards of one node until they are caught up, the run's time budget "
        "ends, or the leases are transferred or lost.",
        tags={"kind": "pyspark"},
        required_resource_keys={LEASEHOLD},
    )
    def consume(context: dg.OpExecutionContext, config: ConsumeConfig) -> None:
        shards = listed_shards(config.shards)
        context.log.info(f"Consuming shards {shards} of {stream.name} on {config.node}.")

        def work() -> Iterator[Any]:
            _consume(context, config, stream)
            return iter(())  # `_consume` logs the events of partitions: an op cannot yield them

        try:
            for _ in stream.carry_out(context, work):
                pass
        except LeaseholdError as error:
            raise dg.Failure(str(error), allow_retries=False) from error

    @dg.job(
        name=consume_job_name(stream),
        executor_def=dg.in_process_executor,
        description=f"Consumes shards of {stream.name} that one node holds.",
    )
    def consume_job() -> None:
        consume()

    return consume_job


def _consume(context: dg.OpExecutionContext, config: ConsumeConfig, stream: ShardStream) -> None:
    deployment = deployment_in(context.resources)
    spark = spark_of_run(deployment.spark)
    run_id = context.run.run_id
    tag_run(context.instance, run_id, stream)
    results = shard_run.ShardRun(stream, deployment.store(), run_id)
    progress = shard_run.ProgressReports(results, context, time.monotonic)
    marks = {"job": "consume", "run": run_id, "node": config.node}
    with span("run", stream.key, **marks, shards=len(config.shards)):
        reports, seconds = consume_shards(
            stream,
            deployment,
            spark=spark,
            node=NodeName(config.node),
            incarnation=config.incarnation,
            run=run_id,
            shards=[ShardId(shard) for shard in config.shards],
            after_commit=progress.after_commit,
            between_batches=progress.between_batches,
            follow=_follow(stream, context.instance, run_id) if config.follow else None,
            warn=context.log.warning,
            ended=lambda run: run_ended(context.instance, run),
        )
        results.add(reports, seconds=seconds)
        tag_shards(
            context.instance, run_id, [report.shard for report in reports], read_text(reports)
        )
        results.deliver(context)
        if failure := results.failure():
            fail(failure)
    # One line for all shards: Dagster stores each line as an event.
    committed = sum(report.batches > 0 for report in reports)
    context.log.info(f"{committed} of {len(reports)} shards committed batches: {results.summary()}")
    if failure:
        raise dg.Failure(failure, allow_retries=False)


def _follow(stream: ShardStream, instance: dg.DagsterInstance, run_id: str) -> Follow:
    """Return the settings of following. Run tags carry requests to the run, and its progress."""

    def tags() -> dict[str, str]:
        run = instance.get_run_by_id(run_id)
        return {} if run is None else dict(run.tags)

    def show(progress: RunProgress) -> None:
        shards = [report.shard for report in progress.reports]
        tag_shards(instance, run_id, shards, progress.sentence)

    return Follow(stream.pace, time.sleep, RequestBox(tags), show)
