"""Weights from the ledger: rates that stall under noise."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import (
    BatchCommit,
    BatchStatistics,
    Intent,
    Throughput,
)
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Changed, Opened
from dagster_leasehold.lease_store.rebalancing import planning_snapshot
from dagster_leasehold.lease_store.rules.planning import learned_weights, quantised
from dagster_leasehold.lease_store.shard_rows import ShardListing

NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)
X, Y, Z = ShardId("x"), ShardId("y"), ShardId("z")


def row(shard: ShardId, records: int, first_s: float, last_s: float, batches: int) -> Throughput:
    at = [NOON + timedelta(seconds=s) for s in (first_s, last_s)]
    return Throughput(shard, batches, records, *at)


def test_a_rate_counts_the_records_after_the_oldest_batch() -> None:
    """Five batches of 100 records, ten seconds apart: 400 records came in 40 seconds."""
    assert learned_weights([row(X, 500, 0, 40, 5)]) == {X: 10}


def test_the_weight_of_a_silent_shard_decreases_while_others_commit() -> None:
    silent, busy = row(X, 500, 0, 40, 5), row(Y, 5_000, 0, 400, 5)
    assert learned_weights([silent, busy]) == {X: 1, Y: 10}


def test_one_batch_gives_no_rate() -> None:
    assert learned_weights([row(X, 500, 0, 0, 1)]) == {}
    assert learned_weights([]) == {}


def test_no_shard_is_lighter_than_a_64th_of_the_heaviest() -> None:
    rows = [row(X, 0, 0, 40, 5), row(Y, 512_000, 0, 100, 5)]
    assert learned_weights(rows) == {X: 64, Y: 4_096}


def test_the_rate_of_simultaneous_batches_is_bounded() -> None:
    assert learned_weights([row(X, 100, 0, 0, 2)]) == {X: 48}


@given(st.floats(1e-3, 1e9))
def test_a_weight_is_exact_to_an_eighth_and_stable(rate: float) -> None:
    assert abs(quantised(rate) - rate) <= rate / 8
    assert quantised(quantised(rate)) == quantised(rate)


@given(st.lists(st.floats(1, 1e6).map(quantised), min_size=1), st.randoms(use_true_random=False))
def test_sums_of_weights_do_not_depend_on_their_order(weights: list[float], random: object) -> None:
    total = sum(weights)
    random.shuffle(weights)  # type: ignore[attr-defined]
    assert sum(weights) == total


def test_a_planning_snapshot_has_weights_only_in_a_weighted_group() -> None:
    now = [NOON]
    store = MemoryStore(lambda: now[0])
    key = GroupKey.parse("group", "stream")
    store.create_group(Group(key, weighted=True))
    store.register(key, Node(NodeName("a"), 0, "i"), observer="test")
    store.sync_shards(key, [ShardListing(X)], observer="test")
    assert isinstance(
        store.claim(key, {X: (NodeName("a"), 0)}, observer="test", reason="r")[X], Changed
    )
    opened = store.open_tenure(key, X, NodeName("a"), "run")
    assert isinstance(opened, Opened)
    for number in range(3):
        start, end = str(100 * number), str(100 * number + 100)
        store.record_intents([Intent(opened.tenure, number, start, end)])
        now[0] += timedelta(seconds=25)
        store.commit(
            [BatchCommit(opened.tenure, number, start, end, "f", (), BatchStatistics(100))]
        )
    assert planning_snapshot(store, key).weights == {X: 4}
    assert store.statements["throughput"] == 1
    store.update_group(Group(key), observer="test")
    assert planning_snapshot(store, key).weights == {}
    assert store.statements["throughput"] == 1
