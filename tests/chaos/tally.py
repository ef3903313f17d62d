"""A table of incidents, added up over parts that were played one after the other."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Tally:
    """The incidents so far.

    Attributes:
        recovered_s: for each kind of incident, the seconds from the end of its round's last
            incident until all records that were written before it were committed.
        missed: the kinds of requested incidents that did not happen.
        violations: sentences, with the round that showed them.
        records: the number of verified records.
    """

    recovered_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    missed: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    rounds: int = 0
    records: int = 0

    @classmethod
    def read(cls, path: Path) -> Tally:
        """Return the sum of all parts that were written to a file."""
        total = cls()
        for line in path.read_text("utf-8").splitlines() if path.exists() else ():
            total.add(cls(**json.loads(line)))
        return total

    def write(self, path: Path) -> None:
        """Append this part to a file, as a line of JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(vars(self)) + "\n")

    def add(self, part: Tally) -> None:
        for kind, seconds in part.recovered_s.items():
            self.recovered_s[kind] += seconds
        self.missed += part.missed
        self.violations += part.violations
        self.rounds += part.rounds
        self.records += part.records

    @property
    def incidents(self) -> int:
        return sum(map(len, self.recovered_s.values()))

    def count(self, verb: str) -> int:
        """Count the incidents that were a `kill`, or a `freeze`."""
        return sum(
            len(seconds)
            for kind, seconds in self.recovered_s.items()
            if kind.partition(" ")[0] == verb
        )

    def table(self) -> str:
        """Return incidents by kind, the times until all was read again, and the records checked."""
        width = max([len(kind) for kind in self.recovered_s], default=8)
        lines = [f"{'incident':{width}}  count  median s  max s"]
        for kind, seconds in sorted(self.recovered_s.items()):
            median = statistics.median(seconds)
            lines.append(f"{kind:{width}}  {len(seconds):5}  {median:8.1f}  {max(seconds):5.1f}")
        lines += [
            f"{self.incidents} incidents ({self.count('kill')} kills, "
            f"{self.count('freeze')} freezes) in {self.rounds} rounds, "
            f"{self.records} records checked, "
            f"{len(self.violations)} violations",
            *[f"not reached: {kind}" for kind in self.missed],
            *[f"VIOLATION {sentence}" for sentence in self.violations],
        ]
        return "\n".join(lines)
