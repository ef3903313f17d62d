"""Hours that were requested and are not complete yet.

The run of an hour can fail or never begin, so an hour is complete only once its row is written. An
incomplete hour without an unfinished run is requested again, after a wait that doubles with each
attempt. The number of attempts has no limit, because a transform can be repaired a week later. A
user can materialize the failed hour in Dagster without waiting.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast

from dagster_leasehold.assets.windows.hourly_asset import hour_key
from dagster_leasehold.lease_store.rules.event_frontier import hour_of
from dagster_leasehold.lease_store.rules.failing_steps import retry_wait_s
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.times import stored_time, time_text
from dagster_leasehold.lease_store.window_rows import EventWindow

RETRY_FIRST_S = 60.0
RETRY_MAX_S = 6 * 3_600.0
INCOMPLETE_MAX = 500
"""The most hours in a cursor, limited by MySQL's column. Beyond it, the oldest are dropped."""
FIRST_ATTEMPTS_MAX = 240
"""While this many first runs have not completed their hours, no further hours are requested."""
RETRIES_ACTIVE_MAX = 8
"""The most hours with an active repeated run."""
SHOWN_MAX = 3
HoursInWork = Callable[[Collection[datetime]], Collection[datetime]]
"""Returns the given hours that have an unfinished run."""


@dataclass(frozen=True, slots=True)
class IncompleteHour:
    """An hour that is not complete.

    Attributes:
        version: the version of its row that counts late records; 0 without a row.
        attempts: the number of runs requested for this version.
    """

    version: int = 0
    attempts: int = 0

    @property
    def run_key_end(self) -> str:
        """The end of the run key, different for each attempt."""
        reason = f"late.{self.version}" if self.version else "complete"
        return reason if self.attempts == 1 else f"{reason}.{self.attempts}"


@dataclass(slots=True)
class RequestedHours:
    """The requested hours of one downstream asset.

    Attributes:
        late_wait_s: the shortest time between two runs of one hour for late records, in seconds.
        next: the first hour that was not requested yet.
        dropped: the hours that the last tick removed because there were too many.
        expired: the hours that the last tick removed because their output has expired.
    """

    clock: Clock
    late_wait_s: float
    next: datetime
    incomplete: dict[datetime, IncompleteHour] = field(
        default_factory=dict[datetime, IncompleteHour]
    )
    dropped: list[datetime] = field(default_factory=list[datetime])
    expired: list[datetime] = field(default_factory=list[datetime])
    _requested_s: dict[datetime, float] = field(default_factory=dict[datetime, float])

    def load(self, cursor: str | None, since: datetime) -> None:
        """Read the hours from the cursor; start again at `since` if it is unreadable.

        Requesting an hour again is harmless: Dagster launches one run per run key.
        """
        self.next, self.incomplete = _parse(cursor, since)
        self._requested_s = {
            at: requested_s
            for at, requested_s in self._requested_s.items()
            if at in self.incomplete
        }
        self.dropped, self.expired = [], []

    def save(self) -> str:
        """Return the cursor. If there are too many hours, the oldest failures are dropped."""
        repeated = sorted(at for at, hour in self.incomplete.items() if hour.attempts > 1)
        excess = max(0, len(self.incomplete) - INCOMPLETE_MAX)
        self.dropped = [*repeated, *sorted(self.incomplete.keys() - set(repeated))][:excess]
        for at in self.dropped:
            del self.incomplete[at]
        hours = {
            time_text(at): [hour.version, hour.attempts]
            for at, hour in sorted(self.incomplete.items())
        }
        return json.dumps({"next": time_text(self.next), "hours": hours}, separators=(",", ":"))

    def request(self, at: datetime) -> IncompleteHour:
        """Count a request of an hour; return its new state."""
        hour = self.incomplete.get(at, IncompleteHour())
        self.incomplete[at] = replace(hour, attempts=hour.attempts + 1)
        self._requested_s[at] = self.clock()
        return self.incomplete[at]

    def add_rerun(self, window: EventWindow) -> None:
        """Add an hour again because late records require another run."""
        hour = self.incomplete.get(window.start)
        if hour is None or hour.version != window.version:
            self.incomplete[window.start] = IncompleteHour(window.version)

    def remove_complete(self, rows: Mapping[datetime, EventWindow]) -> None:
        """Remove the hours whose rows show that they are complete."""
        for at in list(self.incomplete):
            row = rows.get(at)
            if row is not None and row.rerun:
                self.add_rerun(row)
            elif row is not None:
                del self.incomplete[at]
                self._requested_s.pop(at, None)

    def drop_expired(self, at: datetime) -> None:
        """Stop requesting an hour whose output has expired: its runs can only fail."""
        self.incomplete.pop(at, None)
        self._requested_s.pop(at, None)
        self.expired.append(at)

    @property
    def full(self) -> bool:
        """True if `FIRST_ATTEMPTS_MAX` is reached."""
        return sum(hour.attempts == 1 for hour in self.incomplete.values()) >= FIRST_ATTEMPTS_MAX

    def due(self, in_work: HoursInWork) -> list[datetime]:
        """Return the incomplete hours to request now, oldest first."""
        now_s = self.clock()
        candidates: list[datetime] = []
        for at, hour in sorted(self.incomplete.items()):
            # After a restart, the wait starts from 0, so an hour is requested later, never earlier.
            requested_s = self._requested_s.get(at)
            if requested_s is None and hour.attempts:
                self._requested_s[at] = now_s
            elif requested_s is None or now_s - requested_s >= self._wait_s(hour):
                candidates.append(at)
        repeats = {at for at in candidates if self.incomplete[at].attempts}
        busy: set[datetime] = set()
        if repeats:
            busy = set(in_work([at for at, hour in self.incomplete.items() if hour.attempts]))
        for at in repeats & busy:
            self._requested_s[at] = now_s
        room = RETRIES_ACTIVE_MAX - sum(self.incomplete[at].attempts > 1 for at in busy)
        retries = sorted(repeats - busy)[: max(0, room)]
        return sorted([at for at in candidates if at not in repeats] + retries)

    def _wait_s(self, hour: IncompleteHour) -> float:
        if not hour.attempts:
            return self.late_wait_s
        return retry_wait_s(hour.attempts, first_s=RETRY_FIRST_S, max_s=RETRY_MAX_S)

    def notes(self) -> list[str]:
        """Return lines about failing, expired and dropped hours."""
        lines: list[str] = []
        repeated = sorted(at for at, hour in self.incomplete.items() if hour.attempts > 1)
        if repeated:
            most = max(self.incomplete[at].attempts for at in repeated)
            lines.append(
                f"{_count(repeated)} still incomplete after up to {most} requests "
                f"({_listed(repeated)}): see their failed runs, or materialize an hour to retry it "
                "at once"
            )
        if self.expired:
            lines.append(
                f"{_count(self.expired)} no longer requested ({_listed(self.expired)}): some of "
                "their committed output has expired"
            )
        if self.dropped:
            lines.append(
                f"{_count(self.dropped)} dropped ({_listed(self.dropped)}), because too many hours "
                "are incomplete: materialize them"
            )
        return lines


def _parse(cursor: str | None, since: datetime) -> tuple[datetime, dict[datetime, IncompleteHour]]:
    """Return the first hour that was not requested yet, and the incomplete hours."""
    hours: dict[datetime, IncompleteHour] = {}
    try:
        content = cast("dict[str, Any]", json.loads(cursor or ""))
        for hour, (version, attempts) in content["hours"].items():
            at = stored_time(hour)
            if at == hour_of(at) and at >= since:
                hours[at] = IncompleteHour(max(0, int(version)), max(0, int(attempts)))
        return max(stored_time(str(content["next"])), since), hours
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return since, {}


def _count(hours: Collection[datetime]) -> str:
    return "1 hour is" if len(hours) == 1 else f"{len(hours)} hours are"


def _listed(hours: Iterable[datetime]) -> str:
    keys = [hour_key(at) for at in hours]
    return ", ".join(keys[:SHOWN_MAX]) + (", …" if len(keys) > SHOWN_MAX else "")
