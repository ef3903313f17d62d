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
from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_leasehold.assets.consuming.frame_job import attempt_frames
from dagster_leasehold.assets.consuming.range_job import attempt_ranges
from dagster_leasehold.assets.consuming.spark_work import (
    STARVED_AFTER_S,
    JobFailed,
    ShardsFailed,
    SweepJob,
    works_on_arrow,
)
from dagster_leasehold.assets.consuming.sweep import SweepOutcome, SweepResult
from dagster_leasehold.assets.errors import SessionLost, TransformError
from dagster_leasehold.assets.output.attempts import attempt_name
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark.spark_session import tasks_at_once
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
INTERRUPT_S = 5.0
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
        where: the mode or address of Spark, for messages.
        starved_after_s: after how many seconds in which no task runs the run says so.
        tell: takes a sentence for whoever looks at the run.
        ended: tells if another run is known to have ended.
        output_root: the folder of the stream's and group's output.
        run: the id of the run, for the tag of its jobs.
        doomed: asked while a job runs; once it is true, the job is interrupted.
        progressed: called while a job makes progress.
        new_attempt: gives a name that was never used, for an attempt's folder.
        tasks_max: the most tasks of a job; by default one for each that Spark runs at once, or two
            where the transform is one of DataFrames.
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
        where: str = "",
        starved_after_s: float = STARVED_AFTER_S,
        tell: Callable[[str], None] = _LOG.warning,
        ended: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._session = session
        self._renewed = renewed
        self._opened: SparkSession | None = None
        self._where = f"Spark ({where})" if where else "Spark"
        self._starved = False
        self._tell = tell
        self._ended = ended
        self._predecessors: set[str] = set()
        ranges = works_on_arrow(stream.transform)
        self._per_core = RANGE_TASKS_PER_CORE if ranges else FRAME_TASKS_PER_CORE
        self._tasks_max = tasks_max
        self._job = SweepJob(
            stream=stream.key.stream,
            source_options=stream.source.spark_options(),
            transform=stream.transform,
            output_root=output_root,
            new_attempt=new_attempt or (lambda: attempt_name(run)),
            tag=run_tag(run),
            tasks_max=tasks_max or self._per_core,
            doomed=doomed,
            progressed=progressed,
            divide=stream.source.divide if isinstance(stream.source, DivisibleRanges) else None,
            starved=self._note_starved,
            starved_after_s=starved_after_s,
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
        self._interrupt_predecessors(session)
        try:
            return run_sweep(session, self._job_on(session), ranges, numbers)
        except SessionLost as lost:
            with span("session"):
                session = self._renewed()
            if session is None:
                raise
            _LOG.warning("The sweep is made again in a new session: %s", lost)
            self._opened = session
        return run_sweep(session, self._job_on(session), ranges, numbers)

    def _job_on(self, session: SparkSession) -> SweepJob:
        """Return the job of a sweep, with the tasks that this session's Spark has room for now."""
        tasks_max = self._tasks_max or self._per_core * tasks_at_once(session)
        return replace(self._job, tasks_max=tasks_max)

    @property
    def awaited(self) -> str:
        """The answer that a sweep waits for, as part of a sentence."""
        return f"a free core of {self._where}" if self._starved else "Spark"

    def succeed(self, run: str) -> None:
        """Take note of an earlier run of which a batch was left unfinished.

        1. A run is killed, or its host dies, in the middle of a Spark job.
        2. The Connect server goes on with the job: it holds cores, and writes what nobody names.
        3. This run opens the shard, and finds what was intended.
        4. If the other run is known to have ended, its job is interrupted, in the session that
           runs share. In a session of its own, a Connect server ends what nobody asks for.
        """
        self._predecessors.add(run)

    def _interrupt_predecessors(self, session: SparkSession) -> None:
        while self._predecessors:
            run = self._predecessors.pop()
            # It only frees cores sooner.
            with suppress(Exception):
                if self._ended(run):
                    session.interruptTag(run_tag(run))

    def _note_starved(self, starved: bool) -> None:
        self._starved = starved
        if not starved:
            return
        sentence = (
            f"{self._where} has run no task of stream {self._job.stream} for "
            f"{self._job.starved_after_s:g} s, as if it had no free core: add workers, or give "
            "other applications fewer cores. The run waits, for stall_limit_s at most."
        )
        # On a thread of its own: whoever is told may hang, and the job must be watched.
        threading.Thread(target=self._tell, args=(sentence,), name="tell", daemon=True).start()

    def abandon(self, *, ours: bool = True) -> bool:
        """Interrupt the sweeps that still run; return True if Spark answers and works.

        If the server is `ours`, it is asked for a small job of its own, because a Spark whose
        Python workers stand still takes an interruption like any other. A busy one may take a
        while. From another Spark nothing is expected but to take the interruption.
        """
        session = self._opened
        if session is None:
            return False
        answered = threading.Event()

        def ask() -> None:
            with suppress(Exception):
                session.interruptTag(self._job.tag)
                if ours:
                    # Under no tag: a watch over the given-up job goes on interrupting its tag.
                    session.range(1).mapInArrow(_as_they_are, "id bigint").collect()
                answered.set()

        threading.Thread(target=ask, name=f"abandon {self._job.tag}", daemon=True).start()
        return answered.wait(ABANDON_S if ours else INTERRUPT_S)


def _as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
