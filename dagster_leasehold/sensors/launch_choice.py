"""The choice of shards for the next runs, by pure functions that every tick calls.

Safety does not depend on this choice. Two runs for one shard waste work, but only one can hold its
lease. Losing the launch history does no harm.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.failing_steps import retry_wait_s
from dagster_leasehold.lease_store.rules.isolation import Suspicion
from dagster_leasehold.shard_sources.source import Position, ShardBounds

RUNS_PER_NODE_MAX = 2
RETRY_FIRST_S = 10.0
RETRY_MAX_S = 300.0
TICK_INTERVAL_S = 5.0
"""The time from one tick to the next, in seconds."""
NEXT_TICK_FRACTION = 0.9
"""The next tick comes after at least this fraction of that time."""


Place = Hashable


class Work(StrEnum):
    """The work that an owned shard needs while no run has it open."""

    READ = "read"
    FINISH = "finish"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class IdleShard:
    """A shard that a served node holds and that no run has open.

    Attributes:
        epoch: the epoch of its last tenure; it increases when a run opens the shard.
        blocked: True if its runs hang or crash, so that it needs a run of its own.
        suspicion: the range of records that is suspected to cause that, or None.
    """

    shard: ShardId
    node: NodeName
    check_point: str | None
    bounds: ShardBounds
    epoch: int = 0
    blocked: bool = False
    suspicion: Suspicion | None = None

    @property
    def place(self) -> Place:
        """The shard's progress; a smaller suspected range also counts as progress."""
        if self.suspicion is None or not self.suspicion.isolating:
            return self.check_point
        return self.check_point, self.suspicion.records, self.suspicion.alone


@dataclass(frozen=True, slots=True)
class Launch:
    """A run to launch, for shards of one node."""

    node: NodeName
    shards: tuple[ShardId, ...]


def next_work(
    check_point: str | None, bounds: ShardBounds, initial_position: str, *, child: bool = False
) -> Work:
    """Return the work that a shard needs next.

    A shard with nothing to read can still need a run. In a group that does not start at the
    beginning, the first run stores where the shard starts, before newer records arrive. The run of
    a removed shard, or of a child whose first records were removed, records the gap.
    """
    lost = (child or bounds.removed) and bounds.origin not in (None, bounds.begin)
    if check_point is None and lost:
        return Work.READ
    if check_point is None and initial_position != Position.BEGIN:
        return Work.READ
    start = bounds.begin if check_point is None else check_point
    if start != bounds.end:
        return Work.READ
    return Work.FINISH if bounds.finished else Work.NONE


@dataclass(slots=True)
class _Attempt:
    node: NodeName
    place: Place
    epoch: int
    at_s: float
    launch_number: int
    fruitless: int = 0
    unbegun: int = 0


@dataclass(slots=True)
class LaunchHistory:
    """The last launch for each shard, and the number of launches in a row that committed nothing.

    If a run of a shard commits nothing (a transform raises, the log is damaged), the next one is
    launched after 10 s, then 20 s, up to 300 s, so that the shard does not keep its node busy. The
    first run that never opens the shard, for example because no code server answers, is followed by
    another at once; later ones wait. A node that gets the shard launches a run at once.
    """

    _attempts: dict[ShardId, _Attempt] = field(default_factory=dict)
    _launches: int = 0

    def wait_s(self, idle: IdleShard, now_s: float) -> float:
        """Return the seconds until the next run for the shard can be launched."""
        attempt = self._attempts.get(idle.shard)
        if attempt is None or not self.tried(idle):
            return 0.0
        failures = attempt.fruitless + 1 if idle.epoch != attempt.epoch else attempt.unbegun
        if not failures:
            return 0.0
        pause_s = retry_wait_s(failures, first_s=RETRY_FIRST_S, max_s=RETRY_MAX_S)
        return max(0.0, attempt.at_s + pause_s - now_s)

    def fruitless(self, idle: IdleShard) -> int:
        """Count the runs in a row that opened the shard and made no progress."""
        attempt = self._attempts.get(idle.shard)
        if attempt is None or attempt.place != idle.place:
            return 0
        return attempt.fruitless + (idle.epoch != attempt.epoch)

    def tried(self, idle: IdleShard) -> bool:
        """Return True if the shard was already launched or offered to a run at this place."""
        attempt = self._attempts.get(idle.shard)
        return attempt is not None and (attempt.node, attempt.place) == (idle.node, idle.place)

    def launch_number(self, shard: ShardId) -> int:
        """Return the number of the shard's last launch; 0 without one."""
        attempt = self._attempts.get(shard)
        return attempt.launch_number if attempt else 0

    def keep(self, shards: Collection[ShardId]) -> None:
        """Drop all other shards; they are over and get no further runs."""
        self._attempts = {shard: at for shard, at in self._attempts.items() if shard in shards}

    def drop(self, shards: Iterable[ShardId]) -> None:
        """Drop the launches for these shards, which never began."""
        for shard in shards:
            self._attempts.pop(shard, None)

    def note(self, launch: Launch, shards: Mapping[ShardId, IdleShard], now_s: float) -> None:
        """Record a launch; its shards move to the end of the queue."""
        self._launches += 1
        for shard in launch.shards:
            before, idle, unbegun = self._attempts.get(shard), shards[shard], 0
            if before and self.tried(idle) and before.epoch == idle.epoch:
                unbegun = before.unbegun + 1
            fruitless = self.fruitless(idle)
            self._attempts[shard] = _Attempt(
                idle.node, idle.place, idle.epoch, now_s, self._launches, fruitless, unbegun
            )


def choose_launches(
    ready: Iterable[IdleShard],
    *,
    history: LaunchHistory,
    runs_active: Mapping[str, int],
    shards_per_run: int,
    runs_per_node: int = RUNS_PER_NODE_MAX,
    apart_active: Mapping[str, int] | None = None,
) -> list[Launch]:
    """Return runs for shards that have work, the least recently served first.

    A node has at most `runs_per_node` runs, including active ones. Each fruitless run of a shard
    divides the number of shards in its next run by four, and these shards have equally many
    fruitless runs. A blocked shard gets a run of its own. One run of each node is reserved for
    shards that are not blocked. `apart_active` is the number of active runs for blocked shards.
    """

    def share(idle: IdleShard) -> int:
        fruitless = history.fruitless(idle)
        return max(1, shards_per_run >> 2 * fruitless)

    by_node: dict[NodeName, list[IdleShard]] = {}
    for idle in ready:
        by_node.setdefault(idle.node, []).append(idle)
    launches: list[Launch] = []
    for node in sorted(by_node):
        queue = sorted(
            by_node[node], key=lambda idle: (history.launch_number(idle.shard), idle.shard)
        )
        apart = (apart_active or {}).get(node, 0)
        for _ in range(runs_active.get(node, 0), runs_per_node):
            if apart >= max(1, runs_per_node - 1):
                queue = [idle for idle in queue if not idle.blocked]
            if not queue:
                break
            first, size = queue[0], share(queue[0])
            run_shards = [idle for idle in queue if share(idle) == size and not idle.blocked][:size]
            run_shards = [first] if first.blocked else run_shards
            apart += first.blocked
            queue = [idle for idle in queue if idle not in run_shards]
            launches.append(Launch(node, tuple(idle.shard for idle in run_shards)))
    return launches


@dataclass(slots=True)
class CaughtUpTimes:
    """The times when idle shards last had no unread records.

    An unread record arrived after that time, so it is due one interval later. A shard without a
    time is due at once. So if this state is lost, batches are smaller than they could be.

    Attributes:
        interval_s: the longest time that a record waits at the end of the log, in seconds.
        lag_max: a shard with this many unread records is due at once.
    """

    interval_s: float
    lag_max: int
    _read_s: dict[ShardId, float] = field(default_factory=dict[ShardId, float])

    def keep(self, idle: Collection[ShardId]) -> None:
        """Drop all other shards; runs read them."""
        self._read_s = {shard: at_s for shard, at_s in self._read_s.items() if shard in idle}

    def record_caught_up(self, shard: ShardId, now_s: float) -> None:
        """Record that a shard has nothing to read now."""
        self._read_s[shard] = now_s

    def due(self, shard: ShardId, lag: int | None, now_s: float) -> bool:
        """Return True if a shard's oldest unread record is due before the next tick."""
        if shard not in self._read_s or (lag is not None and lag >= self.lag_max):
            return True
        return self._read_s[shard] + self.interval_s < now_s + TICK_INTERVAL_S * NEXT_TICK_FRACTION
