"""The Dagster runs of a stream that have not ended, and the shards that they serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dagster as dg
from dagster import DagsterRun, DagsterRunStatus

from assets.partitions import (
    NODE_TAG,
    PROCESS_TAG,
    asset_key,
    asset_op_name,
    consume_job_name,
    consume_op_name,
)
from assets.shard_replay import is_replay
from assets.shard_stream import ShardStream

PARTITION_TAG = "dagster/partition"
RUNS_LIMIT = 1_000
ACTIVE = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


@dataclass(frozen=True, slots=True)
class ActiveRun:
    """A run of a stream that has not ended.

    Attributes:
        node: the node that it consumes as; None for a run that has not chosen yet.
        shards: the shards that it was launched for.
        started: whether its process has begun to work.
        launched: whether it is a run of `consume_<stream>`, as sensors launch them.
        process: its process, as `assets.run_process` notes it; empty while it has none.
    """

    run_id: str
    node: str | None
    shards: frozenset[str]
    started: bool
    launched: bool = False
    process: str = ""


def active_runs(instance: dg.DagsterInstance, stream: ShardStream) -> list[ActiveRun]:
    """All runs of a stream that have not ended, launched by whomever."""
    found: list[ActiveRun] = []
    for run in instance.get_runs(filters=dg.RunsFilter(statuses=ACTIVE), limit=RUNS_LIMIT):
        shards = _shards_of(run, stream)
        if shards is None:
            continue
        started = run.status in (DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING)
        process = run.tags.get(PROCESS_TAG, "")
        found.append(
            ActiveRun(
                run.run_id,
                run.tags.get(NODE_TAG),
                shards,
                started=started,
                launched=run.job_name == consume_job_name(stream),
                process=process,
            )
        )
    return found


def _shards_of(run: DagsterRun, stream: ShardStream) -> frozenset[str] | None:
    """The shards that a run serves, or None for a run of something else."""
    if run.job_name == consume_job_name(stream):
        config: dict[str, Any] = dict(run.run_config)
        op = config.get("ops", {}).get(consume_op_name(stream), {})
        return frozenset(op.get("config", {}).get("shards", ()))
    if run.asset_selection and asset_key(stream) in run.asset_selection:
        given: dict[str, Any] = dict(run.run_config)
        op = given.get("ops", {}).get(asset_op_name(stream), {})
        if is_replay(op.get("config") or {}):
            # It works beside live consumption, which must not wait for it.
            return frozenset()
        partition = run.tags.get(PARTITION_TAG)
        return frozenset([partition] if partition else [])
    return None
