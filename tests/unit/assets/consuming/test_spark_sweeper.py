"""Sweeps without a Spark: how often a job is repeated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.consuming import spark_sweeper
from dagster_leasehold.assets.consuming.spark_sweeper import (
    FRAME_TASKS_PER_CORE,
    RANGE_TASKS_PER_CORE,
    SAME_FAILURE_MAX,
    SparkSweeper,
    run_sweep,
)
from dagster_leasehold.assets.consuming.spark_work import SweepJob, failed_job
from dagster_leasehold.assets.guarding.job_watch import JobWatch
from dagster_leasehold.assets.guarding.run_on_spark import RunOnSpark
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import ShardId, StreamName
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import ReadRange

LOST = (
    "Job aborted due to stage failure: Task {n} in stage {n}.0 failed 4 times, most recent failure:"
    " Lost task 0.3 in stage {n}.0 (TID {n}) (10.0.0.1 executor {n}): ExecutorLostFailure (executor"
    " {n} exited caused by one of the running tasks) Reason: Command exited with code 137"
)


def test_a_cluster_that_lost_its_executors_is_not_retried_for_each_shard(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Method: every job fails; the numbers of tasks and executors differ each time."""
    watch = JobWatch(tag="tag", work="stream orders")
    job = SweepJob(
        StreamName("orders"), {}, None, local_place(tmp_path), lambda: "a", watch, tasks_max=2
    )
    jobs: list[int] = []

    def attempt(
        _: object, job: SweepJob, ranges: Sequence[ReadRange], *__: object
    ) -> Mapping[Any, Any]:
        jobs.append(len(ranges))
        raise failed_job(RuntimeError(LOST.format(n=len(jobs))), job, ranges)

    monkeypatch.setattr(spark_sweeper, "attempt_ranges", attempt)
    ranges = [ReadRange(ShardId(str(n)), "0", "1") for n in range(64)]
    spark: Any = None
    results = run_sweep(spark, job, ranges, {each.shard: range(1) for each in ranges})
    assert set(results) == {each.shard for each in ranges}
    assert jobs.count(1) == SAME_FAILURE_MAX
    assert "repeatedly lost the executor of a task" in str(results[ShardId("0")])


@pytest.mark.parametrize("transform", [None, lambda rows: rows], ids=["arrow", "frames"])
def test_a_sweep_uses_the_current_number_of_cores(
    transform: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Goal: executors that come while a run continues are used by its next sweep."""
    most: list[int] = []

    def attempt(_: object, job: SweepJob, *__: object) -> Mapping[Any, Any]:
        most.append(job.tasks_max)
        return {}

    ways = {"attempt_ranges": RANGE_TASKS_PER_CORE, "attempt_frames": FRAME_TASKS_PER_CORE}
    for name in ways:
        monkeypatch.setattr(spark_sweeper, name, attempt)
    monkeypatch.setattr(spark_sweeper, "tasks_at_once", int)
    sessions: Iterator[Any] = iter(("2", "64"))
    sweeper = SparkSweeper(
        stream=ShardStream("orders", LocalLog.create(tmp_path / "log", 1), transform=transform),
        spark=RunOnSpark(run="run-1", work="stream orders", session=lambda: next(sessions)),
        output_root=local_place(tmp_path / "output"),
    )
    for _ in range(2):
        sweeper([ReadRange(ShardId("0"), "0", "1")], {})
    per_core = ways["attempt_frames" if transform else "attempt_ranges"]
    assert most == [2 * per_core, 64 * per_core]
