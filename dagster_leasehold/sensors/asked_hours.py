"""Hours that were requested and are not complete yet. They are requested again.

The run of an hour can fail or never begin. An hour is owed until its row is written. While it has
an unfinished run, it is not requested again. After that, it is requested again after a wait that
doubles with each attempt. The number of attempts has no limit, because a transform can be repaired
a week later. To avoid the wait, a user materializes the failed hour in Dagster.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast

from dagster_leasehold.assets.windows.event_frontier import hour_of
from dagster_leasehold.assets.windows.hourly_asset import hour_key
from dagster_leasehold.lease_store.rules.failing_steps import retry_wait_s
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.times import stored_time, time_text
from dagster_leasehold.lease_store.window_rows import EventWindow

RETRY_FIRST_S = 60.0
RETRY_MAX_S = 6 * 3_600.0
OWED_MAX = 500
"""The most hours in a cursor, which MySQL can store. Beyond that, the oldest are dropped."""
FIRST_ATTEMPTS_MAX = 240
"""While this many hours wait for their first run to complete, no further hours are requested."""
AGAIN_AT_ONCE_MAX = 8
SHOWN_MAX = 3
HoursInWork = Callable[[Collection[datetime]], Collection[datetime]]
"""Returns the hours among the given ones that have an unfinished run."""


@dataclass(frozen=True, slots=True)
class OwedHour:
    """An hour that is not complete.

    Attributes:
        version: the version of its row that counts late records; 0 without a row.
        attempts: the number of runs requested for this version.
    """

    version: int = 0
    attempts: int = 0

    @property
    def why(self) -> str:
        """The end of the run key, different for each attempt."""
        why = f"late.{self.version}" if self.version else "complete"
        return why if self.attempts == 1 else f"{why}.{self.attempts}"


@dataclass(slots=True)
class AskedHours:
    """The hours of one downstream asset that are owed.

    Attributes:
        clock: monotonic seconds.
        late_wait_s: the shortest time between two runs of one hour for late records, in seconds.
        next: the first hour that was not requested yet.
        owed: the earlier hours that are not complete.
        given_up: the hours that the last tick dropped because there were too many.
        lost: the hours that the last tick dropped because their output has expired.
    """

    clock: Clock
    late_wait_s: float
    next: datetime
    owed: dict[datetime, OwedHour] = field(default_factory=dict[datetime, OwedHour])
    given_up: list[datetime] = field(default_factory=list[datetime])
    lost: list[datetime] = field(default_factory=list[datetime])
    _asked_s: dict[datetime, float] = field(default_factory=dict[datetime, float])

    def recall(self, cursor: str | None, since: datetime) -> bool:
        """Read the hours from the cursor; start again at `since` if it is unreadable.

        Requesting an hour again is harmless: Dagster launches one run per run key.

        Returns:
            False if the cursor lists no owed hours.
        """
        self.next, self.owed = _parsed(cursor, since)
        self._asked_s = {at: asked_s for at, asked_s in self._asked_s.items() if at in self.owed}
        self.given_up, self.lost = [], []
        return (cursor or "").startswith("{")

    def remember(self) -> str:
        """Return the cursor. If there are too many hours, the oldest failures are dropped."""
        repeated = sorted(at for at, hour in self.owed.items() if hour.attempts > 1)
        excess = max(0, len(self.owed) - OWED_MAX)
        self.given_up = [*repeated, *sorted(self.owed.keys() - set(repeated))][:excess]
        for at in self.given_up:
            del self.owed[at]
        hours = {
            time_text(at): [hour.version, hour.attempts] for at, hour in sorted(self.owed.items())
        }
        return json.dumps({"next": time_text(self.next), "owed": hours}, separators=(",", ":"))

    def ask(self, at: datetime) -> OwedHour:
        """Record that an hour is requested now; return its new state."""
        hour = self.owed.get(at, OwedHour())
        self.owed[at] = replace(hour, attempts=hour.attempts + 1)
        self._asked_s[at] = self.clock()
        return self.owed[at]

    def owe(self, window: EventWindow) -> None:
        """Record that late records require another run of an hour."""
        hour = self.owed.get(window.start)
        if hour is None or hour.version != window.version:
            self.owed[window.start] = OwedHour(window.version)

    def settle(self, rows: Mapping[datetime, EventWindow]) -> None:
        """Drop the hours whose rows show that they are complete."""
        for at in list(self.owed):
            row = rows.get(at)
            if row is not None and row.rerun:
                self.owe(row)
            elif row is not None:
                del self.owed[at]
                self._asked_s.pop(at, None)

    def lose(self, at: datetime) -> None:
        """Stop requesting an hour whose output has expired: its runs can only fail."""
        self.owed.pop(at, None)
        self._asked_s.pop(at, None)
        self.lost.append(at)

    @property
    def crowded(self) -> bool:
        """True if too many hours wait for their first run to request further ones."""
        return sum(hour.attempts == 1 for hour in self.owed.values()) >= FIRST_ATTEMPTS_MAX

    def due(self, in_work: HoursInWork) -> list[datetime]:
        """Return the owed hours to request now, oldest first.

        Args:
            in_work: returns the hours among the given ones that have an unfinished run.
        """
        now_s = self.clock()
        candidates: list[datetime] = []
        for at, hour in sorted(self.owed.items()):
            # After a restart the wait starts anew: an hour is requested later, never too often.
            asked_s = self._asked_s.get(at)
            if asked_s is None and hour.attempts:
                self._asked_s[at] = now_s
            elif asked_s is None or now_s - asked_s >= self._wait_s(hour):
                candidates.append(at)
        again = {at for at in candidates if self.owed[at].attempts}
        busy: set[datetime] = set()
        if again:
            busy = set(in_work([at for at, hour in self.owed.items() if hour.attempts]))
        for at in again & busy:
            self._asked_s[at] = now_s
        room = AGAIN_AT_ONCE_MAX - sum(self.owed[at].attempts > 1 for at in busy)
        allowed = sorted(again - busy)[: max(0, room)]
        return sorted([at for at in candidates if at not in again] + allowed)

    def _wait_s(self, hour: OwedHour) -> float:
        if not hour.attempts:
            return self.late_wait_s
        return retry_wait_s(hour.attempts, first_s=RETRY_FIRST_S, max_s=RETRY_MAX_S)

    def notes(self) -> list[str]:
        """Return a line each about hours that stay incomplete and hours that were dropped."""
        lines: list[str] = []
        repeated = sorted(at for at, hour in self.owed.items() if hour.attempts > 1)
        if repeated:
            most = max(self.owed[at].attempts for at in repeated)
            lines.append(
                f"{_count(repeated)} still incomplete after up to {most} requests "
                f"({_listed(repeated)}): see their failed runs; materialize one to try it at once"
            )
        if self.lost:
            lines.append(
                f"{_count(self.lost)} no longer requested ({_listed(self.lost)}): some of their "
                "committed output has expired"
            )
        if self.given_up:
            lines.append(
                f"{_count(self.given_up)} given up ({_listed(self.given_up)}): materialize them"
            )
        return lines


def _parsed(cursor: str | None, since: datetime) -> tuple[datetime, dict[datetime, OwedHour]]:
    """Return the first hour that was not requested yet, and the owed hours."""
    text, owed = cursor or "", dict[datetime, OwedHour]()
    if text.startswith("{"):
        try:
            content = cast("dict[str, Any]", json.loads(text))
            text = str(content["next"])
            for hour, (version, attempts) in content["owed"].items():
                at = stored_time(hour)
                if at == hour_of(at) and at >= since:
                    owed[at] = OwedHour(max(0, int(version)), max(0, int(attempts)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            return since, {}
    try:
        return max(stored_time(text), since), owed
    except ValueError:
        return since, {}


def _count(hours: Collection[datetime]) -> str:
    return "1 hour is" if len(hours) == 1 else f"{len(hours)} hours are"


def _listed(hours: Iterable[datetime]) -> str:
    keys = [hour_key(at) for at in hours]
    return ", ".join(keys[:SHOWN_MAX]) + (", …" if len(keys) > SHOWN_MAX else "")
