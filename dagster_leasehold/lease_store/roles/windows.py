"""The role for event-time windows: the ledger of output that is computed from committed records.

A window's output counts once its row lists it. Every write names the version that it read, so of
two concurrent writers the second one fails and reads again.
"""

from __future__ import annotations

from datetime import datetime

from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.outcomes import Changed, Stale
from dagster_leasehold.lease_store.roles.operations import Operations, Rows
from dagster_leasehold.lease_store.stored_rows import Above, Below, given
from dagster_leasehold.lease_store.window_rows import EventWindow, WindowAttempt


class Windows(Operations):
    """The operations on event-time windows."""

    def windows(
        self,
        key: GroupKey,
        asset: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[EventWindow]:
        """Return the windows that overlap `[since, until)`, in order."""
        overlap = given(asset=asset, end=since and Above(since), start=until and Below(until))
        return self._listing("windows", key, lambda rows: rows.select(EventWindow, **overlap))

    def put_window(
        self, key: GroupKey, window: EventWindow, *, attempt: str | None = None
    ) -> Changed | Stale:
        """Write the next version of a window, beginning with 1; repeating that is harmless.

        With `attempt`, that attempt ends in the same transaction. `Stale` if the stored version
        is not the one before it, or if another process ended the attempt, whose files are possibly
        deleted.
        """

        def stored(rows: Rows) -> EventWindow | None:
            return rows.first(EventWindow, lock=True, asset=window.asset, start=window.start)

        def work(rows: Rows) -> Changed | Stale:
            rows.group()
            before = stored(rows)
            if before == window:
                return rows.abandon(Changed())
            if window.version != (before.version if before else 0) + 1:
                return rows.abandon(Stale())
            if attempt is not None and not _freed(rows, attempt):
                return rows.abandon(Stale())
            if before is None:
                rows.add(window)
            else:
                rows.write(window, version=before.version)
            return Changed()

        return self._writing("put_window", key, work, mark=lambda rows: stored(rows) == window)

    def begin_window(self, key: GroupKey, attempt: str, run: str) -> Changed:
        """Record an attempt before its first file; repeating that is harmless."""

        def work(rows: Rows) -> Changed:
            rows.group()
            # This locks all attempts of the group. If there are none, two processes can choose the
            # same slot, and the primary key refuses one of them.
            slots = list(rows.select(WindowAttempt, lock=True))
            if any(row.attempt == attempt for row in slots):
                return rows.abandon(Changed())
            free = next((row.slot for row in slots if not row.attempt), None)
            if free is not None:
                rows.write(WindowAttempt(attempt, run, self._clock(), free), attempt="")
            else:
                slot = max((row.slot for row in slots), default=-1) + 1
                rows.add(WindowAttempt(attempt, run, self._clock(), slot))
            return Changed()

        return self._writing("begin_window", key, work)

    def end_window(self, key: GroupKey, attempt: str) -> Changed | Stale:
        """End an attempt whose files are not needed; `Stale` if it is not in progress."""
        earlier_attempt = False

        def work(rows: Rows) -> Changed | Stale:
            nonlocal earlier_attempt
            rows.group()
            if _freed(rows, attempt):
                earlier_attempt = True
                return Changed()
            # A name is used once, so an earlier call ended the attempt, and its reply was lost.
            return rows.abandon(Changed() if earlier_attempt else Stale())

        return self._writing("end_window", key, work)

    def window_attempts(self, key: GroupKey) -> list[WindowAttempt]:
        """Return the attempts in progress, by name."""
        slots = self._listing("window_attempts", key, lambda rows: rows.select(WindowAttempt))
        return sorted((row for row in slots if row.attempt), key=lambda row: row.attempt)


def _freed(rows: Rows, attempt: str) -> bool:
    """Clear an attempt's row; the database account of a node cannot delete rows."""
    return rows.change(WindowAttempt, {"attempt": "", "run": ""}, attempt=attempt) == 1
