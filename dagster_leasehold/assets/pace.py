"""The pace of a run that follows its shards: pure rules for the moment of the next batch.

A record waits at the head of the log for at most a commit interval. The event times of records
are not to be trusted, and a run does not read to find them out: it remembers, on its own monotonic
clock, when a shard was last seen read to its end. All unread records came after that moment, so
that it is due one interval later. A shard that was never seen read to its end is due at once.

All shards of a run share one due time, the earliest: one Spark job and one transaction serve them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

from dagster_leasehold.assets.declared import NOT_NEGATIVE, POSITIVE, Declared, declared
from dagster_leasehold.lease_store.group_rows import HANDOFF_LIMIT_DEFAULT_S, STALL_LIMIT_DEFAULT_S
from dagster_leasehold.lease_store.identifiers import ShardId

LOOKS_PER_INTERVAL = 10
LOOK_MIN_S = 0.2
LOOK_MAX_S = 5.0
REST_MAX_S = 0.5
"""The longest rest at the head of the log where the interval asks for none, in seconds."""
BATCH_EVERY_S = 0.8
"""The time from one batch to the next at the head, where a batch takes less, in seconds."""
REST_FRACTION = 0.25
"""The rest after a batch that takes longer, as a part of its time."""


@declared
class Pace(Declared):
    """The pace of a stream's runs: when they commit, and when they end.

    Examples:
        >>> Pace(commit_interval_s=60).idle_limit_s
        120.0
    """

    commit_interval_s: Annotated[float, NOT_NEGATIVE] = 10.0
    """The longest time that a record waits at the head of the log before it is committed, in
    seconds; `0` commits at once."""
    commit_bytes: Annotated[int, POSITIVE] = 64 * 1024 * 1024
    """The size of a shard's unread records that starts a commit before the interval is over, in
    bytes."""
    idle_limit_s: Annotated[float, POSITIVE] = 120.0
    """The time without records after which a run ends, in seconds."""
    run_budget_s: Annotated[float, POSITIVE] = 3_600.0
    """The time after which a run leaves the rest to the next one, in seconds."""
    stall_limit_s: Annotated[float, POSITIVE] = STALL_LIMIT_DEFAULT_S
    """The time without progress after which a run gives up its shards and fails, in seconds."""
    handoff_limit_s: Annotated[float, POSITIVE] = HANDOFF_LIMIT_DEFAULT_S
    """The longest time that a transfer waits for the holder, in seconds."""
    shards_per_run: Annotated[int, POSITIVE] = 64
    """The most shards that one run of a sensor or schedule serves."""

    @property
    def look_s(self) -> float:
        """The time between two looks at the source while nothing is due, in seconds."""
        return min(LOOK_MAX_S, max(LOOK_MIN_S, self.commit_interval_s / LOOKS_PER_INTERVAL))


def reached_head(*, lag: int | None, records: int, filled: bool, at_end: bool) -> bool:
    """Return True if a batch holds everything that was unread when its run looked at the source.

    Args:
        lag: the unread records of that look, where the source can tell.
        records: the records planned for the batch.
        filled: True if the batch came near its limits.
        at_end: True if it ends where the shard ended at that look.
    """
    if at_end:
        return True
    return not filled if lag is None else records >= lag


@dataclass(slots=True)
class DueTimes:
    """The due times of a run's unread records, one for each shard that has any.

    Attributes:
        pace: of the run.
        active_s: the last moment when there was something to read.
    """

    pace: Pace
    active_s: float
    _read_s: dict[ShardId, float] = field(default_factory=dict[ShardId, float])
    _due_s: dict[ShardId, float] = field(default_factory=dict[ShardId, float])
    _rested_s: float = -math.inf

    @property
    def due_s(self) -> float:
        """The moment of the next batch; infinite while nothing is unread."""
        earliest = min(self._due_s.values(), default=math.inf)
        # Without a rest, a steady trickle would keep a run busy with batches of a few records.
        rests = earliest > -math.inf
        return max(earliest, self._rested_s) if rests else earliest

    def waits_s(self, now_s: float) -> float | None:
        """Return the longest that a record might have waited; None where that is not known."""
        since_s = [self._read_s[shard] for shard in self._due_s if shard in self._read_s]
        behind = len(since_s) < len(self._due_s)
        return None if behind or not since_s else now_s - min(since_s)

    def see_read(self, shard: ShardId, now_s: float) -> None:
        """Take note that a shard is read to its end."""
        self._read_s[shard] = now_s
        self._due_s.pop(shard, None)

    def see_unread(self, shard: ShardId, now_s: float, *, at_once: bool = False) -> None:
        """Take note that a shard has unread records; `at_once` if they wait for no interval."""
        self.active_s = now_s
        read_s = -math.inf if at_once else self._read_s.get(shard, -math.inf)
        due_s = read_s + self.pace.commit_interval_s
        self._due_s[shard] = min(due_s, self._due_s.get(shard, math.inf))

    def see_behind(self, shard: ShardId) -> None:
        """Take note that a batch left records unread which were there before it."""
        self._read_s.pop(shard, None)
        self._due_s[shard] = -math.inf

    def committed(self, now_s: float, *, took_s: float) -> None:
        """Take note of a batch, after which the run rests if it is at the head of the log."""
        self.active_s = now_s
        rest_s = max(BATCH_EVERY_S - took_s, took_s * REST_FRACTION)
        self._rested_s = now_s + min(rest_s, REST_MAX_S)

    def forget(self, shard: ShardId) -> None:
        """Forget a shard that the run has released."""
        self._read_s.pop(shard, None)
        self._due_s.pop(shard, None)

    def idle(self, now_s: float) -> bool:
        """Return True if there has been nothing to read for the limit."""
        return not self._due_s and now_s - self.active_s >= self.pace.idle_limit_s
