"""Snapshots to plan from, and the weights of shards in them: records per second by the ledger.

Weights are coarse, so that they seldom change. Times are those of the ledger's rows, compared only
with one another: they shape how much each node gets, never which one may publish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import frexp, ldexp

from dagster_leasehold.lease_store.group_rows import Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Throughput
from dagster_leasehold.lease_store.store import GroupsAndLedger

SPAN_MIN_S = 1.0
WEIGHT_MIN = 1.0
WEIGHT_RATIO_MAX = 64.0
MANTISSA_STEPS = 8
WEIGHING_S = 60.0
"""The time for which a plan by load relies on the weights that it was made with, in seconds."""


def planning_snapshot(store: GroupsAndLedger, key: GroupKey) -> Snapshot:
    """Return a snapshot to plan from: with weights, if the group wants its load levelled.

    Raises:
        UnknownGroup: there is no such group.
        StoreUnavailable: the store does not answer.
    """
    snapshot = store.snapshot(key)
    if not snapshot.group.weighted:
        return snapshot
    return replace(snapshot, weights=learned_weights(store.throughput(key)))


@dataclass(slots=True)
class SnapshotMemory:
    """The last snapshot of a group, which is read again only once it has changed.

    Attributes:
        clock: monotonic seconds.
        count: called with the verb of each statement.
    """

    store: GroupsAndLedger
    key: GroupKey
    clock: Callable[[], float]
    count: Callable[[str], None]
    _snapshot: Snapshot | None = None
    _read_at: float = 0.0

    def forget(self) -> None:
        """Read the group again next time: it may have changed unseen."""
        self._snapshot = None

    def at(self, generation: int | None) -> tuple[Snapshot, bool]:
        """Return the group as of a generation, and True if it was read just now.

        Raises:
            UnknownGroup: there is no such group.
            StoreUnavailable: the store does not answer.
        """
        snapshot = self._snapshot
        # Weights change without a new generation.
        recent = self.clock() - self._read_at < WEIGHING_S
        if (
            snapshot is not None
            and snapshot.group.generation == generation
            and (recent or not snapshot.group.weighted)
        ):
            return snapshot, False
        self.count("snapshot")
        snapshot = self._snapshot = planning_snapshot(self.store, self.key)
        self._read_at = self.clock()
        if snapshot.group.weighted:
            self.count("throughput")
        return snapshot, True


def learned_weights(throughputs: Iterable[Throughput]) -> dict[ShardId, float]:
    """Return the records per second of each shard, in steps of an eighth to a quarter.

    A shard's rate is counted up to the newest commit of the whole group: one that has fallen
    silent gets lighter while others go on. A shard with one batch only has no rate yet. No shard
    weighs less than one record per second, or than a 64th of the heaviest: looking after an idle
    shard costs something, too.
    """
    rows = [row for row in throughputs if row.batches > 1]
    if not rows:
        return {}
    newest = max(row.last_at for row in rows)
    rates: dict[ShardId, float] = {}
    for row in rows:
        # The oldest batch only marks where the time begins: its records came before that.
        records = row.records * (row.batches - 1) / row.batches
        rates[row.shard] = records / max((newest - row.first_at).total_seconds(), SPAN_MIN_S)
    floor = max(WEIGHT_MIN, max(map(quantised, rates.values())) / WEIGHT_RATIO_MAX)
    return {shard: max(floor, quantised(rate)) for shard, rate in rates.items()}


def quantised(rate: float) -> float:
    """Return the nearest number with three binary digits: sums of such are exact, in any order."""
    mantissa, exponent = frexp(rate)
    return ldexp(round(mantissa * MANTISSA_STEPS) / MANTISSA_STEPS, exponent)
