"""Stand-ins for Dagster's storage of runs and events, only for speed.

The instance is a real one. Dagster's own storage in memory is a SQLite database, which took four
fifths of a soak's time. These keep the same data in dictionaries, and refuse calls that they do not
know, so that no code receives an invented answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
from dagster import DagsterEvent, DagsterRun, DagsterRunStatus, EventLogRecord
from dagster._core.event_api import EventRecordsResult
from dagster._core.events import EVENT_TYPE_TO_PIPELINE_RUN_STATUS
from dagster._core.storage.dagster_run import RunRecord

from dagster_leasehold.lease_store.times import utc_now

MATERIALIZATIONS_MAX = 5_000


class _StandIn:
    def __init__(self, storage: Any) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._storage, name)
        if callable(attribute):
            raise AttributeError(f"The soak's stand-in for Dagster's storage has no {name}.")
        return attribute


class RunsInMemory(_StandIn):
    """Runs and cursors."""

    def __init__(self, storage: Any) -> None:
        super().__init__(storage)
        self._runs: dict[str, DagsterRun] = {}
        self._open: dict[str, DagsterRun] = {}
        self._cursors: dict[str, str] = {}

    def add_run(self, dagster_run: DagsterRun) -> DagsterRun:
        self._put(dagster_run)
        return dagster_run

    def add_run_tags(self, run_id: str, new_tags: Mapping[str, str]) -> None:
        run = self._runs[run_id]
        self._put(run.with_tags({**run.tags, **new_tags}))

    def handle_run_event(self, run_id: str, event: DagsterEvent, *_: object) -> None:
        status = EVENT_TYPE_TO_PIPELINE_RUN_STATUS.get(event.event_type)
        if status is not None and run_id in self._runs:
            self._put(self._runs[run_id].with_status(status))

    def delete_run(self, run_id: str) -> None:
        self._runs.pop(run_id, None)
        self._open.pop(run_id, None)

    def has_run(self, run_id: str) -> bool:
        return run_id in self._runs

    def get_runs(
        self,
        filters: dg.RunsFilter | None = None,
        cursor: str | None = None,
        limit: int | None = None,
        bucket_by: object = None,
        ascending: bool = False,
    ) -> list[DagsterRun]:
        assert bucket_by is None
        runs = list(self._matching(filters or dg.RunsFilter()))
        if not ascending:
            runs.reverse()
        if cursor is not None:
            place = next((at for at, run in enumerate(runs) if run.run_id == cursor), len(runs))
            runs = runs[place + 1 :]
        return runs[:limit]

    def get_runs_count(self, filters: dg.RunsFilter | None = None) -> int:
        return len(self.get_runs(filters))

    def get_run_records(
        self, filters: dg.RunsFilter | None = None, limit: int | None = None, **_: object
    ) -> list[RunRecord]:
        now = utc_now()
        return [RunRecord(0, run, now, now) for run in self.get_runs(filters, limit=limit)]

    def get_cursor_values(self, keys: set[str]) -> dict[str, str]:
        return {key: self._cursors[key] for key in keys if key in self._cursors}

    def set_cursor_values(self, pairs: Mapping[str, str]) -> None:
        self._cursors |= pairs

    def _put(self, run: DagsterRun) -> None:
        self._runs[run.run_id] = run
        if run.is_finished:
            self._open.pop(run.run_id, None)
        else:
            self._open[run.run_id] = run

    def _matching(self, wanted: dg.RunsFilter) -> Iterator[DagsterRun]:
        assert not any((wanted.updated_after, wanted.created_after, wanted.snapshot_id))
        open_only = bool(wanted.statuses) and not any(map(_finished, wanted.statuses))
        if wanted.run_ids is not None:
            runs = [self._runs[each] for each in wanted.run_ids if each in self._runs]
        else:
            runs = list((self._open if open_only else self._runs).values())
        for run in runs:
            if wanted.statuses and run.status not in wanted.statuses:
                continue
            if wanted.job_name is not None and run.job_name != wanted.job_name:
                continue
            if all(_has(run, tag, value) for tag, value in (wanted.tags or {}).items()):
                yield run


def _finished(status: DagsterRunStatus) -> bool:
    return status in (DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)


def _has(run: DagsterRun, tag: str, value: str | Sequence[str]) -> bool:
    return run.tags.get(tag) in ([value] if isinstance(value, str) else value)


class EventsInMemory(_StandIn):
    """The newest materializations, and dynamic partitions; no other event is ever read."""

    def __init__(self, storage: Any) -> None:
        super().__init__(storage)
        self._records: deque[EventLogRecord] = deque(maxlen=MATERIALIZATIONS_MAX)
        self._partitions: dict[str, list[str]] = {}
        self._numbers = 0

    def store_event(self, event: Any) -> None:
        if event.dagster_event is not None and event.dagster_event.is_step_materialization:
            self._numbers += 1
            self._records.append(EventLogRecord(self._numbers, event))

    def delete_events(self, run_id: str) -> None:
        """Do nothing: old records make room by themselves."""

    def fetch_materializations(
        self, filters: Any, limit: int, cursor: str | None = None, ascending: bool = False
    ) -> EventRecordsResult:
        assert cursor is None
        assert not ascending
        wanted = set(filters.asset_partitions or ())
        records = [
            record
            for record in reversed(self._records)
            if record.asset_key == filters.asset_key
            and (not wanted or record.partition_key in wanted)
        ]
        return EventRecordsResult(records[:limit], cursor="", has_more=False)

    def get_dynamic_partitions(self, partitions_def_name: str) -> list[str]:
        return list(self._partitions.get(partitions_def_name, ()))

    def has_dynamic_partition(self, partitions_def_name: str, partition_key: str) -> bool:
        return partition_key in self._partitions.get(partitions_def_name, ())

    def add_dynamic_partitions(
        self, partitions_def_name: str, partition_keys: Sequence[str]
    ) -> None:
        keys = self._partitions.setdefault(partitions_def_name, [])
        keys += [key for key in partition_keys if key not in keys]
