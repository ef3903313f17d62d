"""The table of edges, and where a shard begins."""

from __future__ import annotations

from itertools import product

import pytest

from dagster_leasehold.lease_store.rules.lineage import freed_to_start
from dagster_leasehold.lease_store.rules.states import EDGES, ShardState, first_state, may_start
from dagster_leasehold.lease_store.rules.transitions import FINISHED

WAIT, FREE, HELD = ShardState.WAIT, ShardState.NOT_ALLOC, ShardState.ALREADY_ALLOC
MOVING, OVER = ShardState.TRANSFER, ShardState.OVER


def test_the_values_are_those_of_the_column() -> None:
    assert {state.value for state in ShardState} == {
        "wait", "not_alloc", "already_alloc", "transfer", "over",
    }  # fmt: skip


def test_the_edges_are_the_ten_of_the_table() -> None:
    assert EDGES == {
        (None, WAIT): 1,
        (None, FREE): 1,
        (WAIT, FREE): 2,
        (FREE, HELD): 3,
        (HELD, FREE): 4,
        (HELD, MOVING): 5,
        (MOVING, HELD): 6,
        (OVER, FREE): 7,
        (HELD, OVER): 8,
        (MOVING, OVER): 8,
        (MOVING, FREE): 9,
        (FREE, WAIT): 10,
    }


def test_each_state_says_whether_a_shard_is_held_and_consumable() -> None:
    assert {state for state in ShardState if state.held} == {HELD, MOVING}
    assert {state for state in ShardState if state.consumable} == {FREE, HELD, MOVING}


@pytest.mark.parametrize("state", ShardState)
def test_a_child_waits_until_its_parent_is_over(state: ShardState) -> None:
    begins = first_state(ordered=True, parents=("p",), states={"p": state})
    assert begins is (FREE if state is OVER else WAIT)
    assert may_start(ordered=True, parents=("p",), states={"p": state}) is (state is OVER)
    assert first_state(ordered=False, parents=("p",), states={"p": state}) is FREE


def test_a_merge_waits_for_all_its_parents() -> None:
    for left, right in product(ShardState, ShardState):
        states = {"l": left, "r": right}
        ready = may_start(ordered=True, parents=("l", "r"), states=states)
        assert ready is (left is OVER and right is OVER)


def test_a_child_waits_for_an_unknown_parent_unless_the_source_removed_it() -> None:
    assert first_state(ordered=True, parents=("p",), states={}) is WAIT
    assert first_state(ordered=True, parents=("p",), states={}, removed=("p",)) is FREE
    assert first_state(ordered=True, parents=("p", "q"), states={"q": OVER}, removed=("q",)) is WAIT
    assert first_state(ordered=True, parents=("p",), states={"p": HELD}, removed=("p",)) is WAIT
    assert first_state(ordered=False, parents=("p",), states={}) is FREE
    assert first_state(ordered=True, parents=(), states={}) is FREE


def test_without_waiting_children_no_shard_is_freed() -> None:
    assert freed_to_start([], ordered=True, reason=FINISHED) == []
