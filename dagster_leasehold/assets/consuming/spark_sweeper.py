"""Sweeps on Spark: one job for the ranges of many shards, in one of two ways.

The transform alone decides: without one, or with one of Arrow tables, ranges are read and written
in one place and each has an outcome of its own (`range_job`); a transform of DataFrames needs Spark
SQL (`frame_job`).

A task a shard would cost fifty times more than the ranges of all shards in a few tasks. The price
is that a job that fails as a whole does not say whose fault it was: where no worker names the
shard, each shard has a job of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_leasehold.assets.arrow_transform import ArrowTransform
from dagster_leasehold.assets.consuming.frame_job import attempt_frames
from dagster_leasehold.assets.consuming.isolation import leaves_run_able
from dagster_leasehold.assets.consuming.range_job import attempt_ranges
from dagster_leasehold.assets.consuming.setting_aside import SetAside, set_aside_unread
from dagster_leasehold.assets.consuming.spark_work import (
    JobFailed,
    ShardsFailed,
    SweepJob,
    works_on_arrow,
)
from dagster_leasehold.assets.consuming.sweep import SweepOutcome, SweepResult, Try
from dagster_leasehold.assets.errors import (
    OutputUnwritable,
    SessionLost,
    SparkAway,
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
"""Each task costs Spark's worker some hundredths of a second, as much as 100,000 records do on the
Arrow way, where long ranges are divided anyway."""
SAME_FAILURE_MAX = 4
"""So many shards that fail alone with one sentence, and none that succeeds: so will the rest."""


def run_sweep(
    spark: SparkSession,
    job: SweepJob,
    ranges: Sequence[ReadRange],
    numbers: Mapping[ShardId, range],
) -> dict[ShardId, SweepResult]:
    """Read, transform and write these ranges, one per shard; nothing of it is visible yet.

    `numbers` are the batches' numbers, by shard.

    Returns:
        The outcome of each shard, or the error that keeps this shard from continuing.

    Raises:
        SparkUnavailable: Spark went away, and no shard has an outcome.
        SweepInterrupted: `job.watch.doomed` became true.
    """
    attempt = attempt_ranges if works_on_arrow(job.transform) else attempt_frames
    results: dict[ShardId, SweepResult] = {}
    alone: list[str] = []
    pending: list[Sequence[ReadRange]] = [tuple(ranges)] if ranges else []
    while pending:
        part = pending.pop()
        try:
            results |= attempt(spark, job, part, numbers)
        except ShardsFailed as failed:
            results |= failed.errors
            rest = tuple(range_ for range_ in part if range_.shard not in failed.errors)
            pending += [rest] if rest else []
        except JobFailed as failed:
            if len(part) > 1:
                pending += [(range_,) for range_ in reversed(part)]
                continue
            results[part[0].shard] = failed.error
            alone.append(failed.cause)
            if _hopeless(results, alone):
                rest = [range_.shard for left in pending for range_ in left]
                return results | dict.fromkeys(rest, failed.error)
        except TransformError as error:
            # Raised before Spark read a record: it concerns every shard alike.
            unusable = TransformUnusable(str(error))
            return results | {
                range_.shard: unusable for left in (part, *pending) for range_ in left
            }
    return results


def _hopeless(results: Mapping[ShardId, SweepResult], alone: Sequence[str]) -> bool:
    succeeded = any(isinstance(result, SweepOutcome) for result in results.values())
    return not succeeded and len(alone) >= SAME_FAILURE_MAX and len(set(alone)) == 1


class SparkSweeper:
    """Reads, transforms and writes ranges of a stream with Spark.

    Args:
        stream: the stream's declaration: source and transform.
        spark: of the run.
        output_root: the folder of the stream's and group's output.
        doomed: asked while a job runs, besides that of `spark`.
        new_attempt: gives a name that was never used, for an attempt's folder.
        tasks_max: the most tasks of a job; by default one for each that Spark runs at once, or two
            where the transform is one of DataFrames.
    """

    def __init__(
        self,
        *,
        stream: ShardStream,
        spark: RunOnSpark,
        output_root: OutputPlace,
        doomed: Callable[[], bool] = lambda: False,
        new_attempt: Callable[[], str] | None = None,
        tasks_max: int | None = None,
    ) -> None:
        self._spark = spark
        self._session: SparkSession | None = None
        self._lock = threading.Lock()
        ranges = works_on_arrow(stream.transform)
        self._per_core = RANGE_TASKS_PER_CORE if ranges else FRAME_TASKS_PER_CORE
        self._tasks_max = tasks_max
        self._job = SweepJob(
            stream=stream.key.stream,
            source_options=stream.source.spark_options(),
            transform=stream.transform,
            output_root=output_root,
            new_attempt=new_attempt or (lambda: attempt_name(spark.run)),
            watch=replace(spark.watch, doomed=lambda: spark.watch.doomed() or doomed()),
            tasks_max=tasks_max or self._per_core,
            divide=stream.source.divide if isinstance(stream.source, DivisibleRanges) else None,
        )

    def __call__(
        self, ranges: Sequence[ReadRange], numbers: Mapping[ShardId, range]
    ) -> Mapping[ShardId, SweepResult]:
        """Carry out one sweep; see `run_sweep`.

        A session can be gone at each of them: it expired while nothing came, or its server was
        started again. The sweep is then made once more, in another session. What the first try
        wrote, or still writes on a server that only this process cannot reach, nothing names.
        """
        return self._swept(self._job, ranges, numbers)

    def apart(self, each: Try, guard: StallGuard) -> SweepResult:
        """Make one batch that was tried before, beside others and under a guard of its own."""
        shard, watch = each.range_.shard, self._job.watch
        ranges, numbers = [each.range_], {shard: each.numbers}
        own = replace(
            watch,
            # A tag of its own, so that it is interrupted alone; `within` adds that of the run.
            tag=f"{watch.tag}-{shard}",
            within=watch.tag,
            doomed=lambda: guard.ending or watch.doomed(),
            progressed=guard.progressed,
        )
        job = replace(self._job, watch=own)
        if not each.set_aside:
            return self._swept(job, ranges, numbers)[shard]
        if not each.unread:
            raw = replace(job, transform=ArrowTransform(SetAside(each.set_aside)))
            result = self._swept(raw, ranges, numbers)[shard]
            if not (isinstance(result, LeaseholdError) and leaves_run_able(result)):
                return result
        try:
            return set_aside_unread(self._job, each)
        except OSError as error:
            return OutputUnwritable(
                f"The quarantine of shard {shard} cannot be written to {self._job.output_root} "
                f"({one_line(str(error))}): make sure that its disk has room."
            )

    def _swept(
        self, job: SweepJob, ranges: Sequence[ReadRange], numbers: Mapping[ShardId, range]
    ) -> Mapping[ShardId, SweepResult]:
        session = self._opened()
        try:
            return run_sweep(session, self._on(session, job), ranges, numbers)
        except SessionLost as lost:
            if (session := self._renewed(session)) is None:
                raise
            _LOG.warning("The sweep is made again in a new session: %s", lost)
        return run_sweep(session, self._on(session, job), ranges, numbers)

    def _opened(self) -> SparkSession:
        with self._lock:
            try:
                self._session = self._spark.open()
            except SparkUnavailable as error:
                # No record was touched: this says nothing about them.
                raise SparkAway(str(error)) from error
            return self._session

    def _renewed(self, lost: SparkSession) -> SparkSession | None:
        """Return a session in place of a lost one, which another sweep has perhaps renewed."""
        with self._lock:
            if self._session is lost:
                self._session = self._spark.renew()
            return self._session

    def _on(self, session: SparkSession, job: SweepJob) -> SweepJob:
        """Return the job of a sweep, with the tasks that this session's Spark has room for now."""
        tasks_max = self._tasks_max or self._per_core * tasks_at_once(session)
        return replace(job, tasks_max=tasks_max)
