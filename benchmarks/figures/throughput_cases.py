"""The cases of the throughput benchmark, what was measured of them, and the ratios wanted."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from benchmarks.figures.parquet_ways import (
    NATIVE,
    NATIVE_JSON,
    NATIVE_PARSING,
    OURS,
    OURS_ARROW,
    OURS_FRAME,
    PYTHON,
    STREAMING,
)

GROWTH = (OURS, NATIVE)
"""The ways that are measured with each number of shards and cores; the others with one of each."""
OTHERS = (NATIVE_JSON, PYTHON, STREAMING, OURS_FRAME, NATIVE_PARSING, OURS_ARROW)
SHARDS, SHARDS_OF_OTHERS = (1, 16, 128), 16


class Case(NamedTuple):
    """One way, with a number of shards and of cores."""

    way: str
    shards: int
    cores: int


class Target(NamedTuple):
    """A ratio that is wanted: records a second of one case to those of another."""

    case: Case
    to: Case
    wanted: float


@dataclass(slots=True)
class Figures:
    """The measurements so far: seconds and MiB of each case, round by round.

    Attributes:
        records: of each number of shards.
        size: bytes of the values, likewise.
        failed: the error of a way that failed, which is left out from then on.
        load: the load of the machine before it began.
    """

    records: dict[int, int] = field(default_factory=dict[int, int])
    size: dict[int, int] = field(default_factory=dict[int, int])
    measured: dict[Case, list[tuple[float, float]]] = field(
        default_factory=dict[Case, list[tuple[float, float]]]
    )
    failed: dict[str, str] = field(default_factory=dict[str, str])
    load: float = field(default_factory=lambda: os.getloadavg()[0])

    def rate(self, case: Case) -> float | None:
        """Return the median of a case's records a second; None if it was never measured."""
        if case not in self.measured:
            return None
        seconds = statistics.median(seconds for seconds, _ in self.measured[case])
        return self.records[case.shards] / seconds

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each case."""
        return [self._row(case) for case in self.measured]

    def _row(self, case: Case) -> dict[str, Any]:
        seconds = [seconds for seconds, _ in self.measured[case]]
        middle = statistics.median(seconds)
        native, rate = self.rate(case._replace(way=NATIVE)), self.rate(case) or 0.0
        return {
            "way": case.way,
            "shards": case.shards,
            "cores": case.cores,
            "rounds": len(seconds),
            "seconds": round(middle, 2),
            "fastest": round(min(seconds), 2),
            "slowest": round(max(seconds), 2),
            "records/s": round(rate),
            "MB/s": round(self.size[case.shards] / middle / 1e6, 1),
            "memory MiB": round(max(memory for _, memory in self.measured[case])),
            "to parquet": round(rate / native, 2) if native else "",
        }

    def ratios(self, targets: Iterable[Target]) -> list[dict[str, Any]]:
        """Return one row for each target of which both cases were measured."""
        rows: list[dict[str, Any]] = []
        for case, to, wanted in targets:
            rate, other = self.rate(case), self.rate(to)
            if rate is not None and other is not None:
                ratio = rate / other
                rows.append(
                    {
                        "ratio of": named(case),
                        "to": named(to),
                        "ratio": round(ratio, 2),
                        "wanted": wanted,
                        "reached": "yes" if ratio >= wanted else "no",
                    }
                )
        return rows


def named(case: Case) -> str:
    """Return a case for people."""
    shards = "1 shard" if case.shards == 1 else f"{case.shards} shards"
    return f"{case.way}, {shards}, {'1 core' if case.cores == 1 else f'{case.cores} cores'}"


def middle_of(shards: Sequence[int]) -> int:
    """Return the number of shards with which all ways are measured."""
    return SHARDS_OF_OTHERS if SHARDS_OF_OTHERS in shards else shards[0]


def cases(shards: Sequence[int], cores: Sequence[int], others: Sequence[str]) -> list[Case]:
    """Return all cases of one round: growth with shards on all cores, and with cores."""
    most, middle = max(cores), middle_of(shards)
    every = [Case(way, count, most) for count in shards for way in GROWTH]
    every += [Case(way, middle, count) for count in cores if count != most for way in GROWTH]
    return every + [Case(way, middle, most) for way in others]


def targets(shards: Sequence[int], cores: Sequence[int]) -> list[Target]:
    """Return the wanted ratios between these cases."""
    most, middle = max(cores), middle_of(shards)
    wanted = {1: 1.0, 16: 1.5, 128: 1.3}
    rows = [
        Target(Case(OURS, count, most), Case(NATIVE, count, most), wanted[count])
        for count in shards
        if count in wanted
    ]
    parsing = Case(NATIVE_PARSING, middle, most)
    rows.append(Target(Case(OURS_ARROW, middle, most), parsing, 1.5))
    rows.append(Target(Case(OURS_FRAME, middle, most), parsing, 0.7))
    if most == 2:
        rows.append(Target(Case(OURS, middle, 2), Case(OURS, middle, 1), 1.7))
    return rows
