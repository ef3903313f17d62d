"""The pace of a run that follows its shards: pure rules for the time of the next batch.

A record at the head of the log is committed within one commit interval. The rules do not use event
times, which cannot be trusted and are unknown before the read. Instead, a run records on its
monotonic clock when a shard last had no unread records. All unread records arrived later, so the
shard is due one interval after that time. A shard that always had unread records is due at once.

All shards of a run share the earliest due time, because one Spark job and one transaction serve
them all. `consuming.following` calls this module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

from dagster_leasehold.assets.declared import NOT_NEGATIVE, POSITIVE, Declared, declared
from dagster_leasehold.lease_store.group_rows import HANDOFF_LIMIT_DEFAULT_S, STALL_LIMIT_DEFAULT_S
from dagster_leasehold.lease_store.identifiers import ShardId

POLLS_PER_INTERVAL = 10
POLL_MIN_S = 0.2
POLL_MAX_S = 5.0
REST_MAX_S = 0.5
"""The longest rest after a batch at the head of the log, in seconds."""
BATCH_EVERY_S = 0.8
"""The time between the starts of short batches at the head of the log, in seconds."""
REST_FRACTION = 0.25
"""The rest after a long batch, as a fraction of its duration."""


@declared
class Pace(Declared):
    """The pace of a stream's runs: when they commit, and when they end.

    Examples:
        >>> Pace(commit_interval_s=60).idle_limit_s
        120.0
    """

    commit_interval_s: Annotated[float, NOT_NEGATIVE] = 10.0
    """The longest time that a new record waits for its commit while runs keep up, in seconds; `0`
    commits at once."""
    commit_bytes: Annotated[int, POSITIVE] = 64 * 1024 * 1024
    """The size of a shard's unread records at which they are committed before the interval ends,
    in bytes."""
    idle_limit_s: Annotated[float, POSITIVE] = 120.0
    """The time without records after which a run ends, in seconds."""
    run_budget_s: Annotated[float, POSITIVE] = 3_600.0
    """The time after which a run ends and leaves the remaining records to the next run, in
    seconds."""
    stall_limit_s: Annotated[float, POSITIVE] = STALL_LIMIT_DEFAULT_S
    """The time without progress after which a run releases its shards and fails, in seconds."""
    handoff_limit_s: Annotated[float, POSITIVE] = HANDOFF_LIMIT_DEFAULT_S
    """The longest time that a transfer waits for the holder, in seconds."""
    shards_per_run: Annotated[int, POSITIVE] = 64
    """The most shards that one run of a sensor or schedule serves."""

    @property
    def poll_s(self) -> float:
        """The polling interval of the source while nothing is due, in seconds."""
        return min(POLL_MAX_S, max(POLL_MIN_S, self.commit_interval_s / POLLS_PER_INTERVAL))


def reached_head(*, lag: int | None, records: int, filled: bool, at_end: bool) -> bool:
    """Return True if a batch contains all records that were unread at the last poll.

    Args:
        lag: the number of unread records at that poll, or None if the source does not count.
        records: the number of records planned for the batch.
        filled: True if the batch nearly reached its size limits.
        at_end: True if the batch ends where the shard ended at that poll.
    """
    if at_end:
        return True
    return not filled if lag is None else records >= lag


@dataclass(slots=True)
class DueTimes:
    """The due times of a run's shards that have unread records.

    Attributes:
        active_s: the last time when a shard had unread records or a batch was committed.
    """

    pace: Pace
    active_s: float
    _read_s: dict[ShardId, float] = field(default_factory=dict[ShardId, float])
    _due_s: dict[ShardId, float] = field(default_factory=dict[ShardId, float])
    _rested_s: float = -math.inf

    @property
    def due_s(self) -> float:
        """The time of the next batch; infinite without unread records."""
        earliest = min(self._due_s.values(), default=math.inf)
        # Without a rest, a run would commit one small batch after another while few records arrive.
        # A shard that is due at once, because it is behind, allows no rest.
        rests = earliest > -math.inf
        return max(earliest, self._rested_s) if rests else earliest

    def waiting_s(self, now_s: float) -> float | None:
        """Return an upper bound on how long unread records have waited; None if unknown."""
        read_times = [self._read_s[shard] for shard in self._due_s if shard in self._read_s]
        incomplete = len(read_times) < len(self._due_s)
        return None if incomplete or not read_times else now_s - min(read_times)

    def mark_read(self, shard: ShardId, now_s: float) -> None:
        """Record that a shard has no unread records."""
        self._read_s[shard] = now_s
        self._due_s.pop(shard, None)

    def mark_unread(self, shard: ShardId, now_s: float, *, at_once: bool = False) -> None:
        """Record that a shard has unread records; with `at_once`, they are due immediately."""
        self.active_s = now_s
        read_s = -math.inf if at_once else self._read_s.get(shard, -math.inf)
        due_s = read_s + self.pace.commit_interval_s
        self._due_s[shard] = min(due_s, self._due_s.get(shard, math.inf))

    def mark_behind(self, shard: ShardId) -> None:
        """Record that a batch did not reach the head of the log: the other records are due now."""
        self._read_s.pop(shard, None)
        self._due_s[shard] = -math.inf

    def committed(self, now_s: float, *, took_s: float) -> None:
        """Record a committed batch. The run then rests, unless a shard is due at once."""
        self.active_s = now_s
        rest_s = max(BATCH_EVERY_S - took_s, took_s * REST_FRACTION)
        self._rested_s = now_s + min(rest_s, REST_MAX_S)

    def drop(self, shard: ShardId) -> None:
        """Drop a shard that the run has released."""
        self._read_s.pop(shard, None)
        self._due_s.pop(shard, None)

    def idle(self, now_s: float) -> bool:
        """Return True if no shard had unread records for `idle_limit_s`."""
        return not self._due_s and now_s - self.active_s >= self.pace.idle_limit_s
