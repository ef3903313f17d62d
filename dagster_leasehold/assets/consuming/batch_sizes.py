"""The size of batches: it follows the lag, within the stream's limits and the time of a hand-over.

A holder that is asked for its shard releases it between two batches. So a batch can take only some
seconds: the first one is modest, and each later one is as large as the measured speed allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dagster_leasehold.shard_sources.source import Limits

FIRST = Limits(records_max=100_000, bytes_max=64 * 1024 * 1024)
BATCH_TARGET_S = 10.0
HANDOFF_FRACTION = 0.25
"""The part of the longest hand-over that a batch can take."""
CHANGE_MAX = 4.0
FILLED = 0.5
"""A batch above this part of its limits says that there is more to read."""
START_MAX_S = 60.0
"""The time that the start of Spark can take of a run's first sweep: it says nothing of records."""


@dataclass(slots=True)
class BatchSizes:
    """The limits of the next batch of each shard of a run.

    Attributes:
        largest: the stream's limits, which no batch exceeds.
        handoff_limit_s: the longest that a hand-over can wait for its holder, in seconds.
    """

    largest: Limits
    handoff_limit_s: float
    _scale: float = 1.0
    _expected_s: float = 0.0
    _started: bool = False

    @property
    def limits(self) -> Limits:
        """The largest size of the next batch of a shard."""
        return Limits(
            _scaled(FIRST.records_max, self._scale, self.largest.records_max),
            _scaled(FIRST.bytes_max, self._scale, self.largest.bytes_max),
        )

    @property
    def expected_s(self) -> float:
        """The time that the next batches will take, in seconds, if there is as much to read."""
        return self._expected_s

    def made(self, batches: Sequence[tuple[int, int]], *, took_s: float) -> None:
        """Take note of a sweep.

        Args:
            batches: the records and bytes of each of its batches, one or more.
            took_s: the time from planning to commit, in seconds.
        """
        fill = self._fill(batches)
        target_s = min(BATCH_TARGET_S, self.handoff_limit_s * HANDOFF_FRACTION)
        before, scale = self._scale, self._scale * fill * target_s / max(took_s, 1e-3)
        behind = fill >= FILLED
        starting = not self._started and took_s <= target_s + START_MAX_S
        self._started = True
        if (behind and scale > before) or (took_s > target_s and not starting):
            self._scale = min(max(scale, before / CHANGE_MAX), before * CHANGE_MAX)
            self._scale = min(self._scale, self._scale_max)
        # The stream's limits can keep batches from growing as the scale does.
        grown = fill / self._fill(batches) if behind else 1.0
        self._expected_s = took_s * max(1.0, grown)

    def _fill(self, batches: Sequence[tuple[int, int]]) -> float:
        """Return the part of the limits that the largest of some batches uses."""
        return max(fill_of(self.limits, records, size) for records, size in batches)

    @property
    def _scale_max(self) -> float:
        return max(
            1.0,
            self.largest.records_max / FIRST.records_max,
            self.largest.bytes_max / FIRST.bytes_max,
        )


def fill_of(limits: Limits, records: int, size: float) -> float:
    """Return the part of its limits that a batch of some records and bytes uses."""
    return max(records / limits.records_max, size / limits.bytes_max)


def _scaled(first: int, scale: float, largest: int) -> int:
    return max(1, min(round(min(first, largest) * scale), largest))
