"""Sweeps on Spark: one job for the ranges of many shards, in one of two ways.

The transform alone decides: without one, or with one of Arrow tables, ranges are read and written
in one place and each has an outcome of its own (`range_job`); a transform of DataFrames needs Spark
SQL (`frame_job`).

A task a shard would cost fifty times more than the ranges of all shards in a few tasks. The price
is that a job that fails as a whole does not say whose fault it was: where no worker names the
shard, the sweep is halved until the shards that fail stand alone and the others have gone through.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from dagster_leasehold.assets.consuming.frame_job import attempt_frames
from dagster_leasehold.assets.consuming.range_job import attempt_ranges, takes_ranges
from dagster_leasehold.assets.consuming.spark_work import JobFailed, ShardsFailed, SweepJob
from dagster_leasehold.assets.consuming.sweep import SweepOutcome, SweepResult
from dagster_leasehold.assets.errors import SessionLost, TransformError
from dagster_leasehold.assets.output.attempts import attempt_name
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark.spark_session import cores
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.tracing import span
from dagster_leasehold.shard_sources.source import DivisibleRanges, ReadRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)

FRAME_TASKS_PER_CORE = 2
RANGE_TASKS_PER_CORE = 1
"""Each task costs Spark's worker some hundredths of a second, as much as 100,000 records do on the
Arrow way, where long ranges are divided anyway."""
ABANDON_S = 60.0
SAME_FAILURE_MAX = 4
"""So many shards that fail alone with one sentence, and none that succeeds: so will the rest."""


def run_tag(run: str) -> str:
    """Return the tag of a run's Spark jobs: interrupting it ends them from any process."""
    # Spark takes any tag without a comma.
    return f"leasehold-{run.replace(',', '-')}"


def run_sweep(
    spark: SparkSession,
    job: SweepJob,
    ranges: Sequence[ReadRange],
    numbers: Mapping[ShardId, range],
) -> dict[ShardId, SweepResult]:
    """Read, transform and write these ranges, one per shard; nothing of it is visible yet.

    `numbers` are those of the batches that are made, by shard.

    Returns:
        The outcome of each shard, or the error that keeps this shard from going on.

    Raises:
        SparkUnavailable: Spark went away, and no shard has an outcome.
        SweepInterrupted: `job.doomed` became true.
    """
    attempt = attempt_ranges if takes_ranges(job.transform) else attempt_frames
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
                middle = len(part) // 2
                pending += [part[middle:], part[:middle]]
                continue
            results[part[0].shard] = failed.error
            alone.append(failed.cause)
            if _hopeless(results, alone):
                rest = [range_.shard for left in pending for range_ in left]
                return results | dict.fromkeys(rest, failed.error)
        except TransformError as error:
            # Raised before Spark read a record: it concerns every shard alike.
            return (
                results
                | {range_.shard: error for range_ in part}
                | {range_.shard: error for left in pending for range_ in left}
            )
    return results


def _hopeless(results: Mapping[ShardId, SweepResult], alone: Sequence[str]) -> bool:
    succeeded = any(isinstance(result, SweepOutcome) for result in results.values())
    return not succeeded and len(alone) >= SAME_FAILURE_MAX and len(set(alone)) == 1


class SparkSweeper:
    """Reads, transforms and writes ranges of a stream with Spark.

    Args:
        stream: the stream's declaration: source and transform.
        session: gives the Spark session; called for each sweep.
        renewed: gives another one in place of a session that is gone, or None where there can be
            none in this process.
        output_root: the folder of the stream's and group's output.
        run: the id of the run, for the tag of its jobs.
        doomed: asked while a job runs; once it is true, the job is interrupted.
        progressed: called while a job makes progress.
        new_attempt: gives a name that was never used, for an attempt's folder.
        tasks_max: the most tasks of a job; by default one per core of this machine, or two where
            the transform is one of DataFrames.
    """

    def __init__(
        self,
        *,
        stream: ShardStream,
        session: Callable[[], SparkSession],
        output_root: OutputPlace,
        run: str,
        doomed: Callable[[], bool] = lambda: False,
        progressed: Callable[[], None] = lambda: None,
        new_attempt: Callable[[], str] | None = None,
        tasks_max: int | None = None,
        renewed: Callable[[], SparkSession | None] = lambda: None,
    ) -> None:
        self._session = session
        self._renewed = renewed
        self._opened: SparkSession | None = None
        ranges = takes_ranges(stream.transform)
        per_core = RANGE_TASKS_PER_CORE if ranges else FRAME_TASKS_PER_CORE
        self._job = SweepJob(
            stream=stream.key.stream,
            source_options=stream.source.spark_options(),
            transform=stream.transform,
            output_root=output_root,
            new_attempt=new_attempt or (lambda: attempt_name(run)),
            tag=run_tag(run),
            tasks_max=tasks_max or per_core * cores(),
            doomed=doomed,
            progressed=progressed,
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
        with span("session"):
            session = self._opened = self._session()
        try:
            return run_sweep(session, self._job, ranges, numbers)
        except SessionLost as lost:
            with span("session"):
                session = self._renewed()
            if session is None:
                raise
            _LOG.warning("The sweep is made again in a new session: %s", lost)
            self._opened = session
        return run_sweep(session, self._job, ranges, numbers)

    def abandon(self) -> bool:
        """Interrupt the sweeps that still run; return True if Spark answers and works.

        It is asked for a small job of its own, because a Spark whose Python workers stand still
        takes an interruption like any other. A busy one may take a while.
        """
        session = self._opened
        if session is None:
            return False
        answered = threading.Event()

        def ask() -> None:
            with suppress(Exception):
                session.interruptTag(self._job.tag)
                # Under no tag: a watch over the given-up job goes on interrupting what has its tag.
                session.range(1).mapInArrow(_as_they_are, "id bigint").collect()
                answered.set()

        threading.Thread(target=ask, name=f"abandon {self._job.tag}", daemon=True).start()
        return answered.wait(ABANDON_S)


def _as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
