"""The Dagster runs of a stream that have not ended, and the shards that they serve."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
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
from assets.run_process import process_gone
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
    """

    run_id: str
    node: str | None
    shards: frozenset[str]
    started: bool


def active_runs(instance: dg.DagsterInstance, stream: ShardStream) -> list[ActiveRun]:
    """All runs of a stream that have not ended, launched by whomever.

    A run whose process this host knows to be gone is reported as failed and left out.
    """
    found: list[ActiveRun] = []
    for run in instance.get_runs(filters=dg.RunsFilter(statuses=ACTIVE), limit=RUNS_LIMIT):
        shards = _shards_of(run, stream)
        if shards is None:
            continue
        if process_gone(run.tags.get(PROCESS_TAG, "")):
            instance.report_run_failed(run, "The process of this run ended without a word.")
            continue
        started = run.status in (DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING)
        found.append(ActiveRun(run.run_id, run.tags.get(NODE_TAG), shards, started))
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


@dataclass(slots=True)
class HoldingMemory:
    """Which runs held a shard, to notice those that hold none any more and go on all the same.

    A run that lost its last lease stops by itself at its next look. One that does not look (it
    hangs in a job) is terminated after a grace time: it could commit nothing, but it costs cores.
    """

    _held_s: dict[str, float] = field(default_factory=dict)

    def overdue(
        self,
        active: Collection[ActiveRun],
        holding: Collection[str],
        *,
        now_s: float,
        grace_s: float,
    ) -> list[str]:
        """Started runs that held a shard once and none for `grace_s` seconds now."""
        for run_id in holding:
            self._held_s[run_id] = now_s
        started = {run.run_id for run in active if run.started}
        self._held_s = {run: at for run, at in self._held_s.items() if run in started}
        return sorted(run for run, at in self._held_s.items() if now_s - at > grace_s)
