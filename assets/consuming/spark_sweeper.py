"""Sweeps of a stream on a Spark session that is asked for only when there is something to read."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_leasehold.assets.consuming.sweep import SweepJob, SweepResult, run_sweep
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark.spark_session import cores
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import ReadRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

TASKS_PER_CORE = 2
ABANDON_S = 60.0
RUN_LENGTH_MAX = 40


def attempt_label(run: str) -> str:
    """How the names of a run's attempt folders begin: for people, and for vacuum to know them."""
    return re.sub(r"[^A-Za-z0-9-]", "-", run)[:RUN_LENGTH_MAX].lstrip("-") or "run"


def run_tag(run: str) -> str:
    """The tag of a run's Spark jobs: `session.interruptTag` of it ends them from any process."""
    # Spark takes any tag without a comma.
    return f"leasehold-{run.replace(',', '-')}"


class SparkSweeper:
    """Reads, transforms and writes ranges of a stream with Spark; see `assets.consuming.sweep`.

    Args:
        stream: the stream's declaration: source and transform.
        session: gives the Spark session; called for the first sweep.
        output_root: the folder of the stream's and group's output.
        run: the id of the run, for the tag of its jobs.
        doomed: asked while a job runs; once true, the job is interrupted.
        progressed: told while a job makes progress.
        new_attempt: gives a name that was never used, for an attempt's folder.
        tasks_max: the most tasks of a job; by default two per core of this machine.
    """

    def __init__(
        self,
        *,
        stream: ShardStream,
        session: Callable[[], SparkSession],
        output_root: Path,
        run: str,
        doomed: Callable[[], bool] = lambda: False,
        progressed: Callable[[], None] = lambda: None,
        new_attempt: Callable[[], str] | None = None,
        tasks_max: int | None = None,
    ) -> None:
        self._session = session
        self._opened: SparkSession | None = None
        label = attempt_label(run)
        self._job = SweepJob(
            stream=stream.key.stream,
            source_options=stream.source.spark_options(),
            transform=stream.transform,
            output_root=output_root.absolute(),
            new_attempt=new_attempt or (lambda: f"{label}-{uuid.uuid4().hex}"),
            tag=run_tag(run),
            tasks_max=tasks_max or TASKS_PER_CORE * cores(),
            doomed=doomed,
            progressed=progressed,
        )

    def __call__(self, ranges: Sequence[ReadRange]) -> Mapping[ShardId, SweepResult]:
        """See `assets.consuming.sweep.run_sweep`."""
        session = self._opened = self._session()
        return run_sweep(session, self._job, ranges)

    def abandon(self) -> bool:
        """Interrupt what still runs of the sweeps; whether Spark answers and works.

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
