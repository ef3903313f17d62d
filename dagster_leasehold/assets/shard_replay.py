"""Replays by materialization: partitions are replayed while other runs consume their shards.

`shard_asset` calls this module if the config has `from`, `to` or `quarantined`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import dagster as dg

from dagster_leasehold.assets.checks import ShardCheck, check_shard
from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.output.folder_owner import owned
from dagster_leasehold.assets.partition_events import causes_text
from dagster_leasehold.assets.rewriting.replay import ReplayReport, replay_on_spark
from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan
from dagster_leasehold.assets.run_process import run_ended
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.assets.table_metadata import agreed_schema
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.journal_rows import Gap
from dagster_leasehold.lease_store.rules.progress import ProgressLines
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.shard_sources.lag import lags_of, unread_times

FROM, TO, QUARANTINED = "from", "to", "quarantined"


def is_replay(config: Mapping[str, Any]) -> bool:
    """Return True if a run config requests a replay instead of consumption."""
    bounded = config.get(FROM) is not None or config.get(TO) is not None
    return bounded or bool(config.get(QUARANTINED))


@dataclass(frozen=True)
class ReplayedPartitions:
    """The results of a replay: metadata, checks and errors for Dagster."""

    stream: ShardStream
    deployment: Deployment
    reports: Mapping[ShardId, ReplayReport]
    seconds: float
    now: Callable[[], datetime] = utc_now

    @property
    def read(self) -> str:
        """The number of records that the replay has read, as text."""
        return f"{sum(report.records for report in self.reports.values()):,}"

    def refusals(self, shards: Sequence[ShardId]) -> dict[ShardId, str]:
        """Return the errors of the shards that were not replayed."""
        return {shard: error for shard in shards if (error := self.reports[shard].error)}

    def refusal(self, shards: Sequence[ShardId]) -> str:
        """Return one message about the shards that were not replayed, or an empty text."""
        causes = self.refusals(shards)
        if len(shards) == 1:
            return "".join(f"Shard {s} was not replayed: {error}" for s, error in causes.items())
        count = f"{len(causes)} of {len(shards)} shards of {self.stream.key} were not replayed."
        return f"{count} {causes_text(causes)}" if causes else ""

    def metadata(self, shard: ShardId) -> dict[str, Any]:
        """Return metadata of a shard's materialization."""
        report = self.reports[shard]
        metadata: dict[str, Any] = {
            "replayed_batches": report.batches,
            "replayed_records": report.records,
            "written": report.written,
            "quarantined": report.quarantined,
            "kept_batches": report.kept,
            "unpublished_batches": report.unpublished,
            "replay_seconds": round(self.seconds, 3),
        }
        if report.kept_until is not None:
            metadata["kept_until"] = report.kept_until
        return metadata | self._schema

    @cached_property
    def _schema(self) -> dict[str, Any]:
        return agreed_schema(self.deployment.store(), self.stream)

    @cached_property
    def _current_checks(self) -> Mapping[ShardId, list[ShardCheck]]:
        """The current outcomes of the shards' checks; a replay does not change their inputs."""
        store, key = self.deployment.store(), self.stream.key
        gaps: dict[ShardId, list[Gap]] = {}
        for gap in store.gaps(key, acknowledged=False):
            gaps.setdefault(gap.shard, []).append(gap)
        leases = [lease for lease in store.snapshot(key).shards if lease.shard in self.reports]
        lags = lags_of(self.stream.source, leases)
        ages = lags.seconds(unread_times(self.stream.source, lags.behind), self.now())
        return {
            shard: check_shard(
                self.stream,
                None,
                gaps=gaps.get(shard, []),
                lag=lags.records.get(shard),
                lag_seconds=ages.get(shard),
            )
            for shard in self.reports
        }

    def checks(self, shard: ShardId) -> list[ShardCheck]:
        """Return the current outcomes of a shard's checks."""
        return self._current_checks[shard]


def replay_partitions(
    context: dg.AssetExecutionContext,
    stream: ShardStream,
    deployment: Deployment,
    *,
    spark: SparkResource,
    rounds: Iterable[Sequence[ShardId]],
    span: ReplaySpan,
) -> ReplayedPartitions:
    """Replay a span of the shards of each round, in this run."""
    run, began_s = context.run.run_id, time.monotonic()
    reports: dict[ShardId, ReplayReport] = {}
    for shards in rounds:
        reports |= replay_on_spark(
            stream,
            deployment.store(),
            shards,
            span,
            spark=spark,
            output_root=owned(deployment.store(), deployment.output_folder(stream.key)),
            run=run,
            ended=lambda other: run_ended(context.instance, other),
            warn=context.log.warning,
            progress=ProgressLines("Replaying", "batches", context.log.info, time.monotonic),
        )
    # One line for all shards: Dagster stores each line as an event.
    context.log.info("\n".join(_outcome(report) for report in reports.values()))
    return ReplayedPartitions(stream, deployment, reports, time.monotonic() - began_s)


def _outcome(report: ReplayReport) -> str:
    kept_text = (
        f" Kept {report.kept} batches, because the source has removed their records up to "
        f"{report.kept_until}."
        if report.kept
        else ""
    )
    unpublished_text = (
        f" Kept {report.unpublished} unpublished batches: replay them once they are in the table."
        if report.unpublished
        else ""
    )
    outcome = report.error or f"{report.batches} batches replayed.{kept_text}{unpublished_text}"
    return f"Shard {report.shard}: {outcome}"
