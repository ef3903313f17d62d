"""A rebalancer's copy of its group: the snapshot, the progress of its shards, and their weights.

The weight of a shard is its records per second in the ledger, rounded so that it seldom changes.
Commit times in the ledger are compared only with each other, and only determine load.
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
"""The time until a snapshot with weights is read again, in seconds."""

FEW_SHARDS = 1_000
"""Up to this many shards, each tick reads all progress, in about ten milliseconds."""
REREAD_S = 60.0
REREAD_ROWS_PER_S = 1_000
"""The rate limit of full reads: with many rows, they are less frequent than once a minute."""


def planning_snapshot(store: GroupsAndLedger, key: GroupKey, since: int | None = None) -> Snapshot:
    """Return a snapshot for planning, with weights if the group balances by load.

    With `since`, it contains only the shards that changed after that generation.
    """
    snapshot = store.snapshot(key, since)
    if not snapshot.group.weighted:
        return snapshot
    return replace(snapshot, weights=learned_weights(store.throughput(key)))


@dataclass(slots=True)
class SnapshotMemory:
    """The last snapshot of a group. After a change of the group, only changed rows are read.

    That alone can leave a wrong row in the snapshot:

    1. A failover loses the change that led to generation 7, which this process has read. Other
       changes lead to generations 7 and 8.
    2. The failover restored the rows that the lost change had written, with generations below 7.
       A read of the changes after generation 7 does not include them.

    So the whole group is read in five cases: the generation has decreased; a move came too late
    although its row has not changed since the plan; the store failed; the shards of the served
    nodes differ from the snapshot; and, in a large group, from time to time.

    Attributes:
        count: called with the operation of each statement.
        rereads_above: the number of shards above which a group is read as a whole from time to
            time; None never does.
        stale_shards: shards whose last move came too late.
        changed: the shards that have changed since the caller last cleared this; None for all.
    """

    store: GroupsAndLedger
    key: GroupKey
    clock: Callable[[], float]
    count: Callable[[str], None]
    rereads_above: int | None
    stale_shards: set[ShardId] = field(default_factory=set[ShardId])
    changed: set[ShardId] | None = None
    _snapshot: Snapshot | None = None
    _read_at: float = 0.0
    _whole_at: float = 0.0

    def reset(self) -> None:
        """Discard the snapshot, so that the next call reads the whole group."""
        self._snapshot = None

    def at(self, generation: int | None) -> tuple[Snapshot, bool]:
        """Return the snapshot of a generation, and True if it was read now; None always reads."""
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
        self.stale_shards.clear()
        self._snapshot, self._read_at = snapshot, self.clock()
        return snapshot, True

    def _due(self, before: Snapshot, now_s: float) -> bool:
        """Return True if the whole group must be read; in a small group, ticks compare all rows."""
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
        """Return `before` with the changed rows; None if it is not reliable."""
        now = self._read(before.group.generation)
        changed = {row.shard: row for row in now.shards}
        fallen = now.group.generation < before.group.generation
        if fallen or not self.stale_shards <= changed.keys():
            return None
        if self.changed is not None:
            self.changed |= changed.keys()
        shards = tuple(changed.pop(row.shard, row) for row in before.shards)
        return replace(now, shards=(*shards, *changed.values()))


@dataclass(slots=True)
class ProgressMemory:
    """The progress of the served nodes' shards. With many shards, only changes are read.

    Commits and new suspicions of open shards appear only at the next full read. `follows_above` is
    the number of shards up to which every read is full; with None, every read is.
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

    def reset(self) -> None:
        """Make the next read a full one: a failover has possibly reused the journal's numbers."""
        self._tail = None

    def read(
        self, serves: Collection[NodeName], snapshot: Snapshot, changed: set[ShardId] | None
    ) -> bool:
        """Update the progress of the served nodes' shards; return True after a full read.

        `changed` has the shards whose owner possibly changed since the last read; None is all.
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
            # An entry of a transaction in flight is missed if its number is below the newest one.
            # The next full read includes its change.
            self._tail = self._new_tail()
            self._tail.begin(self.store, self.key)
        self.count("progress")
        self.rows = self.store.progress(self.key, self._serves)
        self._whole_at = self.clock()


def pause_s(rows: Collection[object]) -> float:
    """Return the pause between two full reads, in seconds."""
    return max(REREAD_S, len(rows) / REREAD_ROWS_PER_S)


def learned_weights(throughputs: Iterable[Throughput]) -> dict[ShardId, float]:
    """Return the records per second of each shard, rounded to three binary digits.

    A shard's interval ends at the newest commit of the whole group, so an idle shard gets lighter
    while others continue. A shard with a single batch has no rate yet. The least weight is one
    record per second, or a 64th of the heaviest if that is more, because idle shards also cost
    work.
    """
    rows = [row for row in throughputs if row.batches > 1]
    if not rows:
        return {}
    newest = max(row.last_at for row in rows)
    rates: dict[ShardId, float] = {}
    for row in rows:
        # The oldest batch only marks the start of the interval, which excludes its records.
        records = row.records * (row.batches - 1) / row.batches
        rates[row.shard] = records / max((newest - row.first_at).total_seconds(), SPAN_MIN_S)
    floor = max(WEIGHT_MIN, max(map(quantised, rates.values())) / WEIGHT_RATIO_MAX)
    return {shard: max(floor, quantised(rate)) for shard, rate in rates.items()}


def quantised(rate: float) -> float:
    """Round to three binary digits, so that sums are exact in any order."""
    mantissa, exponent = frexp(rate)
    return ldexp(round(mantissa * MANTISSA_STEPS) / MANTISSA_STEPS, exponent)
