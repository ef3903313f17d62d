"""The rows of `status` and `top`: liveness, rates, and the tree of splits and merges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dagster_leasehold.lease_store.group_rows import Group, Node, Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.orchestration.group_view import (
    GroupReader,
    GroupView,
    Liveness,
    ShardRow,
    node_rows,
    total,
    tree,
)
from tests.unit.orchestration.consumed_home import KEY, ConsumedHome

A, B, C = NodeName("a"), NodeName("b"), NodeName("c")


def shard_row(shard: str, *parents: str) -> ShardRow:
    return ShardRow(
        ShardId(shard),
        ShardState.ALREADY_ALLOC,
        A,
        None,
        "0",
        0,
        0.0,
        None,
        0.0,
        1,
        "",
        tuple(map(ShardId, parents)),
    )


def snapshot_of(*nodes: Node, shards: Sequence[ShardLease] = ()) -> Snapshot:
    return Snapshot(Group(GroupKey.parse("group", "stream"), timeout_s=20.0), nodes, tuple(shards))


def test_a_node_is_silent_once_its_last_beat_is_older_than_the_timeout() -> None:
    nodes = (Node(A, 7, "a-1"), Node(B, 9, "b-1"), Node(C, 4, ""))
    rows = node_rows(snapshot_of(*nodes), {A: 20.0, B: 20.1})
    assert [row.liveness for row in rows] == [Liveness.ALIVE, Liveness.SILENT, Liveness.LEFT]
    assert [row.last_beat_s for row in rows] == [20.0, 20.1, None]


@pytest.mark.parametrize(
    ("nodes", "ages", "words"),
    [
        ((Node(A, 7, "a-1"), Node(B, 9, "b-1")), {A: 2_400.0, B: 3.0}, None),
        ((Node(A, 7, "a-1"), Node(C, 4, "")), {A: 2_400.0}, "last heartbeat 40 min ago"),
        ((Node(C, 4, ""),), {}, "no members"),
    ],
    ids=["one is alive", "all are silent", "all have left"],
)
def test_a_dead_deployment_is_reported_as_dead(
    nodes: tuple[Node, ...], ages: dict[NodeName, float], words: str | None
) -> None:
    snapshot = snapshot_of(*nodes)
    death = GroupView(snapshot, node_rows(snapshot, ages), ()).death()
    assert (death is None) if words is None else (death is not None and words in death)


def test_children_are_listed_below_their_parents() -> None:
    """0 was split into 4 and 5; 5 and 1 were merged into 6; the parents of 2 are gone."""
    rows = [
        shard_row("0"),
        shard_row("1"),
        shard_row("2", "9"),
        shard_row("4", "0"),
        shard_row("5", "0"),
        shard_row("6", "5", "1"),
    ]
    assert [(depth, row.shard) for depth, row in tree(rows)] == [
        (0, "0"),
        (1, "4"),
        (1, "5"),
        (2, "6"),
        (0, "1"),
        (0, "2"),
    ]


def test_a_long_lineage_is_shown_completely() -> None:
    rows = [shard_row(str(n), *([str(n - 1)] if n else [])) for n in range(5_000)]
    assert [depth for depth, _ in tree(rows)] == list(range(5_000))


def test_a_sum_is_unknown_if_a_part_of_it_is() -> None:
    assert total([1, 2.5]) == 3.5
    assert total([1, None]) is None


def test_rates_and_the_time_until_caught_up_come_from_readings(tmp_path: Path) -> None:
    """Method: a real log and store; the clock is the test's own."""
    home = ConsumedHome(tmp_path / "home", records_max=4)
    at_s = 100.0
    reader = GroupReader(
        home.store, KEY, home.log, lambda: at_s, lambda: datetime(2026, 1, 1, tzinfo=UTC)
    )
    home.append(12)
    first = {row.shard: row for row in reader.read().shards}
    assert {(row.lag, row.rate, row.caught_up_s) for row in first.values()} == {(12, None, None)}
    home.consume("run-1")
    home.append(3)
    at_s = 104.0
    view = reader.read()
    assert {(row.lag, row.rate) for row in view.shards} == {(3, 3.0)}
    # Nine fewer in four seconds: three more take a third of that.
    assert [row.caught_up_s for row in view.shards] == [pytest.approx(4 / 3)] * 2
    home.append(20)
    at_s = 105.0
    assert {row.caught_up_s for row in reader.read().shards} == {None}
    home.consume("run-2")
    at_s = 170.0
    caught_up = reader.read()
    assert {(row.lag, row.caught_up_s) for row in caught_up.shards} == {(0, 0.0)}
    assert caught_up.death() is None
    home.store.close()


def test_a_reading_costs_three_reads_of_the_store(tmp_path: Path) -> None:
    home = ConsumedHome(tmp_path / "home")
    reader = GroupReader(home.store, KEY, home.log)
    reader.read()
    before = home.store.statements.copy()
    reader.read()
    cost = home.store.statements - before
    assert cost.keys() == {"snapshot", "beat_ages", "totals"}
    home.store.close()


def test_a_transfer_names_the_next_owner(tmp_path: Path) -> None:
    home = ConsumedHome(tmp_path / "home")
    home.store.register(KEY, replace(Node(B, 0, "b-1")), observer="test")
    (lease, *_) = home.store.snapshot(KEY).shards
    home.store.open_tenure(KEY, lease.shard, NodeName("a"), "run-1")
    moves = {lease.shard: (B, lease.lease_id, "balance")}
    home.store.begin_transfer(KEY, moves, observer="test")
    row = next(
        row for row in GroupReader(home.store, KEY, home.log).read().shards if row.next_owner
    )
    assert (row.shard, row.consumer_owner, row.next_owner) == (lease.shard, "a", "b")
    home.store.close()
