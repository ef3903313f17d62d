"""The order among nodes that are equal to the balanced rule; other tests leave it open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.rules.planning import balanced_quotas, plan, tie_break
from tests.unit.lease_store.group_pictures import NODES, carried_out, node, shard, snapshot

A, B, C = NODES[:3]


def test_equal_nodes_are_ordered_by_natural_order_of_names() -> None:
    names = [NodeName(name) for name in ("node-10", "node-b", "node-2", "node-a")]
    assert sorted(names, key=tie_break) == ["node-2", "node-10", "node-a", "node-b"]


def test_the_first_of_equal_nodes_gets_the_larger_share_and_the_next_shard() -> None:
    assert balanced_quotas({C: 0, A: 0, B: 0}, 8) == {A: 3, B: 3, C: 2}
    nodes = [node(name) for name in (C, B, A)]
    actions = plan(snapshot(nodes, [shard("0"), shard("1")]), live=NODES).actions
    assert [(action.shard, action.gains) for action in actions] == [("0", A), ("1", B)]


def test_a_node_that_holds_more_comes_before_equal_ones() -> None:
    """It can then keep one shard more, which makes the moves fewest."""
    assert balanced_quotas({A: 0, B: 0, C: 3}, 4) == {A: 1, B: 1, C: 2}


@pytest.mark.parametrize("first", [A, B, C])
def test_the_first_planner_keeps_the_shares_of_the_others(first: NodeName) -> None:
    nodes = [node(name) for name in (A, B, C)]
    empty = snapshot(nodes, [shard(str(number)) for number in range(8)])
    before = plan(empty, live=NODES)
    own = tuple(action for action in before.actions if action.gains == first)
    after = plan(carried_out(empty, before.__class__(1, actions=own)), live=NODES)
    assert dict(after.counts) == dict(before.counts)


@given(st.lists(st.sampled_from(NODES), min_size=1, unique=True), st.integers(0, 40))
def test_the_order_is_total_and_depends_only_on_the_nodes(
    nodes: list[NodeName], shards: int
) -> None:
    assert len({tie_break(name) for name in nodes}) == len(nodes)
    quotas = balanced_quotas(dict.fromkeys(nodes, 0), shards)
    assert quotas == balanced_quotas(dict.fromkeys(reversed(nodes), 0), shards)
    assert sum(quotas.values()) == shards
