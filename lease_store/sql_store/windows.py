"""Windows of event time in SQL."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy.exc import IntegrityError
from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.outcomes import Changed, Stale
from dagster_leasehold.lease_store.roles.windows import EventWindow, WindowAttempt, Windows
from dagster_leasehold.lease_store.sql_store import window_statements as statements
from dagster_leasehold.lease_store.sql_store.group_statements import insert_into
from dagster_leasehold.lease_store.sql_store.history_mapping import file_from, file_values
from dagster_leasehold.lease_store.sql_store.lease_mapping import Row, key_values
from dagster_leasehold.lease_store.sql_store.verbs import SqlVerbs
from dagster_leasehold.lease_store.tables import event_window, window_attempt
from dagster_leasehold.lease_store.transactions import Raced, Transaction


class SqlWindows(SqlVerbs, Windows):
    """The verbs on windows; each change is one row under a condition on its version."""

    @override
    def windows(
        self,
        key: GroupKey,
        asset: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[EventWindow]:
        def work(tx: Transaction) -> list[EventWindow]:
            self._group(tx, key)
            statement = statements.select_windows(key, asset, since, until)
            return [window_from(row) for row in tx.rows(statement)]

        return self._read("windows", work)

    @override
    def put_window(
        self, key: GroupKey, window: EventWindow, *, attempt: str | None = None
    ) -> Changed | Stale:
        def stored(tx: Transaction) -> EventWindow | None:
            statement = statements.select_window(key, window.asset, window.start)
            row = tx.rows(statement).first()
            return window_from(row) if row is not None else None

        def work(tx: Transaction) -> Changed | Stale:
            self._group(tx, key)
            before = stored(tx)
            if before == window:
                return tx.abandon(Changed())
            if window.version != (before.version if before else 0) + 1:
                return tx.abandon(Stale())
            if attempt is not None and not self._freed(tx, key, attempt):
                return tx.abandon(Stale())
            values = window_values(window)
            if before is not None:
                self._change_row(
                    tx,
                    statements.update_window(
                        key, window.asset, window.start, before.version, values
                    ),
                )
                return Changed()
            named = {"asset": window.asset, "window_start": window.start}
            try:
                tx.connection.execute(insert_into(event_window), key_values(key) | named | values)
            except IntegrityError:
                # Somebody was first between our look and our insert: look again.
                raise Raced from None
            return Changed()

        def mark(tx: Transaction) -> bool:
            return stored(tx) == window

        return self._write("put_window", work, mark=mark)

    @override
    def begin_window(self, key: GroupKey, attempt: str, run: str) -> Changed:
        def work(tx: Transaction) -> Changed:
            self._group(tx, key)
            # The whole group is locked by its rows; where there is none, the key decides.
            chosen = statements.select_attempts(key, lock=True)
            rows = list(tx.rows(chosen))
            if any(row["attempt"] == attempt for row in rows):
                return tx.abandon(Changed())
            values = {"attempt": attempt, "run": run, "begun_at": self._clock()}
            free = next((row["slot"] for row in rows if not row["attempt"]), None)
            if free is not None:
                self._change_row(tx, statements.fill_slot(key, free, values))
                return Changed()
            slot = max((row["slot"] for row in rows), default=-1) + 1
            try:
                added = key_values(key) | {"slot": slot} | values
                tx.connection.execute(insert_into(window_attempt), added)
            except IntegrityError:
                # Somebody took the slot between our look and our insert: look again.
                raise Raced from None
            return Changed()

        return self._write("begin_window", work)

    @override
    def end_window(self, key: GroupKey, attempt: str) -> Changed | Stale:
        sent = False

        def work(tx: Transaction) -> Changed | Stale:
            nonlocal sent
            self._group(tx, key)
            if self._freed(tx, key, attempt):
                sent = True
                return Changed()
            # A name is used once: whatever an earlier try of this call did, it stays.
            return tx.abandon(Changed() if sent else Stale())

        return self._write("end_window", work)

    @override
    def window_attempts(self, key: GroupKey) -> list[WindowAttempt]:
        def work(tx: Transaction) -> list[WindowAttempt]:
            self._group(tx, key)
            rows = tx.rows(statements.select_attempts(key))
            attempts = [
                WindowAttempt(row["attempt"], row["run"], row["begun_at"])
                for row in rows
                if row["attempt"]
            ]
            return sorted(attempts, key=lambda each: each.attempt)

        return self._read("window_attempts", work)

    def _freed(self, tx: Transaction, key: GroupKey, attempt: str) -> bool:
        return tx.connection.execute(statements.free_slot(key, attempt)).rowcount == 1


def window_values(window: EventWindow) -> dict[str, Any]:
    """A window's columns, its key aside."""
    return {
        "window_end": window.end,
        "version": window.version,
        "generation": window.generation,
        "run": window.run,
        "files": [file_values(file) for file in window.files],
        "records": window.records,
        "covered": dict(window.covered),
        "late": window.late,
        "rerun": window.rerun,
        "made_at": window.made_at,
    }


def window_from(row: Row) -> EventWindow:
    """A window from its row."""
    return EventWindow(
        asset=row["asset"],
        start=row["window_start"],
        end=row["window_end"],
        version=row["version"],
        generation=row["generation"],
        run=row["run"],
        files=tuple(file_from(file) for file in row["files"]),
        records=row["records"],
        covered={ShardId(shard): number for shard, number in row["covered"].items()},
        late=row["late"],
        rerun=bool(row["rerun"]),
        made_at=row["made_at"],
    )
