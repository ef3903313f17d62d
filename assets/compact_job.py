"""The job of a stream that merges small files of its committed output."""

import dagster as dg
from pydantic import Field

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.partitions import compact_job_name, compact_op_name
from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.assets.rewriting.merges import TARGET_BYTES
from dagster_leasehold.assets.run_process import rewriter_ended, tag_run
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId


class CompactConfig(dg.Config):
    """The shards to compact, and how far.

    Attributes:
        shards: the shards; none means all of the group.
        target_bytes: the size of a merged file, in bytes.
    """

    shards: list[str] = []  # noqa: RUF012 - pydantic copies it
    target_bytes: int = Field(default=TARGET_BYTES, gt=0)


def build_compact_job(stream: ShardStream, deployment: Deployment) -> dg.JobDefinition:
    """Return the job `compact_<stream>`; start it by hand, or give it a schedule of your own."""

    @dg.op(
        name=compact_op_name(stream),
        description="Merges the small files of consecutive committed batches, beside consumption.",
        tags={"kind": "parquet"},
    )
    def compact(context: dg.OpExecutionContext, config: CompactConfig) -> None:
        try:
            _compact(context, config, stream, deployment)
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
    run, store, key = context.run.run_id, deployment.store(), stream.key
    tag_run(context.instance, run, stream)
    shards = [ShardId(shard) for shard in config.shards]
    compactor = Compactor(
        store=store,
        key=key,
        output_root=deployment.output_folder(key),
        run=run,
        target_bytes=config.target_bytes,
        ended=lambda other: rewriter_ended(context.instance, other),
    )
    reports = compactor.compact(shards or [lease.shard for lease in store.snapshot(key).shards])
    for report in reports.values():
        context.log.info(
            f"Shard {report.shard}: {report.files_before} files became {report.files_after}. "
            f"{report.error}".rstrip()
        )
    context.add_output_metadata(
        {
            "files_before": sum(report.files_before for report in reports.values()),
            "files_after": sum(report.files_after for report in reports.values()),
            "bytes_before": sum(report.bytes_before for report in reports.values()),
            "bytes_after": sum(report.bytes_after for report in reports.values()),
        }
    )
    failed = [f"Shard {each.shard}: {each.error}" for each in reports.values() if each.error]
    if failed:
        raise dg.Failure(
            f"{len(failed)} of {len(reports)} shards of {stream.name} were not compacted to their "
            f"end. {' '.join(failed[:5])}",
            allow_retries=False,
        )
