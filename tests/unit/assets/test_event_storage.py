from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster._core.events import DagsterEvent, StepMaterializationData
from dagster._core.storage.event_log import SqliteEventLogStorage

from dagster_leasehold.assets.event_storage import EVENTS_MAX, stored_together

KEY = dg.AssetKey("orders")
RUN = "11111111-run"
TABLES = ("event_logs", "asset_keys", "asset_check_executions", "asset_event_tags")


def entry(kind: dg.DagsterEventType, data: Any, run: str = RUN) -> dg.EventLogEntry:
    event = DagsterEvent(kind.value, "consume", event_specific_data=data)
    return dg.EventLogEntry(None, 20, "", run, 1_800_000_000.5, dagster_event=event)


def materialization(shard: str, run: str = RUN) -> dg.EventLogEntry:
    shown = dg.AssetMaterialization(
        KEY, partition=shard, metadata={"records": 7}, tags={"dagster/data_version": shard}
    )
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    return entry(kind, StepMaterializationData(shown), run)


def check(shard: str, name: str, *, passed: bool = True, run: str = RUN) -> dg.EventLogEntry:
    evaluation = dg.AssetCheckEvaluation(KEY, name, passed, partition=shard)
    return entry(dg.DagsterEventType.ASSET_CHECK_EVALUATION, evaluation, run)


def line(text: str) -> dg.EventLogEntry:
    return dg.EventLogEntry(None, 20, text, RUN, 1_800_000_001.0)


def events_of(shards: int, run: str = RUN) -> list[dg.EventLogEntry]:
    return [
        each
        for shard in map(str, range(shards))
        for each in (
            materialization(shard, run),
            check(shard, "no_gap", run=run),
            check(shard, "lag", passed=shard != "1", run=run),
        )
    ]


def rows_of(storage: Any) -> dict[str, list[dict[str, Any]]]:
    """All that a storage holds, apart from the times at which it was stored."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for of, connection in (("run", storage.run_connection(RUN)), ("", storage.index_connection())):
        with connection as open_:
            for table in TABLES:
                select = sa.text(f"SELECT * FROM {table} ORDER BY id")
                rows[f"{of} {table}"] = [
                    {name: value for name, value in row.items() if name != "create_timestamp"}
                    for row in open_.execute(select).mappings()
                ]
    return rows


def store_together(storage: Any, entries: list[dg.EventLogEntry]) -> None:
    instance: Any = SimpleNamespace(event_log_storage=storage)
    with stored_together(instance):
        for each in entries:
            instance.event_log_storage.store_event(each)


NewStorage = Callable[[str], SqliteEventLogStorage]


@pytest.fixture
def new_storage(tmp_path: Path) -> NewStorage:
    return lambda name: SqliteEventLogStorage(str(tmp_path / name))


@pytest.fixture
def transactions() -> Iterator[list[int]]:
    """The transactions so far: one item for each commit."""
    commits: list[int] = []

    def committed(connection: sa.Connection) -> None:
        del connection
        commits.append(1)

    sa.event.listen(sa.Engine, "commit", committed)
    yield commits
    sa.event.remove(sa.Engine, "commit", committed)


def test_the_tables_hold_what_they_would_hold_one_event_after_the_other(
    new_storage: NewStorage,
) -> None:
    alone, together = new_storage("alone"), new_storage("together")
    for run in ("an earlier run", RUN):
        for each in events_of(3, run):
            alone.store_event(each)
        store_together(together, events_of(3, run))
    rows = rows_of(together)
    assert rows == rows_of(alone)
    assert len(rows[" asset_check_executions"]) == 12
    assert len(rows[" asset_event_tags"]) == 6


def test_the_outcome_of_a_check_replaces_the_one_that_the_run_stored_before(
    new_storage: NewStorage,
) -> None:
    storage = new_storage("storage")
    store_together(storage, [check("0", "lag", passed=False)])
    store_together(storage, [check("0", "lag"), check("1", "lag")])
    stored = rows_of(storage)[" asset_check_executions"]
    assert [(row["partition"], row["execution_status"]) for row in stored] == [
        ("0", "SUCCEEDED"),
        ("1", "SUCCEEDED"),
    ]
    assert [row["evaluation_event_storage_id"] for row in stored] == [2, 3]


def test_the_transactions_do_not_grow_with_the_shards(
    new_storage: NewStorage, transactions: list[int]
) -> None:
    storage = new_storage("storage")
    counts: list[int] = []
    for shards in (1, EVENTS_MAX // 3):
        storage.store_event(line(f"{shards} shards"))
        before = len(transactions)
        store_together(storage, events_of(shards, f"run over {shards}"))
        counts.append(len(transactions) - before)
    assert counts[0] == counts[1] <= 7


def test_more_events_than_fit_into_one_insert_are_all_stored(new_storage: NewStorage) -> None:
    storage = new_storage("storage")
    store_together(storage, events_of(EVENTS_MAX // 3 + 2))
    rows = rows_of(storage)
    assert len(rows[" event_logs"]) == len(rows["run event_logs"]) == EVENTS_MAX // 3 * 3 + 6


def test_events_of_others_are_stored_at_once(new_storage: NewStorage) -> None:
    storage = new_storage("storage")
    instance: Any = SimpleNamespace(event_log_storage=storage)
    with stored_together(instance):
        storage.store_event(materialization("0"))
        storage.store_event(line("said by the run"))
        other = Thread(target=storage.store_event, args=[materialization("1")])
        other.start()
        other.join()
        stored = rows_of(storage)
        assert len(stored["run event_logs"]) == 2
        assert [row["partition"] for row in stored[" event_logs"]] == ["1"]
    assert len(rows_of(storage)["run event_logs"]) == 3


def test_an_error_in_the_block_keeps_what_was_reported(new_storage: NewStorage) -> None:
    storage = new_storage("storage")
    instance: Any = SimpleNamespace(event_log_storage=storage)

    def fail() -> None:
        with stored_together(instance):
            storage.store_event(materialization("0"))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert len(rows_of(storage)[" event_logs"]) == 1
    storage.store_event(materialization("1"))
    assert len(rows_of(storage)[" event_logs"]) == 2
