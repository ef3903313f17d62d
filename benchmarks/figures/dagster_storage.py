"""The contents of Dagster's storage: events, rows and bytes, in SQLite files."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from dagster_leasehold.orchestration.settings import Settings

EVENTS, RUNS = "event_logs", "runs"
INDEX = "index.db"
"""The file in which Dagster keeps the events of assets a second time."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The contents of the storage, or the difference of two."""

    runs: int = 0
    events: int = 0
    of_shards: int = 0
    """Those of the events that name a partition."""
    rows: int = 0
    bytes: int = 0

    def since(self, before: Stored) -> Stored:
        """Return the growth since an earlier look."""
        return Stored(
            self.runs - before.runs,
            self.events - before.events,
            self.of_shards - before.of_shards,
            self.rows - before.rows,
            self.bytes - before.bytes,
        )


def stored(settings: Settings) -> Stored:
    """Return what a deployment's Dagster storage holds now."""
    total = Stored()
    for path in sorted(settings.dagster_home.rglob("*.db")):
        with suppress(sqlite3.Error):
            total = total.since(_negative(_of_file(path)))
    return total


def _negative(one: Stored) -> Stored:
    return Stored().since(one)


def _of_file(path: Path) -> Stored:
    rows: dict[str, int] = {}
    of_shards = 0
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (table,) in names.fetchall():
            counted = f'SELECT COUNT(*) FROM "{table}"'  # noqa: S608 - Dagster's own names
            (rows[table],) = connection.execute(counted).fetchone()
        if EVENTS in rows and path.name != INDEX:
            counted = "SELECT COUNT(*) FROM event_logs WHERE partition IS NOT NULL"
            (of_shards,) = connection.execute(counted).fetchone()
    files = [path, *(path.with_name(path.name + end) for end in ("-wal", "-journal"))]
    return Stored(
        runs=rows.get(RUNS, 0),
        events=0 if path.name == INDEX else rows.get(EVENTS, 0),
        of_shards=of_shards,
        rows=sum(rows.values()),
        bytes=sum(file.stat().st_size for file in files if file.exists()),
    )
