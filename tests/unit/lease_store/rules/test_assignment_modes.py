"""Modulo and pinned groups: the settings of nodes, and refusals."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from dagster_leasehold.lease_store.errors import (
    AssignmentConflict,
    ModuloCountMismatch,
    ModuloIdOutOfRange,
    ModuloIdTaken,
    ModuloSettingMissing,
    ShardOccupied,
    UnknownShard,
)
from dagster_leasehold.lease_store.group_rows import AssignmentMode, Group, Node, Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.assignment_plan import BeginTransfer, check_member
from dagster_leasehold.lease_store.rules.planning import plan
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from tests.unit.lease_store.group_pictures import (
    KEY,
    NODES,
    carried_out,
    moves_of,
    node,
    shard,
    snapshot,
)

# -- modulo -----------------------------------------------------------------------------------


def modulo(name: str, count: int | None, remainder: int | None) -> Node:
    return node(name, source_count=count, node_id=remainder)


def modulo_group(nodes: list[Node], shards: list[ShardLease]) -> Snapshot:
    return snapshot(nodes, shards, assignment=AssignmentMode.MODULO)


def test_modulo_numbers_all_listed_shards() -> None:
    leases = [shard(str(i)) for i in range(12)]
    leases[1] = replace(leases[1], state=ShardState.OVER)
    leases[2] = replace(leases[2], subscribable=False)
    nodes = [modulo("node-a", 3, 0), modulo("node-b", 3, 1)]
    decided = plan(modulo_group(nodes, leases), live=NODES)
    gains = {action.shard: action.gains for action in decided.actions}
    assert gains == dict.fromkeys(["0", "3", "6", "9"], "node-a") | dict.fromkeys(
        ["4", "7", "10"], "node-b"
    )
    assert {left.shard for left in decided.unassigned} == {"2", "5", "8", "11"}


def test_modulo_keeps_a_closed_shard_on_its_node() -> None:
    leases = [replace(shard("0", "node-b"), subscribable=False)]
    nodes = [modulo("node-a", 2, 0), modulo("node-b", 2, 1)]
    assert plan(modulo_group(nodes, leases), live=NODES).actions == ()


def test_modulo_moves_a_shard_to_the_node_that_its_rank_names() -> None:
    leases = [shard("0", "node-b"), shard("1", "node-b")]
    nodes = [modulo("node-a", 2, 0), modulo("node-b", 2, 1)]
    actions = plan(modulo_group(nodes, leases), live=NODES).actions
    assert [(type(action), action.shard, action.gains) for action in actions] == [
        (BeginTransfer, "0", "node-a")
    ]


@pytest.mark.parametrize(
    ("members", "candidate", "error"),
    [
        ([("node-a", 3, 0)], ("node-b", 2, 1), ModuloCountMismatch),
        ([("node-a", 3, 0)], ("node-b", 3, 0), ModuloIdTaken),
        ([("node-a", 3, 0)], ("node-b", None, None), ModuloSettingMissing),
        ([("node-a", 3, 0)], ("node-b", 3, None), ModuloSettingMissing),
        ([("node-a", 3, 0)], ("node-b", -1, 1), ModuloCountMismatch),
        ([("node-a", -1, None)], ("node-b", 3, 1), ModuloCountMismatch),
        ([], ("node-b", 3, 3), ModuloIdOutOfRange),
        ([], ("node-b", 3, -1), ModuloIdOutOfRange),
        ([], ("node-b", 0, 0), ModuloIdOutOfRange),
    ],
)
def test_modulo_refuses_contradictions_in_any_order(
    members: list[tuple[str, int, int]],
    candidate: tuple[str, int | None, int | None],
    error: type[AssignmentConflict],
) -> None:
    group = Group(KEY, assignment=AssignmentMode.MODULO)
    rows = [modulo(*member) for member in members]
    with pytest.raises(error):
        check_member(group, rows, modulo(*candidate))
    for order in itertools.permutations([*rows, modulo(*candidate)]):
        decided = plan(modulo_group(list(order), [shard("0"), shard("1")]), live=NODES)
        assert decided.actions == ()
        assert isinstance(decided.refusals[0].error, AssignmentConflict)


def test_modulo_accepts_a_returning_node_and_ignores_nodes_that_left() -> None:
    group = Group(KEY, assignment=AssignmentMode.MODULO)
    left = replace(modulo("node-b", 5, 0), incarnation="")
    check_member(group, [modulo("node-a", 3, 0), left], modulo("node-a", 3, 0))


def test_modulo_returns_a_shard_whose_transfer_contradicts_its_rank() -> None:
    """Shard 0 is node-a's by its rank, and on its way from node-c to node-b."""
    leases = [shard("0", "node-b", holder="node-c"), shard("1", "node-b")]
    nodes = [modulo("node-a", 3, 0), modulo("node-b", 3, 1), modulo("node-c", 3, 2)]
    first = plan(modulo_group(nodes, leases), live=NODES)
    assert moves_of(first) == [("CancelTransfer", "0", "node-c")]
    after = carried_out(modulo_group(nodes, leases), first)
    assert moves_of(plan(after, live=NODES)) == [("BeginTransfer", "0", "node-a")]


def test_modulo_leaves_the_shards_of_a_missing_node_unassigned() -> None:
    leases = [shard("0", "node-a"), shard("1", "node-a"), shard("2", "node-b")]
    nodes = [modulo("node-a", 3, 0), modulo("node-b", 3, 2)]
    decided = plan(modulo_group(nodes, leases), live=NODES)
    assert decided.actions == ()
    assert dict(decided.counts) == {"node-a": 2, "node-b": 1}
    assert [str(left) for left in decided.unassigned] == [
        "no new node for shard 1: no live node that takes runs has node_id 1 of 3"
    ]


def test_modulo_with_one_node_gives_it_everything() -> None:
    decided = plan(modulo_group([modulo("node-a", 1, 0)], [shard("0"), shard("1")]), live=NODES)
    assert [action.gains for action in decided.actions] == ["node-a", "node-a"]


def test_negative_counts_need_no_node_id_and_may_share_one() -> None:
    group = Group(KEY, assignment=AssignmentMode.MODULO)
    check_member(group, [modulo("node-a", -1, 0)], modulo("node-b", -1, 0))
    balanced = Group(KEY, assignment=AssignmentMode.BALANCED)
    check_member(balanced, [modulo("node-a", 3, 0)], modulo("node-b", 3, 0))


def test_negative_counts_switch_modulo_off() -> None:
    nodes = [modulo("node-a", -1, None), modulo("node-b", -1, None)]
    decided = plan(modulo_group(nodes, [shard("0"), shard("1")]), live=NODES)
    assert dict(decided.counts) == {"node-a": 1, "node-b": 1}
    assert decided.refusals == ()


# -- pinned -----------------------------------------------------------------------------------


def pinned(name: str, *shards: str) -> Node:
    return node(name, pinned={ShardId(each): None for each in shards})


def test_pinned_nodes_claim_only_the_shards_that_they_name() -> None:
    leases = [shard("0"), shard("1"), shard("2", "node-b")]
    snap = snapshot(
        [pinned("node-a", "0"), pinned("node-b")], leases, assignment=AssignmentMode.PINNED
    )
    decided = plan(snap, live=NODES)
    assert [(action.shard, action.gains) for action in decided.actions] == [("0", "node-a")]
    assert {left.shard for left in decided.unassigned} == {"1", "2"}


def test_pinned_refuses_an_occupied_shard_and_an_unknown_one() -> None:
    snap = snapshot(
        [pinned("node-a", "0"), pinned("node-b", "0", "9")],
        [shard("0", "node-b")],
        assignment=AssignmentMode.PINNED,
    )
    decided = plan(snap, live=NODES)
    assert decided.actions == ()
    assert [(refusal.node, type(refusal.error)) for refusal in decided.refusals] == [
        ("node-b", UnknownShard),
        ("node-a", ShardOccupied),
    ]


def test_pinned_shards_of_a_dead_node_wait_for_its_eviction() -> None:
    snap = snapshot(
        [pinned("node-a", "0"), pinned("node-b")],
        [shard("0", "node-b")],
        assignment=AssignmentMode.PINNED,
    )
    decided = plan(snap, live={NodeName("node-a")})
    assert decided.actions == ()
    assert dict(decided.counts) == {"node-a": 1}
    assert decided.unassigned == ()
