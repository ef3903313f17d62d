"""What a shard weighs: the records per second that the ledger shows, coarse enough to stand still.

Pure, but for `planning_snapshot`. Times here are those of the ledger's rows, compared with one
another alone: they shape who gets how much, never who may publish.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import frexp, ldexp

from dagster_leasehold.lease_store.group_rows import Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Throughput
from dagster_leasehold.lease_store.store import GroupsAndLedger

SPAN_MIN_S = 1.0
WEIGHT_MIN = 1.0
WEIGHT_RATIO_MAX = 64.0
MANTISSA_STEPS = 8


def planning_snapshot(store: GroupsAndLedger, key: GroupKey) -> Snapshot:
    """A snapshot to plan from: with weights, where the group wants its load levelled.

    Raises:
        UnknownGroup: there is no such group.
        StoreUnavailable: the store does not answer.
    """
    snapshot = store.snapshot(key)
    if not snapshot.group.weighted:
        return snapshot
    return replace(snapshot, weights=learned_weights(store.throughput(key)))


def learned_weights(throughputs: Iterable[Throughput]) -> dict[ShardId, float]:
    """Records per second of each shard, in steps of an eighth to a quarter.

    A shard's rate is counted up to the newest commit of the whole group: one that has fallen
    silent gets lighter while others go on. What has one batch only has no rate yet. No shard
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
    """The nearest number with three binary digits: sums of such are exact, in any order."""
    mantissa, exponent = frexp(rate)
    return ldexp(round(mantissa * MANTISSA_STEPS) / MANTISSA_STEPS, exponent)
