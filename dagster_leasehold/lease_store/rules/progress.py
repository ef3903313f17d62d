"""The progress of long work: the number done, the rate, and the remaining time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from dagster_leasehold.lease_store.rules.liveness import Clock

RATE_OVER_S = 60.0
"""Rates are averages over the last minute, so that they follow work that slows down."""
MARK_EVERY_S = 0.5
LINE_EVERY_S = 30.0
"""The time between two log lines about work."""
_RATE_UNITS = ((1.0, "s"), (60.0, "min"), (3_600.0, "h"))


class Report(Protocol):
    """Takes the number done so far, and a new total."""

    def __call__(self, done: int, total: int | None = None, /) -> None:
        """Record the progress."""
        ...


@dataclass(slots=True)
class Progress:
    """The progress of one piece of work; call it with the number done so far.

    Attributes:
        total: the number to do, or None if it is unknown.
        done: the number done so far.
    """

    clock: Clock
    total: int | None = None
    done: int = 0
    _marks: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])

    def __post_init__(self) -> None:
        self._marks.append((self.clock(), self.done))

    def __call__(self, done: int, total: int | None = None, /) -> None:
        """Record the number done so far, and a new total."""
        now_s, self.done = self.clock(), done
        self.total = self.total if total is None else total
        if now_s >= self._marks[-1][0] + MARK_EVERY_S or len(self._marks) == 1:
            self._marks.append((now_s, done))
        while len(self._marks) > 1 and self._marks[1][0] <= now_s - RATE_OVER_S:
            self._marks.popleft()

    @property
    def rate(self) -> float:
        """The average rate per second over the last minute."""
        began_s, before = self._marks[0]
        passed_s = self.clock() - began_s
        return (self.done - before) / passed_s if passed_s > 0 else 0.0

    @property
    def remaining_s(self) -> float | None:
        """The remaining time at this rate, in seconds, or None."""
        rate = self.rate
        if self.total is None or rate <= 0:
            return None
        return max(self.total - self.done, 0) / rate

    def text(self, unit: str) -> str:
        """Return the progress for people: `12 of 40 batches, 18/min, 1 min left`."""
        if not unit:
            return ""
        total = "" if self.total is None else f" of {self.total:,}"
        parts = [f"{self.done:,}{total} {unit}"]
        if rate := rate_text(self.rate):
            parts.append(rate)
        if (left_s := self.remaining_s) is not None:
            parts.append(f"{duration(left_s)} left")
        return ", ".join(parts)


@dataclass(slots=True)
class ProgressLines:
    """Log lines about long work, one every 30 s; call it with the number done so far.

    Attributes:
        unit: the unit of the count, as a plural.
        write: writes a line.
    """

    work: str
    unit: str
    write: Callable[[str], object]
    clock: Clock
    _progress: Progress = field(init=False)
    _written_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._progress, self._written_s = Progress(self.clock), self.clock()

    @property
    def due(self) -> bool:
        """True if the next call writes a line."""
        return self.clock() >= self._written_s + LINE_EVERY_S

    def __call__(self, done: int, total: int | None = None, /) -> None:
        """Record the number done so far, and write a line if one is due."""
        self._progress(done, total)
        if self.due:
            self._written_s = self.clock()
            self.write(f"{self.work}: {self._progress.text(self.unit)}")


def rate_text(per_second: float) -> str:
    """Return a rate for people, such as `1,200/s`; empty below one an hour."""
    for seconds, name in _RATE_UNITS:
        if per_second * seconds >= 1:
            return f"{per_second * seconds:,.0f}/{name}"
    return ""


def duration(seconds: float) -> str:
    """Return a time span for people: `8 s`, `41 min`, `2 h 5 min`, `3 d 4 h`."""
    minutes, left_s = divmod(max(round(seconds), 0), 60)
    hours, left_min = divmod(minutes, 60)
    days, left_h = divmod(hours, 24)
    if days:
        return f"{days:,} d {left_h} h"
    if hours:
        return f"{hours} h {left_min} min"
    return f"{minutes} min" if minutes else f"{left_s} s"
