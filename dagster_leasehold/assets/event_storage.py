"""Storing many of Dagster's events at once, where Dagster itself stores one after the other.

In SQLite an event of an asset or of a check costs Dagster up to four connections and as many
transactions, 13 ms of processor time in all; a run that ends has four events for each of its
shards. Here the events of a block become one insert for each table.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, cast

import dagster as dg
import sqlalchemy as sa
from dagster import DagsterEventType, EventLogEntry
from dagster._serdes import serialize_value

EVENTS_MAX = 200
"""The most events of one insert, so that no statement grows beyond what a server takes."""

_TOGETHER = (DagsterEventType.ASSET_MATERIALIZATION, DagsterEventType.ASSET_CHECK_EVALUATION)


@contextmanager
def stored_together(instance: dg.DagsterInstance) -> Generator[None]:
    """Store what this thread reports of assets and checks at the end of the block, all at once.

    What was reported is stored as well when the block is left by an error, as without it. Other
    threads and other events go on as ever, and so does everything in a storage that has its own
    way to store an event: only those of SQLite and MySQL are known here.
    """
    # Dagster's storage is slow to import, and a code location that loads needs none.
    from dagster._core.storage.event_log import SqlEventLogStorage, SqliteEventLogStorage

    batched = (SqlEventLogStorage.store_event, SqliteEventLogStorage.store_event)
    storage: Any = instance.event_log_storage
    if getattr(type(storage), "store_event", None) not in batched:
        yield
        return
    owner, store_event = threading.get_ident(), storage.store_event
    entries: list[EventLogEntry] = []

    def take(entry: EventLogEntry) -> None:
        if threading.get_ident() == owner and entry.dagster_event_type in _TOGETHER:
            entries.append(entry)
        else:
            store_event(entry)

    storage.store_event = take
    try:
        yield
    finally:
        del storage.store_event
        for first in range(0, len(entries), EVENTS_MAX):
            _store(storage, entries[first : first + EVENTS_MAX])


def _store(storage: Any, entries: Sequence[EventLogEntry]) -> None:
    """Store events of one run; the tables are those that Dagster's `store_event` fills."""
    from dagster._core.storage.event_log import SqliteEventLogStorage

    run = entries[0].run_id
    insert = storage.prepare_insert_event_batch(entries)
    with storage.run_connection(run) as connection:
        numbers = _inserted(connection, insert, run)
    if isinstance(storage, SqliteEventLogStorage):
        # A run has a file of its own; what other runs want to know is in a common one as well.
        with storage.index_connection() as connection:
            numbers = _inserted(connection, insert, run)
    numbered = list(zip(entries, numbers, strict=True))
    shown = [each for each in numbered if each[0].asset_materialization is not None]
    if shown:
        storage.store_asset_event_tags(*(list(each) for each in zip(*shown, strict=True)))
        # The asset's row names the newest event alone.
        storage.store_asset_event(*shown[-1])
    checks = [each for each in numbered if each[0].asset_materialization is None]
    if checks:
        _store_checks(storage, run, checks)


def _inserted(connection: sa.Connection, insert: sa.Insert, run: str) -> list[int]:
    """Insert events of a run; return their numbers, which rise in the order of the events."""
    from dagster._core.storage.event_log.schema import SqlEventLogStorageTable

    table = SqlEventLogStorageTable.c
    newest = connection.scalar(sa.select(sa.func.max(table.id)).where(table.run_id == run))
    connection.execute(insert)
    numbers = connection.scalars(
        sa.select(table.id)
        .where(
            table.run_id == run,
            table.id > (newest or 0),
            # A line that another thread logs meanwhile is not one of them.
            table.dagster_event_type.in_([kind.value for kind in _TOGETHER]),
        )
        .order_by(table.id)
    )
    return list(numbers)


def _store_checks(storage: Any, run: str, numbered: Sequence[tuple[EventLogEntry, int]]) -> None:
    """Store the outcomes of checks; those that the run planned or stored before are replaced."""
    from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable

    table = AssetCheckExecutionsTable
    rows = {number: _check_row(entry, number) for entry, number in numbered}
    with storage.index_connection() as connection:
        of_run = sa.select(table.c.asset_key, table.c.check_name, table.c.partition).where(
            table.c.asset_key.in_({row["asset_key"] for row in rows.values()}),
            table.c.check_name.in_({row["check_name"] for row in rows.values()}),
            table.c.run_id == run,
        )
        stored = {tuple(row) for row in connection.execute(of_run)}
        new = {
            number: row
            for number, row in rows.items()
            if (row["asset_key"], row["check_name"], row["partition"]) not in stored
        }
        if new:
            connection.execute(sa.insert(table), list(new.values()))
    for entry, number in numbered:
        if number not in new:
            storage.store_asset_check_event(entry, number)


def _check_row(entry: EventLogEntry, number: int) -> dict[str, Any]:
    event = entry.dagster_event
    assert event is not None
    evaluation = cast("dg.AssetCheckEvaluation", event.event_specific_data)
    target = evaluation.target_materialization_data
    return {
        "asset_key": evaluation.asset_key.to_string(),
        "check_name": evaluation.check_name,
        "partition": evaluation.partition,
        "run_id": entry.run_id,
        "execution_status": "SUCCEEDED" if evaluation.passed else "FAILED",
        "evaluation_event": serialize_value(entry),
        "evaluation_event_timestamp": datetime.fromtimestamp(entry.timestamp, UTC).replace(
            tzinfo=None
        ),
        "evaluation_event_storage_id": number,
        "materialization_event_storage_id": target.storage_id if target else None,
    }
