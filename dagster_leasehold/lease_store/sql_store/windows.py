"""Windows of event time in SQL."""

from __future__ import annotations

from datetime import datetime

from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.outcomes import Changed, Stale
from dagster_leasehold.lease_store.roles.windows import EventWindow, WindowAttempt, Windows
from dagster_leasehold.lease_store.sql_store import ledger_statements as statements
from dagster_leasehold.lease_store.sql_store.group_statements import lock_rows
from dagster_leasehold.lease_store.sql_store.mapping import ATTEMPT, WINDOW, key_values
from dagster_leasehold.lease_store.sql_store.verbs import SqlVerbs
from dagster_leasehold.lease_store.tables import event_window, window_attempt
from dagster_leasehold.lease_store.transactions import Transaction


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
        statement = statements.select_windows(key, asset, since, until)
        return self._all("windows", key, statement, WINDOW.read)

    @override
    def put_window(
        self, key: GroupKey, window: EventWindow, *, attempt: str | None = None
    ) -> Changed | Stale:
        own = {"asset": window.asset, "window_start": window.start}

        def stored(tx: Transaction) -> EventWindow | None:
            row = tx.rows(lock_rows(event_window, key, **own)).first()
            return WINDOW.read(row) if row is not None else None

        def work(tx: Transaction) -> Changed | Stale:
            self._group(tx, key)
            before = stored(tx)
            if before == window:
                return tx.abandon(Changed())
            if window.version != (before.version if before else 0) + 1:
                return tx.abandon(Stale())
            if attempt is not None and not self._freed(tx, key, attempt):
                return tx.abandon(Stale())
            if before is None:
                self._add_row(tx, event_window, WINDOW.row(key, window))
            else:
                values, version = WINDOW.values(window), before.version
                self._change_row(tx, event_window, key, values, version=version, **own)
            return Changed()

        def mark(tx: Transaction) -> bool:
            return stored(tx) == window

        return self._write("put_window", work, mark=mark)

    @override
    def begin_window(self, key: GroupKey, attempt: str, run: str) -> Changed:
        def work(tx: Transaction) -> Changed:
            self._group(tx, key)
            # The whole group is locked by its rows; where there is none, the key decides.
            rows = tx.rows(statements.select_attempts(key).with_for_update()).all()
            if any(row["attempt"] == attempt for row in rows):
                return tx.abandon(Changed())
            values = {"attempt": attempt, "run": run, "begun_at": self._clock()}
            free = next((row["slot"] for row in rows if not row["attempt"]), None)
            if free is not None:
                self._change_row(tx, window_attempt, key, values, slot=free, attempt="")
            else:
                slot = max((row["slot"] for row in rows), default=-1) + 1
                self._add_row(tx, window_attempt, key_values(key) | {"slot": slot} | values)
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
        slots = self._all("window_attempts", key, statements.select_attempts(key), ATTEMPT.read)
        return sorted((each for each in slots if each.attempt), key=lambda each: each.attempt)

    def _freed(self, tx: Transaction, key: GroupKey, attempt: str) -> bool:
        return tx.connection.execute(statements.free_slot(key, attempt)).rowcount == 1
