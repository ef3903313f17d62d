"""Windows of event time in memory."""

from __future__ import annotations

from datetime import datetime

from lease_store.event_windows import EventWindow
from lease_store.identifiers import GroupKey
from lease_store.memory_store.rows import MemoryRows
from lease_store.store import Changed, Stale


class MemoryWindows(MemoryRows):
    """The verbs on windows."""

    def windows(
        self,
        key: GroupKey,
        asset: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[EventWindow]:
        """See `WindowStore.windows`."""
        with self._rows("windows", key) as rows:
            return [
                window
                for _, window in sorted(rows.windows.items(), key=lambda item: item[0])
                if (asset is None or window.asset == asset)
                and (since is None or window.end > since)
                and (until is None or window.start < until)
            ]

    def put_window(self, key: GroupKey, window: EventWindow) -> Changed | Stale:
        """See `WindowStore.put_window`."""
        with self._rows("put_window", key) as rows:
            known = rows.windows.get((window.asset, window.start))
            if known == window:
                return Changed()
            if window.version != (known.version if known else 0) + 1:
                return Stale()
            rows.windows[window.asset, window.start] = window
            return Changed()
