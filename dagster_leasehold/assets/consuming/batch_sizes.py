"""Batch sizes: as large as the measured speed allows within a batch's target time.

A node can release a shard only between batches, so a batch should take only a few seconds. The
first batch is small. The batch loop records the time of each sweep here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dagster_leasehold.shard_sources.source import Limits

FIRST = Limits(records_max=100_000, bytes_max=64 * 1024 * 1024)
BATCH_TARGET_S = 10.0
HANDOFF_FRACTION = 0.25
"""A batch should take at most this fraction of `handoff_limit_s`."""
CHANGE_MAX = 4.0
FILLED = 0.5
"""A batch that fills this fraction of its limits indicates more unread records."""
START_MAX_S = 60.0
"""The allowance for the start of Spark: a first sweep within it does not shrink batches."""


@dataclass(slots=True)
class BatchSizes:
    """The limits of the next batch of each shard of a run.

    Attributes:
        largest: the stream's limits, which no batch exceeds.
        handoff_limit_s: the longest time that a transfer waits for the holder, in seconds.
    """

    largest: Limits
    handoff_limit_s: float
    _scale: float = 1.0
    _expected_s: float = 0.0
    _started: bool = False

    @property
    def limits(self) -> Limits:
        """The limits of a shard's next batch."""
        return Limits(
            _scaled(FIRST.records_max, self._scale, self.largest.records_max),
            _scaled(FIRST.bytes_max, self._scale, self.largest.bytes_max),
        )

    @property
    def expected_s(self) -> float:
        """The estimated time of the next sweep, in seconds; 0 before the first."""
        return self._expected_s

    def record_sweep(self, batches: Sequence[tuple[int, int]], *, took_s: float) -> None:
        """Record a sweep, and adapt the limits of the next batches.

        Args:
            batches: the records and bytes of each batch; at least one.
            took_s: the time from planning to commit, in seconds.
        """
        fill = self._fill(batches)
        target_s = min(BATCH_TARGET_S, self.handoff_limit_s * HANDOFF_FRACTION)
        previous, scale = self._scale, self._scale * fill * target_s / max(took_s, 1e-3)
        is_behind = fill >= FILLED
        starting = not self._started and took_s <= target_s + START_MAX_S
        self._started = True
        if (is_behind and scale > previous) or (took_s > target_s and not starting):
            self._scale = min(max(scale, previous / CHANGE_MAX), previous * CHANGE_MAX)
            self._scale = min(self._scale, self._scale_max)
        # Near the stream's limits, a batch grows by less than the scale.
        grown = fill / self._fill(batches) if is_behind else 1.0
        self._expected_s = took_s * max(1.0, grown)

    def _fill(self, batches: Sequence[tuple[int, int]]) -> float:
        """Return the fraction of the limits that the largest batch uses."""
        return max(fill_of(self.limits, records, size) for records, size in batches)

    @property
    def _scale_max(self) -> float:
        return max(
            1.0,
            self.largest.records_max / FIRST.records_max,
            self.largest.bytes_max / FIRST.bytes_max,
        )


def fill_of(limits: Limits, records: int, size: float) -> float:
    """Return the fraction of its limits that a batch uses."""
    return max(records / limits.records_max, size / limits.bytes_max)


def _scaled(first: int, scale: float, largest: int) -> int:
    return max(1, min(round(min(first, largest) * scale), largest))
