"""The statements that reach a real database while nothing happens, counted at the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.upkeep import (
    BEATS_PER_TERM,
    KEY,
    TIMING,
    counted,
    lease_per_shard,
    settled_group,
    volume_leases,
)
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import ShardsSynced
from dagster_leasehold.lease_store.rebalancing import Rebalancer
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.lease_store.sql_store import rows_in_sql
from dagster_leasehold.lease_store.store import LeaseStore


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("shards", [1, 10, 400])
def test_upkeep_depends_on_the_nodes_and_not_on_the_shards(tmp_path: Path, shards: int, nodes: int):
    """Three statements for an idle tick, and one row written for a beat, for any number of
    shards.
    """
    cost = volume_leases(f"sqlite:///{tmp_path}/leases.db", shards, nodes)
    assert cost.rows_written == BEATS_PER_TERM * nodes
    assert cost.statements <= 3 * BEATS_PER_TERM * nodes


def test_the_counter_counts_every_write(tmp_path: Path):
    """The alarm rings: a lease per shard is counted as the many writes that it is."""
    cost = lease_per_shard(f"sqlite:///{tmp_path}/leases.db", 50, 2)
    assert cost.rows_written == BEATS_PER_TERM * 50


def planner(store: LeaseStore) -> Rebalancer:
    """The rebalancing of a deployment whose nodes are kept alive by agents."""
    return Rebalancer(
        store,
        KEY,
        serves=(),
        timing=TIMING,
        observer="planner",
        incarnation_of=lambda name: f"{name}-1",
        beats=False,
        serving=lambda nodes: tuple(node.name for node in nodes),
    )


def test_the_cost_of_a_joining_node_does_not_depend_on_the_shards(tmp_path: Path):
    costs: list[int] = []
    for shards in (40, 400):
        store = open_store(f"sqlite:///{tmp_path}/{shards}.db")
        settled_group(store, shards, 3)
        store.register(KEY, Node(NodeName("n3"), 0, "n3-1"), observer="test")
        with counted() as cost:
            report = planner(store).tick()
        assert {len(held) for held in report.owned.values()} == {shards // 4}
        costs.append(cost.statements)
        store.close()
    assert costs[0] == costs[1] <= 20


def test_a_long_shard_list_is_added_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No transaction takes longer with the list; a parent of another portion is waited for."""
    monkeypatch.setattr("dagster_leasehold.lease_store.roles.shards.ROWS_PER_TRANSACTION", 10)
    monkeypatch.setattr(rows_in_sql, "SHARDS_PER_PAGE", 5)  # the list ends with a page
    store = open_store(f"sqlite:///{tmp_path}/leases.db")
    store.create_group(Group(KEY))
    names = [ShardId(f"{number:02}") for number in range(25)]
    listing = [ShardListing(names[0], parents=(names[-1],)), *map(ShardListing, names[1:])]
    synced = store.sync_shards(KEY, listing, observer="test")
    snapshot = store.snapshot(KEY)
    assert synced.added == tuple(names) == tuple(row.shard for row in snapshot.shards)
    assert snapshot.group.generation == 3
    assert [row.shard for row in snapshot.shards if row.state is ShardState.WAIT] == names[:1]
    assert store.sync_shards(KEY, listing, observer="test") == ShardsSynced()
    store.close()


def test_claims_are_written_node_by_node_and_not_shard_by_shard(tmp_path: Path):
    """Two thousand free shards are four transactions, and one statement for most nodes."""
    store = open_store(f"sqlite:///{tmp_path}/leases.db")
    store.create_group(Group(KEY))
    listing = [ShardListing(ShardId(str(number))) for number in range(2_000)]
    store.sync_shards(KEY, listing, observer="test")
    for number in range(40):
        store.register(KEY, Node(NodeName(f"n{number}"), 0, f"{number}"), observer="test")
    with counted() as cost:
        report = planner(store).tick()
    store.close()
    assert {len(held) for held in report.owned.values()} == {50}
    assert 40 < cost.statements < 80
