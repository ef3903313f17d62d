"""Hours that runs were asked for and that are not made yet: remembered, and asked for again.

A run of an hour can fail, or never begin. An hour is owed until its row is written; while a run of
it waits or works, nothing is asked. After that it is asked for again, after a wait that doubles
with each attempt, for as long as it takes: the transform can be repaired a week later. A user who
does not want to wait materializes the hour in Dagster, where it is shown as failed.
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
"""The most hours in the cursor, which MySQL has room for; beyond it, the oldest are dropped."""
FIRST_ATTEMPTS_MAX = 240
"""With so many hours that were asked for once and are not made yet, no further ones are."""
AGAIN_AT_ONCE_MAX = 8
SHOWN_MAX = 3
HoursInWork = Callable[[Collection[datetime]], Collection[datetime]]
"""Returns the hours, among some, with a waiting or working run."""


@dataclass(frozen=True, slots=True)
class OwedHour:
    """An hour that is to be made.

    Attributes:
        version: the version of its row that late records wait for; 0 without a row.
        attempts: the number of runs that were asked for, for this version.
    """

    version: int = 0
    attempts: int = 0

    @property
    def why(self) -> str:
        """The end of the run key; no two attempts share it."""
        why = f"late.{self.version}" if self.version else "complete"
        return why if self.attempts == 1 else f"{why}.{self.attempts}"


@dataclass(slots=True)
class AskedHours:
    """The hours of one downstream asset that are owed.

    Attributes:
        clock: monotonic seconds.
        late_wait_s: the shortest time between two runs of one hour for late records, in seconds.
        next: the first hour that no run was asked for.
        owed: the hours before it that are not made.
        given_up: the hours of the newest tick that too many others pushed out.
        lost: the hours of the newest tick that can no longer be made.
    """

    clock: Clock
    late_wait_s: float
    next: datetime
    owed: dict[datetime, OwedHour] = field(default_factory=dict[datetime, OwedHour])
    given_up: list[datetime] = field(default_factory=list[datetime])
    lost: list[datetime] = field(default_factory=list[datetime])
    _asked_s: dict[datetime, float] = field(default_factory=dict[datetime, float])

    def recall(self, cursor: str | None, since: datetime) -> bool:
        """Take over the hours in the cursor; an unreadable one begins again at `since`.

        Asking again for an hour is harmless: Dagster launches one run per run key.

        Returns:
            False if the cursor names no owed hours, as in former releases.
        """
        self.next, self.owed = _parsed(cursor, since)
        self._asked_s = {at: asked_s for at, asked_s in self._asked_s.items() if at in self.owed}
        self.given_up, self.lost = [], []
        return (cursor or "").startswith("{")

    def remember(self) -> str:
        """Return the cursor; of too many hours, the oldest failures are left out."""
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
        """Note that a run is asked for now; return the hour as it stands after that."""
        hour = self.owed.get(at, OwedHour())
        self.owed[at] = replace(hour, attempts=hour.attempts + 1)
        self._asked_s[at] = self.clock()
        return self.owed[at]

    def owe(self, window: EventWindow) -> None:
        """Note that late records wait for an hour to be made again."""
        hour = self.owed.get(window.start)
        if hour is None or hour.version != window.version:
            self.owed[window.start] = OwedHour(window.version)

    def settle(self, rows: Mapping[datetime, EventWindow]) -> None:
        """Forget the hours whose rows say that they are made."""
        for at in list(self.owed):
            row = rows.get(at)
            if row is not None and row.rerun:
                self.owe(row)
            elif row is not None:
                del self.owed[at]
                self._asked_s.pop(at, None)

    def lose(self, at: datetime) -> None:
        """Stop requesting an hour that cannot be made: output that it needs has expired."""
        self.owed.pop(at, None)
        self._asked_s.pop(at, None)
        self.lost.append(at)

    @property
    def crowded(self) -> bool:
        """True if so many hours wait for their first run that no further ones are asked for."""
        return sum(hour.attempts == 1 for hour in self.owed.values()) >= FIRST_ATTEMPTS_MAX

    def due(self, in_work: HoursInWork) -> list[datetime]:
        """Return the owed hours to ask for now, the oldest first.

        Args:
            in_work: the hours, among some, with a waiting or working run.
        """
        now_s = self.clock()
        candidates: list[datetime] = []
        for at, hour in sorted(self.owed.items()):
            # After a restart the wait counts again: an hour is asked for later, never too often.
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
        """Return lines for people about hours that were asked for in vain, and those given up."""
        lines: list[str] = []
        repeated = sorted(at for at, hour in self.owed.items() if hour.attempts > 1)
        if repeated:
            most = max(self.owed[at].attempts for at in repeated)
            lines.append(
                f"{_count(repeated)} not made yet though asked for up to {most} times "
                f"({_listed(repeated)}): see their failed runs; materialize one to try it at once"
            )
        if self.lost:
            lines.append(
                f"{_count(self.lost)} no longer requested ({_listed(self.lost)}): committed "
                "output that can belong to them has expired"
            )
        if self.given_up:
            lines.append(
                f"{_count(self.given_up)} given up ({_listed(self.given_up)}): materialize them"
            )
        return lines


def _parsed(cursor: str | None, since: datetime) -> tuple[datetime, dict[datetime, OwedHour]]:
    """Return the first hour that no run was asked for, and the owed ones."""
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
