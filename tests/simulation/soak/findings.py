"""Findings: sentences on broken promises; conditions and since when they hold; figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from tests.simulation.soak.virtual_time import VirtualTime
from tests.simulation.soak.watched_store import Cost

TICK_S = 5.0
Place = tuple[GroupKey, ShardId]


@dataclass
class Findings:
    """The findings of one world, one for each subject."""

    shape: str
    time: VirtualTime
    sentences: dict[Hashable, str] = field(default_factory=dict)

    def find(self, subject: Hashable, sentence: str) -> None:
        """Note a finding, unless there is one on this subject."""
        days = self.time.now_s / 86_400
        self.sentences.setdefault(subject, f"{self.shape}, day {days:.2f}: {sentence}")


@dataclass
class Since:
    """The moments since which conditions have held, without a pause and in one state."""

    _began: dict[tuple[Hashable, ...], tuple[Hashable, float]] = field(default_factory=dict)

    def held_s(
        self, subject: tuple[Hashable, ...], now_s: float, *, holds: bool, state: Hashable = None
    ) -> float:
        """Return the seconds that a condition has held in this state; 0 where it does not hold."""
        if not holds:
            self._began.pop(subject, None)
            return 0.0
        former, began_s = self._began.get(subject, (None, now_s))
        if former != state:
            began_s = now_s
        self._began[subject] = (state, began_s)
        return now_s - began_s

    def forget(self, place: Place) -> None:
        """Forget all conditions of a shard that has nothing left to do."""
        for kind in ("stood", "owner", "excuse", "tried"):
            self._began.pop((kind, place), None)


@dataclass
class Figures:
    """The figures of a soak, for its report.

    Attributes:
        followed: commits of a run that had committed the same shard before.
        months: calls of the store, and rows that it returned, of all ticks of a month.
        ticks_of: the ticks of each month.
    """

    ticks: int = 0
    commits: int = 0
    followed: int = 0
    gaps: int = 0
    hooked: int = 0
    hours: int = 0
    late: int = 0
    rows_max: Counter[str] = field(default_factory=Counter)
    calls_max: Counter[str] = field(default_factory=Counter)
    months: dict[int, Cost] = field(default_factory=dict)
    ticks_of: Counter[int] = field(default_factory=Counter)
    entries_max: int = 0

    def ticked(self, month: int, spent: Cost) -> None:
        """Count a tick, and its calls of the store."""
        self.ticks += 1
        self.ticks_of[month] += 1
        total = self.months.setdefault(month, Cost())
        total.calls += spent.calls
        total.rows += spent.rows

    def per_tick(self, month: int) -> tuple[float, float]:
        """Return the mean calls and rows of a tick of a month, the first one or the last whole."""
        months = sorted(self.months)
        at = months[month] if -len(months) <= month < len(months) else months[0]
        ticks = self.ticks_of[at]
        return round(self.months[at].calls / ticks, 2), round(self.months[at].rows / ticks, 1)
