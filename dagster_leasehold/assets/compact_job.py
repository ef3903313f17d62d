"""The job `compact_<stream>`, which merges small files of committed output.

A sensor launches it for each node. You can also launch it by hand.
"""

import time
from collections.abc import Collection
from datetime import timedelta
from functools import partial

import dagster as dg
from pydantic import Field

from dagster_leasehold.assets.deployment import LEASEHOLD, Deployment, deployment_in
from dagster_leasehold.assets.output.folder_owner import owned
from dagster_leasehold.assets.partitions import compact_job_name, compact_op_name, listed_shards
from dagster_leasehold.assets.rewriting.compaction import CompactionReport, Compactor
from dagster_leasehold.assets.rewriting.continued_compaction import ContinuedCompaction
from dagster_leasehold.assets.rewriting.vacuum import vacuum
from dagster_leasehold.assets.rewriting.yielding import Yielding, finished
from dagster_leasehold.assets.run_process import run_ended, tag_run
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.progress import ProgressLines
from dagster_leasehold.lease_store.rules.withdrawal import NUMBERS_END
from dagster_leasehold.lease_store.tracing import span


class CompactConfig(dg.Config):
    """The shards to compact, and the limits of the compaction.

    Attributes:
        shards: the shards. If empty, a run launched by hand compacts the whole group, and a
            sensor's run compacts nothing.
        target_bytes: the size of a merged file, in bytes; by default, the stream's setting.
        node: the node that compacts; set only in a sensor's run. Such a run continues where the
            last one ended, skips young batches, and yields to consumption.
        old_until: a batch number per idle shard; set only in a sensor's run. All batches below it
            are old enough to be compacted.
        vacuum: True to remove unneeded old files afterwards.
    """

    shards: list[str] = []  # noqa: RUF012 - pydantic copies it
    target_bytes: int | None = Field(default=None, gt=0)
    node: str | None = None
    old_until: dict[str, int] = {}  # noqa: RUF012 - pydantic copies it
    vacuum: bool = False


def build_compact_job(stream: ShardStream) -> dg.JobDefinition:
    """Return the job `compact_<stream>`."""

    @dg.op(
        name=compact_op_name(stream),
        description="Merges small files of consecutive committed batches while consumption runs.",
        tags={"kind": "parquet"},
        required_resource_keys={LEASEHOLD},
    )
    def compact(context: dg.OpExecutionContext, config: CompactConfig) -> None:
        deployment = deployment_in(context.resources)
        try:
            with span("run", stream.key, job="compact", run=context.run.run_id):
                _compact(context, config, stream, deployment)
                if config.vacuum:
                    _vacuum(context, stream, deployment)
        except LeaseholdError as error:
            raise dg.Failure(str(error), allow_retries=False) from error

    @dg.job(
        name=compact_job_name(stream),
        executor_def=dg.in_process_executor,
        description=f"Merges small files of the committed output of {stream.name}.",
    )
    def compact_job() -> None:
        compact()

    return compact_job


def _compact(
    context: dg.OpExecutionContext,
    config: CompactConfig,
    stream: ShardStream,
    deployment: Deployment,
) -> None:
    names = listed_shards(config.shards) or "all"
    context.log.info(f"Compacting shards {names} of {stream.name}.")
    run, store, key = context.run.run_id, deployment.store(), stream.key
    tag_run(context.instance, run, stream)
    shards = [ShardId(shard) for shard in config.shards]
    compactor = Compactor(
        store=store,
        key=key,
        output_root=owned(store, deployment.output_folder(key)),
        run=run,
        target_bytes=config.target_bytes or stream.retention.compact_target_bytes,
        sort_order=stream.iceberg.sort_order,
        ended=partial(run_ended, context.instance),
    )
    snapshot = store.snapshot(key)
    postponed: dict[ShardId, str] = {}
    if config.node is None:
        lines = ProgressLines("Compacting", "batches", context.log.info, time.monotonic)
        reports = compactor.compact(shards or [lease.shard for lease in snapshot.shards], lines)
    else:
        yielding = Yielding(
            stream,
            NodeName(config.node),
            frozenset(shards),
            partial(store.snapshot, key),
            deployment.leaving,
            time.monotonic,
        )
        continued = ContinuedCompaction(
            compactor,
            timedelta(seconds=stream.retention.compact_after_s),
            {ShardId(shard): number for shard, number in config.old_until.items()}
            | dict.fromkeys(finished(snapshot), NUMBERS_END),
            yielding.stopped,
        ).compact(shards)
        reports, postponed = continued.reports, continued.postponed
    _report(context, reports.values())
    for shard, reason in postponed.items():
        context.log.info(f"Shard {shard} is postponed: {reason}.")
    failed = [f"Shard {each.shard}: {each.error}" for each in reports.values() if each.error]
    if failed:
        raise dg.Failure(
            f"{len(failed)} of {len(reports)} shards of {stream.name} were not fully compacted. "
            f"{' '.join(failed[:5])}",
            allow_retries=False,
        )


def _report(context: dg.OpExecutionContext, reports: Collection[CompactionReport]) -> None:
    for report in reports:
        context.log.info(
            f"Shard {report.shard}: merged {report.files_before} files into {report.files_after}. "
            f"{report.error}".rstrip()
        )
    context.add_output_metadata(
        {
            "files_before": sum(report.files_before for report in reports),
            "files_after": sum(report.files_after for report in reports),
            "bytes_before": sum(report.bytes_before for report in reports),
            "bytes_after": sum(report.bytes_after for report in reports),
        }
    )


def _vacuum(context: dg.OpExecutionContext, stream: ShardStream, deployment: Deployment) -> None:
    key = stream.key
    folder = deployment.output_folder(key)
    report = vacuum(
        deployment.store(),
        key,
        folder,
        older_than=timedelta(seconds=stream.retention.vacuum_after_s),
        catalog=deployment.catalog,
    )
    context.log.info(
        f"Vacuum removed {len(report.removed)} unneeded files, {report.removed_bytes} bytes in "
        "total."
    )
