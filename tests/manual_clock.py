"""The clock of tests: seconds that pass only when a test advances it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ManualClock:
    """Monotonic seconds that a test advances.

    Attributes:
        now_s: the reading.
        step_s: the seconds that each reading adds.
    """

    now_s: float = 1_000.0
    step_s: float = 0.0

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        """Let time pass, as a sleep does."""
        self.now_s += seconds
