"""The Dagster runs of a stream that have not ended, and the shards that they serve."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from threading import Lock
from typing import Any

import dagster as dg
from dagster import DagsterRun, DagsterRunStatus

from dagster_leasehold.assets import partitions as names
from dagster_leasehold.assets.consuming.run_requests import FINISH_TAG, STOP_TAG
from dagster_leasehold.assets.run_process import PART_ENDED, recorded_process
from dagster_leasehold.assets.shard_replay import is_replay
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import ShardId

RUNS_OF_ALL_MAX = 100
"""Up to this number, all unfinished runs of an instance are read at once for all streams."""
RUNS_PER_READ = 500
SHARDS_PER_READ = 500
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
        node: the node that it consumes for; None if none is chosen yet.
        launched: True for a run of `consume_<stream>`, which sensors launch.
        process: its process, as `assets.run_process` records it; empty while it has none.
        follows: True if it waits for further records after it has read its shards.
        definition: the mark of the stream's definition when it was launched.
        work_max_s: the time limit that its launcher set, in seconds; None if the run has not
            started or has no limit.
    """

    run_id: str
    node: str | None
    shards: frozenset[str]
    started: bool
    launched: bool = False
    process: str = ""
    follows: bool = False
    definition: str = ""
    ending: bool = False
    work_max_s: float | None = None


@dataclass(slots=True)
class ActiveRuns:
    """The unfinished runs of an instance, read once for all streams of a tick.

    Above `RUNS_OF_ALL_MAX`, the runs of each stream are read separately, because a backfill of
    another asset can have any number of runs.
    """

    instance: dg.DagsterInstance
    _page: Sequence[DagsterRun] | None = None
    _lock: Lock = field(default_factory=Lock)

    def of(self, stream: ShardStream) -> list[ActiveRun]:
        """Return the runs with a stream's tag.

        Sensors tag the runs that they launch. Other runs get the tag when they start; until then,
        `queued_shards` finds them.
        """
        keys = cache(partial(self.instance.get_dynamic_partitions, stream.name))
        active: list[ActiveRun] = []
        for run in self._runs_of(stream):
            shards = _shards_of(run, stream, keys)
            if shards is not None:
                active.append(_active(run, stream, shards))
        return active

    def _runs_of(self, stream: ShardStream) -> list[DagsterRun]:
        job = names.consume_job_name(stream)
        with self._lock:
            if self._page is None:
                self._page = self.instance.get_runs(
                    dg.RunsFilter(statuses=ACTIVE), limit=RUNS_OF_ALL_MAX + 1
                )
        if len(self._page) <= RUNS_OF_ALL_MAX:
            return [
                run
                for run in self._page
                if run.tags.get(names.STREAM_TAG) == stream.name or run.job_name == job
            ]
        filters = (
            dg.RunsFilter(statuses=ACTIVE, tags={names.STREAM_TAG: stream.name}),
            dg.RunsFilter(statuses=ACTIVE, job_name=job),
        )
        runs = (run for each in filters for run in _all_runs(self.instance, each))
        return list({run.run_id: run for run in runs}.values())


def _active(run: DagsterRun, stream: ShardStream, shards: frozenset[str]) -> ActiveRun:
    config = _consume_config(run, stream)
    return ActiveRun(
        run.run_id,
        run.tags.get(names.NODE_TAG),
        shards,
        started=run.status in (DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING),
        launched=run.job_name == names.consume_job_name(stream),
        process=recorded_process(run),
        follows=bool(config.get("follow")),
        definition=str(config.get("definition", "")),
        ending=FINISH_TAG in run.tags or STOP_TAG in run.tags,
        work_max_s=_work_max_s(run),
    )


def _work_max_s(run: DagsterRun) -> float | None:
    limit = run.tags.get(names.WORK_MAX_TAG, "")
    # Time in Dagster's queue does not count.
    at_work = run.status is DagsterRunStatus.STARTED
    return float(limit) if at_work and limit.isdecimal() else None


def queued_shards(
    instance: dg.DagsterInstance, stream: ShardStream, shards: Sequence[ShardId]
) -> set[ShardId]:
    """Return the shards whose partition has an unfinished run, by a user or a backfill."""
    busy: set[str] = set()
    for run in _runs_of_partitions(instance, shards):
        busy.update(_shards_of(run, stream, list) or ())
    return {shard for shard in shards if shard in busy}


def active_partitions(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partitions: Collection[str]
) -> set[str]:
    """Return the given partitions that have an unfinished run."""
    return {
        run.tags[names.PARTITION_TAG]
        for run in _runs_of_partitions(instance, sorted(partitions))
        if run.asset_selection and asset in run.asset_selection
    }


def _runs_of_partitions(
    instance: dg.DagsterInstance, partitions: Sequence[str]
) -> Iterator[DagsterRun]:
    for first in range(0, len(partitions), SHARDS_PER_READ):
        part = list(partitions[first : first + SHARDS_PER_READ])
        filters = dg.RunsFilter(statuses=ACTIVE, tags={names.PARTITION_TAG: part})
        yield from _all_runs(instance, filters)


def _all_runs(instance: dg.DagsterInstance, filters: dg.RunsFilter) -> Iterator[DagsterRun]:
    cursor: str | None = None
    while True:
        page = instance.get_runs(filters=filters, cursor=cursor, limit=RUNS_PER_READ)
        yield from page
        if len(page) < RUNS_PER_READ:
            return
        cursor = page[-1].run_id


def _shards_of(
    run: DagsterRun, stream: ShardStream, keys: Callable[[], Sequence[str]]
) -> frozenset[str] | None:
    """Return the shards that a run serves, or None if it does not belong to the stream.

    `keys` returns the partitions of the stream in order, for a run of a partition range.
    """
    if recorded_process(run) == PART_ENDED:
        return None
    if run.job_name == names.consume_job_name(stream):
        return frozenset(_consume_config(run, stream).get("shards", ()))
    if run.asset_selection and names.asset_key(stream) in run.asset_selection:
        run_config: dict[str, Any] = dict(run.run_config)
        op = run_config.get("ops", {}).get(names.asset_op_name(stream), {})
        if is_replay(op.get("config") or {}):
            # Live consumption does not wait for a replay.
            return frozenset()
        return frozenset(names.partitions_of(run.tags, keys))
    return None


def _consume_config(run: DagsterRun, stream: ShardStream) -> dict[str, Any]:
    config: dict[str, Any] = dict(run.run_config)
    return config.get("ops", {}).get(names.consume_op_name(stream), {}).get("config", {})
