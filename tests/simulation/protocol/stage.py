"""The stage of one seed: its time, its log and its store, which all its parts share."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from dagster_leasehold.lease_store.group_rows import AssignmentMode, Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.lease_store.store import LeaseStore
from tests.simulation.protocol.configuration import (
    FaultRates,
    Faults,
    FollowingPace,
    SimulationConfig,
)
from tests.simulation.protocol.schedule import Schedule

KEY = GroupKey.parse("simulated", "stream")
UNIT_TIMEOUT_S = 20.0
TICK_S = 5.0


@dataclass(slots=True)
class LogShard:
    """One shard: its records are the numbers from 0 to `end`."""

    shard: ShardId
    parents: tuple[ShardId, ...] = ()
    end: int = 0
    read_only: bool = False


class ShardLog:
    """A log that grows, splits and merges; `version` rises with every change of the shard list."""

    def __init__(self, shards: int) -> None:
        self.shards: dict[ShardId, LogShard] = {}
        self.version = 0
        for _ in range(shards):
            self._add(())

    def _add(self, parents: tuple[ShardId, ...]) -> LogShard:
        shard = ShardId(str(len(self.shards)))
        self.shards[shard] = LogShard(shard, parents)
        self.version += 1
        return self.shards[shard]

    def open_shards(self) -> list[LogShard]:
        """Return the shards that still take records, in order of creation."""
        return [shard for shard in self.shards.values() if not shard.read_only]

    def listing(self) -> list[ShardListing]:
        """Return the shard list as a source would give it."""
        return [
            ShardListing(shard.shard, shard.parents, read_only=shard.read_only)
            for shard in self.shards.values()
        ]

    def append(self, shard: LogShard, records: int) -> None:
        """Add records at the end of an open shard."""
        assert not shard.read_only
        shard.end += records

    def split(self, shard: LogShard) -> tuple[LogShard, LogShard]:
        """Close a shard; two children continue it."""
        shard.read_only = True
        return self._add((shard.shard,)), self._add((shard.shard,))

    def merge(self, left: LogShard, right: LogShard) -> LogShard:
        """Close two shards; one child continues them."""
        left.read_only = right.read_only = True
        return self._add((left.shard, right.shard))


class Stage:
    """The things on the stage and the course of events, without a rule of its own.

    Attributes:
        key: the group.
        chance: the one source of randomness.
        swarm: True if faults happen besides the planned events.
        pinned: True if the group assigns shards by name.
        timing: the protocol's durations.
        rates: of the faults that may happen now.
        unit_s: the length of a second of a group whose T is 20 s: all durations scale with T.
        written: the range behind each file that a run wrote.
        calls: store calls so far; `statements` counts them by verb.
        healed: True once the faults have stopped.
        restores: how often the store lost its last commits.
        pace: of runs that follow their shards; None where runs end once all is read.
        waits: how often runs waited for more records, and what they met while they waited.
        violations: broken promises; sentences that begin with the number of an invariant.
    """

    def __init__(
        self,
        config: SimulationConfig,
        seed: int,
        new_store: Callable[[Callable[[], datetime]], LeaseStore],
    ) -> None:
        self.key = KEY
        self.config = config
        self.chance = random.Random(seed)
        self.schedule = Schedule(self.chance)
        self.swarm = config.faults is Faults.SWARM
        self.pinned = config.mode is AssignmentMode.PINNED
        self.timing = Timing(config.timeout_s, config.timeout_s / 3)
        self.rates = FaultRates.swarm(self.chance) if self.swarm else FaultRates()
        self.unit_s = config.timeout_s / UNIT_TIMEOUT_S
        self.store = new_store(self._wall_clock)
        self.log = ShardLog(config.shards)
        self.written: dict[str, tuple[ShardId, str, str]] = {}
        self.statements: Counter[str] = Counter()
        self.calls = 0
        self.healed = False
        self.restores = 0
        self.pace = FollowingPace.of_seed(seed) if self.swarm else None
        self.waits: Counter[str] = Counter()
        self.store_down_until = 0.0
        self.wall_clock_offset_s = 0.0
        self.violations: list[str] = []

    @property
    def now(self) -> float:
        """Virtual time."""
        return self.schedule.now

    @property
    def listing_version(self) -> tuple[int, int]:
        """A value that changes when the shard list has to be carried into the store again.

        A deployment does that all the time; here it is done after a change only, to save time: of
        the list, or of a store that may have lost it, even while it was on its way.
        """
        return self.log.version, self.restores

    def sleep(self, units: float) -> None:
        """Put the current strand to sleep for a number of units."""
        self.schedule.sleep(units * self.unit_s)

    def count(self, verb: str) -> None:
        """Count a call of the store that is about to be made."""
        self.calls += 1
        self.statements[verb] += 1

    def heal(self) -> None:
        """Stop all faults."""
        self.healed = True
        self.rates = FaultRates(slow_batch=self.rates.slow_batch)
        self.store_down_until = 0.0

    def violated(self, sentence: str) -> None:
        """Record a violation with the moment at which it was seen."""
        self.violations.append(f"{sentence} (at call {self.calls}, {self.now:.3f} s)")

    def _wall_clock(self) -> datetime:
        """The store's time of day, which steps; for the journal's readers only."""
        seconds = self.now + self.wall_clock_offset_s
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
