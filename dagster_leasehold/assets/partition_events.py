"""Dagster's events for a run's partitions: materializations and check evaluations.

`shard_asset` and `shard_run` report them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import dagster as dg

from dagster_leasehold.assets.checks import ShardCheck, joint_results
from dagster_leasehold.assets.partitions import asset_key, listed_shards
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import ShardId

SHOWN_CAUSES_MAX = 5

RunContext = dg.AssetExecutionContext | dg.OpExecutionContext
MaterializeEvents = Iterator[dg.MaterializeResult[Any]]


class PartitionResults(Protocol):
    """The results of a run for each of its partitions."""

    def metadata(self, shard: ShardId) -> dict[str, Any]:
        """Return metadata of a shard's materialization."""
        ...

    def checks(self, shard: ShardId) -> list[ShardCheck]:
        """Return the outcomes of a shard's checks."""
        ...


def report_partition(
    context: RunContext, stream: ShardStream, results: PartitionResults, shard: ShardId
) -> None:
    """Record a materialization of a partition, and the outcomes of its checks."""
    report_materialization(context, stream, shard, results.metadata(shard))
    for check in results.checks(shard):
        log_check(context, check.evaluation(stream, shard))


def report_materialization(
    context: RunContext, stream: ShardStream, shard: ShardId, metadata: Mapping[str, Any]
) -> None:
    """Record a materialization of a partition."""
    key = asset_key(stream)
    context.log_event(dg.AssetMaterialization(key, partition=shard, metadata=metadata))


def partition_results(
    context: dg.AssetExecutionContext,
    stream: ShardStream,
    shards: Sequence[ShardId],
    results: PartitionResults,
) -> MaterializeEvents:
    """Yield the result with which Dagster materializes all partitions of the run."""
    checks = {shard: results.checks(shard) for shard in shards}
    for shard in shards:
        context.add_asset_metadata(results.metadata(shard), asset_key(stream), shard)
        # In a run of a single partition, the joint result below is the partition's evaluation. In a
        # run of a range, even a range of one, it is the evaluation of the whole asset, so the
        # partitions' evaluations are logged here.
        for check in () if context.has_partition_key else checks[shard]:
            log_check(context, check.evaluation(stream, shard))
    joint_checks = joint_results(check for shard in shards for check in checks[shard])
    yield dg.MaterializeResult(asset_key=asset_key(stream), check_results=joint_checks)


def log_check(context: RunContext, evaluation: dg.AssetCheckEvaluation) -> None:
    """Record the outcome of a check for one of a run's partitions."""
    # Dagster stores it like any other event; only the annotation of `log_event` omits its type.
    context.log_event(evaluation)  # pyright: ignore[reportArgumentType]


def causes_text(failed: Mapping[ShardId, str]) -> str:
    """Return the first few causes of failure, each with its shards."""
    by_cause: dict[str, list[ShardId]] = {}
    for shard, cause in failed.items():
        by_cause.setdefault(cause, []).append(shard)
    examples = list(by_cause.items())[:SHOWN_CAUSES_MAX]
    return " ".join(f"{_named(shards)}: {cause}" for cause, shards in examples)


def _named(shards: Sequence[ShardId]) -> str:
    return f"{'Shard' if len(shards) == 1 else 'Shards'} {listed_shards(shards)}"
