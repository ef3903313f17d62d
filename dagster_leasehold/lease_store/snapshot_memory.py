"""The picture that a planning process keeps of its group, and what it reads to keep it true.

A shard weighs its records per second, by the ledger. Weights are coarse, so that they seldom
change. Times come from the ledger's rows, compared only with one another: they shape how much
each node gets, never which one may publish.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from math import frexp, ldexp

from dagster_leasehold.lease_store.group_rows import Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_tail import JournalTail
from dagster_leasehold.lease_store.ledger_rows import Throughput
from dagster_leasehold.lease_store.shard_rows import Progress
from dagster_leasehold.lease_store.store import GroupsAndLedger

SPAN_MIN_S = 1.0
WEIGHT_MIN = 1.0
WEIGHT_RATIO_MAX = 64.0
MANTISSA_STEPS = 8
WEIGHING_S = 60.0
"""The time that a plan by load relies on the weights that it was made with, in seconds."""

FEW_SHARDS = 1_000
"""The progress of so many shards is read at each tick, in about ten milliseconds."""
REREAD_S = 60.0
REREAD_ROWS_PER_S = 1_000
"""All rows of a larger group than a minute of these are read again less often."""


def planning_snapshot(store: GroupsAndLedger, key: GroupKey, since: int | None = None) -> Snapshot:
    """Return a snapshot to plan from: with weights, if the group wants its load levelled.

    With `since`, only the shards that have changed after that generation.

    Raises:
        UnknownGroup: there is no such group.
        StoreUnavailable: the store does not answer.
    """
    snapshot = store.snapshot(key, since)
    if not snapshot.group.weighted:
        return snapshot
    return replace(snapshot, weights=learned_weights(store.throughput(key)))


@dataclass(slots=True)
class SnapshotMemory:
    """The last snapshot of a group. Once the group has changed, only what changed is read.

    A wrong row would stay wrong, since only rows that change are read:

    1. A failover loses the change that led to generation 7, which this process has read. Another
       change leads to generation 7 again, and to 8.
    2. The rows of the first 7 are back as they were, under lower numbers: not read.

    So the whole group is read where the generation has fallen, where a move came too late although
    its shard has not changed since it was planned, where the store failed, where the served
    nodes' shards are not the ones of the snapshot, and now and then.

    Attributes:
        clock: monotonic seconds.
        count: called with the verb of each statement.
        rereads_above: a group of more shards is read as a whole now and then; none is if None.
        doubtful: shards for which a move came too late.
        changed: the shards that have changed since the caller last cleared it; None for all.
    """

    store: GroupsAndLedger
    key: GroupKey
    clock: Callable[[], float]
    count: Callable[[str], None]
    rereads_above: int | None
    doubtful: set[ShardId] = field(default_factory=set[ShardId])
    changed: set[ShardId] | None = None
    _snapshot: Snapshot | None = None
    _read_at: float = 0.0
    _whole_at: float = 0.0

    def forget(self) -> None:
        """Read the whole group next time: it might have changed unseen."""
        self._snapshot = None

    def at(self, generation: int | None) -> tuple[Snapshot, bool]:
        """Return the group as of a generation, and True if it was read just now.

        Raises:
            UnknownGroup: there is no such group.
            StoreUnavailable: the store does not answer.
        """
        before, now_s = self._snapshot, self.clock()
        if before is not None and self._due(before, now_s):
            before = None
        # Weights change without a new generation.
        recent = now_s - self._read_at < WEIGHING_S
        if (
            before is not None
            and before.group.generation == generation
            and (recent or not before.group.weighted)
        ):
            return before, False
        snapshot = None if before is None else self._read_changes(before)
        if snapshot is None:
            snapshot = self._read(None)
            self.changed, self._whole_at = None, self.clock()
        self.doubtful.clear()
        self._snapshot, self._read_at = snapshot, self.clock()
        return snapshot, True

    def _due(self, before: Snapshot, now_s: float) -> bool:
        """Return True if the whole is to be read; of fewer shards each tick compares all."""
        above, shards = self.rereads_above, before.shards
        many = above is not None and len(shards) > above
        return many and self._whole_at + pause_s(shards) < now_s

    def _read(self, since: int | None) -> Snapshot:
        self.count("snapshot")
        snapshot = planning_snapshot(self.store, self.key, since)
        if snapshot.group.weighted:
            self.count("throughput")
        return snapshot

    def _read_changes(self, before: Snapshot) -> Snapshot | None:
        """Return the snapshot that a former one has become; None if that is in doubt."""
        now = self._read(before.group.generation)
        changed = {row.shard: row for row in now.shards}
        fallen = now.group.generation < before.group.generation
        if fallen or not self.doubtful <= changed.keys():
            return None
        if self.changed is not None:
            self.changed |= changed.keys()
        shards = tuple(changed.pop(row.shard, row) for row in before.shards)
        return replace(now, shards=(*shards, *changed.values()))


@dataclass(slots=True)
class ProgressMemory:
    """The progress of the served nodes' shards. Of many shards, only what changed is read.

    Commits and new suspicions of shards that are open appear with the next reading of all.

    Attributes:
        clock: monotonic seconds.
        count: called with the verb of each statement.
        follows_above: all is read each time of at most so many shards; of any number if None.
    """

    store: GroupsAndLedger
    key: GroupKey
    clock: Callable[[], float]
    count: Callable[[str], None]
    follows_above: int | None
    rows: dict[ShardId, Progress] = field(default_factory=dict[ShardId, Progress])
    _serves: frozenset[NodeName] = frozenset()
    _tail: JournalTail | None = None
    _whole_at: float = 0.0

    def forget(self) -> None:
        """Read all next time: the journal's numbers might have been given out again."""
        self._tail = None

    def read(
        self, serves: Collection[NodeName], snapshot: Snapshot, changed: set[ShardId] | None
    ) -> bool:
        """Read the progress of the served nodes' shards again; return True if all was read.

        Args:
            serves: the nodes.
            snapshot: the group now.
            changed: the shards whose owner can have changed since the last reading; None for all.
        """
        before, self._serves = self._serves, frozenset(serves)
        due = self._whole_at + pause_s(self.rows) < self.clock()
        if self._tail is None or changed is None or due:
            self._read_all(len(snapshot.shards))
            return True
        self.count("touched")
        names = changed | self._tail.touched(self.store, self.key)
        if nodes := before ^ self._serves:
            names |= {row.shard for row in snapshot.shards if row.consumer_owner in nodes}
        if names:
            self.count("progress")
            others = {shard: row for shard, row in self.rows.items() if shard not in names}
            self.rows = others | self.store.progress(self.key, self._serves, names)
        return False

    def _new_tail(self) -> JournalTail:
        return JournalTail(self.clock)

    def _read_all(self, shards: int) -> None:
        if self.follows_above is None or shards <= self.follows_above:
            self._tail = None
        elif self._tail is None:
            # What a transaction of this moment writes can be numbered below the newest entry, and
            # be missed: the next reading of all sees it.
            self._tail = self._new_tail()
            self._tail.begin(self.store, self.key)
        self.count("progress")
        self.rows = self.store.progress(self.key, self._serves)
        self._whole_at = self.clock()


def pause_s(rows: Collection[object]) -> float:
    """Return the pause between two readings of all rows, in seconds."""
    return max(REREAD_S, len(rows) / REREAD_ROWS_PER_S)


def learned_weights(throughputs: Iterable[Throughput]) -> dict[ShardId, float]:
    """Return the records per second of each shard, rounded to three binary digits.

    A shard's rate is counted up to the newest commit of the whole group: one that has fallen
    silent gets lighter while others continue. A shard with one batch only has no rate yet. No shard
    weighs less than one record per second, or than a 64th of the heaviest: looking after an idle
    shard costs something, too.
    """
    rows = [row for row in throughputs if row.batches > 1]
    if not rows:
        return {}
    newest = max(row.last_at for row in rows)
    rates: dict[ShardId, float] = {}
    for row in rows:
        # The oldest batch only marks the start of the interval: its records came before it.
        records = row.records * (row.batches - 1) / row.batches
        rates[row.shard] = records / max((newest - row.first_at).total_seconds(), SPAN_MIN_S)
    floor = max(WEIGHT_MIN, max(map(quantised, rates.values())) / WEIGHT_RATIO_MAX)
    return {shard: max(floor, quantised(rate)) for shard, rate in rates.items()}


def quantised(rate: float) -> float:
    """Return the nearest number with three binary digits: sums of such are exact, in any order."""
    mantissa, exponent = frexp(rate)
    return ldexp(round(mantissa * MANTISSA_STEPS) / MANTISSA_STEPS, exponent)
