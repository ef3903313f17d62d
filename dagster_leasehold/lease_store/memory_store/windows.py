"""Windows of event time in memory."""

from __future__ import annotations

from datetime import datetime

from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.memory_store.rows import MemoryRows
from dagster_leasehold.lease_store.outcomes import Changed, Stale
from dagster_leasehold.lease_store.roles.windows import EventWindow, WindowAttempt, Windows


class MemoryWindows(MemoryRows, Windows):
    """The verbs on windows."""

    @override
    def windows(
        self,
        key: GroupKey,
        asset: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[EventWindow]:
        with self._rows("windows", key) as rows:
            wanted = [
                window
                for window in rows.windows.values()
                if (since is None or window.end > since)
                and (until is None or window.start < until)
                and (asset is None or window.asset == asset)
            ]
            return sorted(wanted, key=lambda window: (window.asset, window.start))

    @override
    def put_window(
        self, key: GroupKey, window: EventWindow, *, attempt: str | None = None
    ) -> Changed | Stale:
        with self._rows("put_window", key) as rows:
            stored = rows.windows.get((window.asset, window.start))
            if stored == window:
                return Changed()
            if window.version != (stored.version if stored else 0) + 1:
                return Stale()
            if attempt is not None and rows.window_attempts.pop(attempt, None) is None:
                return Stale()
            rows.windows[window.asset, window.start] = window
            return Changed()

    @override
    def begin_window(self, key: GroupKey, attempt: str, run: str) -> Changed:
        with self._rows("begin_window", key) as rows:
            begun = WindowAttempt(attempt, run, self._clock())
            rows.window_attempts.setdefault(attempt, begun)
            return Changed()

    @override
    def end_window(self, key: GroupKey, attempt: str) -> Changed | Stale:
        with self._rows("end_window", key) as rows:
            ended = rows.window_attempts.pop(attempt, None)
            return Stale() if ended is None else Changed()

    @override
    def window_attempts(self, key: GroupKey) -> list[WindowAttempt]:
        with self._rows("window_attempts", key) as rows:
            return [rows.window_attempts[name] for name in sorted(rows.window_attempts)]
