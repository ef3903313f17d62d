"""Findings: sentences on what did not hold; conditions and since when they hold; figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from tests.simulation.soak.virtual_time import VirtualTime

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
    """The figures of a soak, for its report."""

    ticks: int = 0
    commits: int = 0
    gaps: int = 0
    hooked: int = 0
    hours: int = 0
    late: int = 0
    rows_max: Counter[str] = field(default_factory=Counter)
    calls_max: Counter[str] = field(default_factory=Counter)
    entries_max: int = 0
