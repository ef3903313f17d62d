"""A pinned shard starts at its bootstrap cursor: once, for its holder, and beside no other run."""

from __future__ import annotations

import pytest

from dagster_leasehold.lease_store.errors import CheckpointRefused, UnknownShard
from dagster_leasehold.lease_store.group_rows import AssignmentMode
from dagster_leasehold.lease_store.ledger_rows import BatchState
from dagster_leasehold.lease_store.outcomes import Changed, Stale
from dagster_leasehold.lease_store.rules.verification import verify
from tests.conformance.world import A, B, World, X


@pytest.fixture
def held(world: World) -> World:
    """Shard x is held by node a, which pins it."""
    world.group(assignment=AssignmentMode.PINNED)
    world.join(A, B)
    world.add(X)
    world.claim(A, X)
    return world


def start(world: World, cursor: str, node: object = A, run: str = "run-1") -> Changed | Stale:
    return world.store.bootstrap(world.key, X, node, cursor, run=run)  # type: ignore[arg-type]


def test_a_shard_without_a_checkpoint_starts_at_the_bootstrap_cursor_once(held: World) -> None:
    assert start(held, "5") == Changed((X,))
    row = held.shard(X)
    assert (row.check_point, row.bootstrap, row.consumer_epoch) == ("5", "5", 1)
    force = held.journal(X)[-1]
    assert (force.kind, force.check_point, force.observer) == ("force", "5", "run run-1")
    assert force.reason == "the settings of a start it at 5"
    generation = held.generation()
    assert start(held, "5") == Stale()
    assert held.generation() == generation


def test_a_repeated_bootstrap_does_not_go_back_over_committed_records(held: World) -> None:
    start(held, "5")
    opened = held.open(A, X)
    assert opened.check_point == "5"
    held.consume(opened.tenure, "5", "9")
    held.store.close_tenure(opened.tenure, reason="done")
    assert start(held, "5", run="run-2") == Stale()
    held.store.leave(held.key, A, "a-1")
    held.claim(B, X)
    assert start(held, "5", node=B, run="run-3") == Stale()
    assert held.shard(X).check_point == "9"
    assert verify(held.store, held.key) == []


def test_another_bootstrap_cursor_withdraws_the_batches_after_it(held: World) -> None:
    tenure = held.open(A, X).tenure
    held.consume(tenure, "0", "5")
    held.consume(tenure, "5", "9", 1)
    held.store.close_tenure(tenure, reason="done")
    assert start(held, "5", run="run-2") == Changed((X,))
    states = [batch.state for batch in held.store.batches(held.key, X, state=None)]
    assert states == [BatchState.COMMITTED, BatchState.WITHDRAWN]
    assert start(held, "0", run="run-3") == Changed((X,))
    assert held.shard(X).bootstrap == "0"
    assert verify(held.store, held.key) == []


def test_a_cursor_inside_a_batch_is_refused_and_changes_nothing(held: World) -> None:
    tenure = held.open(A, X).tenure
    held.consume(tenure, "0", "5")
    held.store.close_tenure(tenure, reason="done")
    before = held.shard(X)
    with pytest.raises(CheckpointRefused):
        start(held, "3")
    assert held.shard(X) == before


def test_a_bootstrap_needs_the_holder_and_no_other_run(held: World) -> None:
    assert start(held, "5", node=B) == Stale()
    tenure = held.open(A, X, "run-1").tenure
    assert start(held, "5", run="run-2") == Stale()
    held.transfer(X, B)
    assert start(held, "5", run="run-1") == Stale()
    assert held.store.review([tenure])[X].current


def test_a_forced_checkpoint_overrides_an_earlier_bootstrap(held: World) -> None:
    start(held, "5")
    held.store.force_checkpoint(held.key, X, "7", observer="ops", reason="r")
    assert start(held, "5") == Stale()
    assert held.shard(X).check_point == "7"


def test_a_bootstrap_of_an_unknown_shard_is_refused(world: World) -> None:
    world.group()
    world.join(A)
    with pytest.raises(UnknownShard):
        start(world, "5")
