"""Counts the statements of a process per lease term to stay in its group."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self, cast

from dagster_leasehold.lease_store.durable_files import replace_file
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.times import time_text

READS = frozenset({"pulse", "snapshot", "progress", "throughput"})
"""The operations of rebalancing that only read."""


@dataclass(frozen=True, slots=True)
class UpkeepReport:
    """The statements of one process for one group in the lease term before `at`.

    Attributes:
        at: when the report was written; for people only.
        term_s: the lease term T, in seconds.
        ticks: the number of ticks in the term.
        statements: the number of statements by operation.
    """

    at: str
    term_s: float
    nodes: int
    ticks: int
    statements: Mapping[str, int]

    @property
    def writes(self) -> dict[str, int]:
        """The statements that write."""
        return {kind: count for kind, count in self.statements.items() if kind not in READS}

    def save(self, path: Path) -> None:
        """Write the report atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Return the report at a path, or None if it cannot be read."""
        try:
            content = json.loads(path.read_text())
            return cls(**cast("dict[str, Any]", content))
        except (OSError, ValueError, TypeError):
            return None


class Upkeep:
    """Counts the statements of the newest lease term; `clock` gives monotonic seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ticks: deque[tuple[float, Counter[str]]] = deque()

    def add(self, statements: Mapping[str, int]) -> None:
        """Record the statements of one tick."""
        self._ticks.append((self._clock(), Counter(statements)))

    def report(self, *, term_s: float, nodes: int, at: datetime) -> UpkeepReport:
        """Return the statements of the last `term_s` seconds; older ones are dropped."""
        since = self._clock() - term_s
        while self._ticks and self._ticks[0][0] <= since:
            self._ticks.popleft()
        total = Counter[str]()
        for _, statements in self._ticks:
            total += statements
        kinds = dict(sorted(total.items()))
        return UpkeepReport(time_text(at), term_s, nodes, len(self._ticks), kinds)
