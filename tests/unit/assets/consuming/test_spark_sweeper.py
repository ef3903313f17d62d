"""Sweeps without a Spark: how often a job is repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from dagster_leasehold.assets.consuming import spark_sweeper
from dagster_leasehold.assets.consuming.spark_sweeper import SAME_FAILURE_MAX, run_sweep
from dagster_leasehold.assets.consuming.spark_work import SweepJob, failed_job
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.lease_store.identifiers import ShardId, StreamName
from dagster_leasehold.shard_sources.source import ReadRange

LOST = (
    "Job aborted due to stage failure: Task {n} in stage {n}.0 failed 4 times, most recent failure:"
    " Lost task 0.3 in stage {n}.0 (TID {n}) (10.0.0.1 executor {n}): ExecutorLostFailure (executor"
    " {n} exited caused by one of the running tasks) Reason: Command exited with code 137"
)


def test_a_cluster_that_loses_its_executors_is_not_asked_once_for_each_shard(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Method: every job fails; the numbers of tasks and executors differ each time."""
    job = SweepJob(
        StreamName("orders"), {}, None, local_place(tmp_path), lambda: "a", "tag", tasks_max=2
    )
    jobs: list[int] = []

    def attempt(
        _: object, job: SweepJob, ranges: Sequence[ReadRange], *__: object
    ) -> Mapping[Any, Any]:
        jobs.append(len(ranges))
        raise failed_job(
            RuntimeError(LOST.format(n=len(jobs))), job, [each.shard for each in ranges]
        )

    monkeypatch.setattr(spark_sweeper, "attempt_ranges", attempt)
    ranges = [ReadRange(ShardId(str(n)), "0", "1") for n in range(64)]
    spark: Any = None
    results = run_sweep(spark, job, ranges, {each.shard: range(1) for each in ranges})
    assert set(results) == {each.shard for each in ranges}
    assert jobs.count(1) == SAME_FAILURE_MAX
    assert "lost the executor of a task again and again" in str(results[ShardId("0")])
