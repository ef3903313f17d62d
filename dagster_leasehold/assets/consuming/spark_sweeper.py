"""Runs sweeps on Spark, with one job for the ranges of many shards; the batch loop calls it.

The transform selects one of two kinds of job. Without a transform, or with an Arrow transform, each
task reads, transforms and writes its ranges, and each shard succeeds or fails alone (`range_job`).
A transform of DataFrames needs Spark SQL (`frame_job`).

A few tasks share the ranges of all shards, because one task per shard would cost fifty times more.
If a job fails as a whole and no worker names a shard, each shard is tried in a separate job.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from dagster_leasehold.assets.arrow_transform import ArrowTransform
from dagster_leasehold.assets.consuming.frame_job import attempt_frames
from dagster_leasehold.assets.consuming.isolation import run_can_continue
from dagster_leasehold.assets.consuming.range_job import attempt_ranges
from dagster_leasehold.assets.consuming.setting_aside import SetAside, set_aside_unread
from dagster_leasehold.assets.consuming.spark_work import (
    JobFailed,
    ShardsFailed,
    SweepJob,
    works_on_arrow,
)
from dagster_leasehold.assets.consuming.sweep import Retry, SweepOutcome, SweepResult
from dagster_leasehold.assets.decoding.stream_decoding import whole_transform
from dagster_leasehold.assets.errors import (
    OutputUnwritable,
    SessionLost,
    SparkNotReady,
    SparkUnavailable,
    TransformError,
    TransformUnusable,
)
from dagster_leasehold.assets.guarding.run_on_spark import RunOnSpark
from dagster_leasehold.assets.guarding.stall_guard import StallGuard
from dagster_leasehold.assets.output.attempts import attempt_name
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark.spark_session import tasks_at_once
from dagster_leasehold.lease_store.errors import LeaseholdError, one_line
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import DivisibleRanges, ReadRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)

FRAME_TASKS_PER_CORE = 2
RANGE_TASKS_PER_CORE = 1
"""One, because a task costs as much as reading about 100,000 records, and long ranges are divided
in any case."""
SAME_FAILURE_MAX = 4
"""If this many shards fail alone with the same cause and none succeeds, the rest is not tried."""


def run_sweep(
    spark: SparkSession,
    job: SweepJob,
    ranges: Sequence[ReadRange],
    numbers: Mapping[ShardId, range],
) -> dict[ShardId, SweepResult]:
    """Read, transform and write these ranges, one per shard, without committing them.

    `numbers` are the batch numbers of each shard.

    Returns:
        The outcome of each shard, or its error.

    Raises:
        SparkUnavailable: Spark is gone, and no shard has an outcome.
        SweepInterrupted: `job.watch.must_stop` became true.
    """
    attempt = attempt_ranges if works_on_arrow(job.transform) else attempt_frames
    results: dict[ShardId, SweepResult] = {}
    causes: list[str] = []
    pending: list[Sequence[ReadRange]] = [tuple(ranges)] if ranges else []
    while pending:
        group = pending.pop()
        try:
            results |= attempt(spark, job, group, numbers)
        except ShardsFailed as failure:
            results |= failure.errors
            rest = tuple(range_ for range_ in group if range_.shard not in failure.errors)
            pending += [rest] if rest else []
        except JobFailed as failure:
            if len(group) > 1:
                pending += [(range_,) for range_ in reversed(group)]
                continue
            results[group[0].shard] = failure.error
            causes.append(failure.cause)
            if _fail_alike(results, causes):
                rest = [range_.shard for other in pending for range_ in other]
                return results | dict.fromkeys(rest, failure.error)
        except TransformError as error:
            # Raised before Spark read a record, so it applies to all shards.
            unusable = TransformUnusable(str(error))
            return results | {
                range_.shard: unusable for other in (group, *pending) for range_ in other
            }
    return results


def _fail_alike(results: Mapping[ShardId, SweepResult], causes: Sequence[str]) -> bool:
    succeeded = any(isinstance(result, SweepOutcome) for result in results.values())
    return not succeeded and len(causes) >= SAME_FAILURE_MAX and len(set(causes)) == 1


class SparkSweeper:
    """Reads, transforms and writes ranges of a stream with Spark.

    Args:
        output_root: the folder of the stream's and group's output.
        must_stop: polled while a job runs; the job is interrupted once it returns True.
        new_attempt: returns a name for an attempt's folder that was never used.
        tasks_max: the most tasks of a job; by default, one for each task that Spark runs at once,
            or two if the transform takes DataFrames.
        names: the current name of each earlier name of the table's columns.
        routes: returns the routes that the stream already has.
    """

    def __init__(
        self,
        *,
        stream: ShardStream,
        spark: RunOnSpark,
        output_root: OutputPlace,
        must_stop: Callable[[], bool] = lambda: False,
        new_attempt: Callable[[], str] | None = None,
        tasks_max: int | None = None,
        names: Mapping[str, str] = MappingProxyType({}),
        routes: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._spark = spark
        self._session: SparkSession | None = None
        self._lock = threading.Lock()
        transform = whole_transform(stream)
        ranges = works_on_arrow(transform)
        self._per_core = RANGE_TASKS_PER_CORE if ranges else FRAME_TASKS_PER_CORE
        self._tasks_max = tasks_max
        self._stream, self._routes = stream, routes
        self._job = SweepJob(
            stream=stream.key.stream,
            source_options=stream.source.spark_options(),
            transform=transform,
            output_root=output_root,
            new_attempt=new_attempt or (lambda: attempt_name(spark.run)),
            watch=replace(spark.watch, must_stop=lambda: spark.watch.must_stop() or must_stop()),
            tasks_max=tasks_max or self._per_core,
            divide=stream.source.divide if isinstance(stream.source, DivisibleRanges) else None,
            partitioning=replace(stream.iceberg.divided_by, names=dict(names)),
        )

    def __call__(
        self, ranges: Sequence[ReadRange], numbers: Mapping[ShardId, range]
    ) -> Mapping[ShardId, SweepResult]:
        """Run one sweep; see `run_sweep`.

        If the session is lost, because it expired or its server restarted, the sweep runs once more
        in a new session. Files of the first attempt are never committed.
        """
        return self._run(self._job, ranges, numbers)

    def retry(self, each: Retry, guard: StallGuard) -> SweepResult:
        """Process a batch after a failed attempt, in a separate job under its own watchdog."""
        shard, watch = each.range_.shard, self._job.watch
        ranges, numbers = [each.range_], {shard: each.numbers}
        own = replace(
            watch,
            # Its own tag allows the job to be interrupted alone; `within` adds the run's tag.
            tag=f"{watch.tag}-{shard}",
            within=watch.tag,
            must_stop=lambda: guard.ending or watch.must_stop(),
            progressed=guard.progressed,
        )
        job = replace(self._job, watch=own)
        if not each.set_aside:
            return self._run(job, ranges, numbers)[shard]
        if not each.unread:
            raw = replace(job, transform=ArrowTransform(SetAside(each.set_aside)))
            result = self._run(raw, ranges, numbers)[shard]
            if not (isinstance(result, LeaseholdError) and run_can_continue(result)):
                return result
        try:
            return set_aside_unread(self._job, each)
        except OSError as error:
            return OutputUnwritable(
                f"The quarantine of shard {shard} cannot be written to {self._job.output_root} "
                f"({one_line(str(error))}): make sure that the disk has room."
            )

    def _run(
        self, job: SweepJob, ranges: Sequence[ReadRange], numbers: Mapping[ShardId, range]
    ) -> Mapping[ShardId, SweepResult]:
        session = self._open_session()
        try:
            return run_sweep(session, self._sized(session, job), ranges, numbers)
        except SessionLost as lost:
            if (session := self._renew_session(session)) is None:
                raise
            _LOG.warning("The sweep runs again in a new session: %s", lost)
        return run_sweep(session, self._sized(session, job), ranges, numbers)

    def _open_session(self) -> SparkSession:
        with self._lock:
            try:
                self._session = self._spark.open()
            except SparkUnavailable as error:
                # No record was read, so no record can be the cause.
                raise SparkNotReady(str(error)) from error
            return self._session

    def _renew_session(self, lost: SparkSession) -> SparkSession | None:
        """Return a session in place of a lost one; all sweeps that lost it share the new one."""
        with self._lock:
            if self._session is lost:
                self._session = self._spark.renew()
            return self._session

    def _sized(self, session: SparkSession, job: SweepJob) -> SweepJob:
        """Return the job with as many tasks as this session's Spark can run now."""
        tasks_max = self._tasks_max or self._per_core * tasks_at_once(session)
        partitioning = job.partitioning
        if self._stream.route_column:
            routing = self._stream.iceberg.routing(self._stream.route_column, self._routes())
            partitioning = replace(partitioning, routing=routing)
        return replace(job, tasks_max=tasks_max, partitioning=partitioning)
