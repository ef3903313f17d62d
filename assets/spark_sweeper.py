"""Sweeps of a stream on a Spark session that is asked for only when there is something to read."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from assets.shard_stream import ShardStream
from assets.spark_session import cores
from assets.sweep import SweepJob, SweepResult, run_sweep
from lease_store.identifiers import ShardId
from shard_sources.source import ReadRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS_PER_CORE = 2
RUN_LENGTH_MAX = 40


def attempt_label(run: str) -> str:
    """How the names of a run's attempt folders begin: for people, and for vacuum to know them."""
    return re.sub(r"[^A-Za-z0-9-]", "-", run)[:RUN_LENGTH_MAX].lstrip("-") or "run"


def run_tag(run: str) -> str:
    """The tag of a run's Spark jobs: `session.interruptTag` of it ends them from any process."""
    # Spark takes any tag without a comma.
    return f"leasehold-{run.replace(',', '-')}"


class SparkSweeper:
    """Reads, transforms and writes ranges of a stream with Spark; see `assets.sweep`.

    Args:
        stream: the stream's declaration: source and transform.
        session: gives the Spark session; called for the first sweep.
        output_root: the folder of the stream's and group's output.
        run: the id of the run, for the tag of its jobs.
        doomed: asked while a job runs; once true, the job is interrupted.
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
        new_attempt: Callable[[], str] | None = None,
        tasks_max: int | None = None,
    ) -> None:
        self._session = session
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
        )

    def __call__(self, ranges: Sequence[ReadRange]) -> Mapping[ShardId, SweepResult]:
        """See `assets.sweep.run_sweep`."""
        return run_sweep(self._session(), self._job, ranges)
