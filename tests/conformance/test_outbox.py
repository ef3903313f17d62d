"""Hook events: a commit leaves them, and only the process with the lock delivers them, in order."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_leasehold.lease_store.journal_rows import DeliveryClaim, EventKind
from dagster_leasehold.lease_store.outcomes import LockOver, LockTaken, Settled
from dagster_leasehold.lease_store.shard_rows import Tenure
from tests.conformance.test_races import at_once
from tests.conformance.world import A, B, World, X, Y, a_commit

HOOK = EventKind.HOOK


@pytest.fixture
def tenures(world: World) -> list[Tenure]:
    """Nodes a and b alive; a holds x and y."""
    world.group()
    world.join(A, B)
    world.add(X, Y)
    return world.hold(A, X, Y)


def commit(world: World, tenure: Tenure, *numbers: int, hooked: bool = True) -> None:
    for n in numbers:
        world.consume(tenure, str(n), str(n + 1), n, hooked=hooked)


def waiting(world: World) -> list[tuple[str, int, str]]:
    waiting = world.store.waiting_events(world.key, HOOK)
    return [(each.shard, each.count, each.oldest.batch_id) for each in waiting]


def take(world: World, node: Any) -> DeliveryClaim:
    claim = world.store.take_delivery_lock(world.key, node, world.incarnations[node])
    assert isinstance(claim, DeliveryClaim)
    return claim


def test_a_commit_leaves_an_event_for_the_hook(world: World, tenures: list[Tenure]) -> None:
    commit(world, tenures[0], 0)
    (event,) = world.store.pending_events(world.key, kind=HOOK)
    assert (event.kind, event.shard, event.batch_id, event.run) == (HOOK, X, "x.0", "run-1")
    assert (event.attempts, event.error) == (0, "")
    assert (event.payload["start"], event.payload["end"]) == ("0", "1")
    assert event.payload["files"] == ["x/0.parquet"]
    (shown,) = world.store.pending_events(world.key)
    assert (shown.kind, shown.batch_id) == (EventKind.MATERIALIZATION, "x.0")
    assert "files" not in shown.payload


def test_a_commit_without_a_hook_leaves_no_event(world: World, tenures: list[Tenure]) -> None:
    commit(world, tenures[0], 0, hooked=False)
    assert waiting(world) == []
    assert len(world.store.pending_events(world.key)) == 1


def test_a_repeated_commit_leaves_one_event(world: World, tenures: list[Tenure]) -> None:
    commit(world, tenures[0], 0)
    world.store.commit([a_commit(tenures[0], "0", "1", hooked=True)])
    assert waiting(world) == [("x", 1, "x.0")]


def test_the_oldest_event_of_each_shard_comes_next(world: World, tenures: list[Tenure]) -> None:
    x, y = tenures
    commit(world, y, 0, 1)
    commit(world, x, 0, 1, 2)
    assert waiting(world) == [("x", 3, "x.0"), ("y", 2, "y.0")]
    of_x = world.store.pending_events(world.key, kind=HOOK, shard=X, limit=2)
    assert [event.batch_id for event in of_x] == ["x.0", "x.1"]
    claim = take(world, A)
    assert world.store.settle_event(claim, of_x[0].sequence) == Settled()
    assert world.store.settle_event(claim, of_x[0].sequence) == Settled(), "settled is settled"
    assert waiting(world) == [("x", 2, "x.1"), ("y", 2, "y.0")]
    # The same batches still have to be reported to Dagster.
    assert len(world.store.pending_events(world.key)) == 5


def test_a_failed_delivery_is_counted_and_stores_its_error_in_one_line(
    world: World, tenures: list[Tenure]
) -> None:
    commit(world, tenures[0], 0)
    claim = take(world, A)
    (event,) = world.store.pending_events(world.key, kind=HOOK)
    hostile = "\nboom \x1b[31m" + "ü" * 1_000 + "\npassword=s3cret"
    for _ in range(3):
        assert world.store.settle_event(claim, event.sequence, error=hostile) == Settled()
    (event,) = world.store.pending_events(world.key, kind=HOOK)
    assert event.attempts == 3
    assert event.error.startswith("boom ?[31mü")
    assert len(event.error.encode()) <= 300
    assert "s3cret" not in event.error
    assert event.error.isprintable()


def test_one_node_has_the_lock(world: World, tenures: list[Tenure]) -> None:
    commit(world, tenures[0], 0)
    claim = take(world, A)
    assert world.store.take_delivery_lock(world.key, B, "b-1") == LockTaken(A)
    again = take(world, A)
    assert again.epoch == claim.epoch + 1, "taking it again fences the lock before"
    (event,) = world.store.pending_events(world.key, kind=HOOK)
    assert world.store.settle_event(claim, event.sequence) == LockOver()
    assert world.store.settle_event(claim, event.sequence, error="late") == LockOver()
    assert world.store.release_delivery_lock(claim) == LockOver()
    assert waiting(world) == [("x", 1, "x.0")]
    assert world.store.release_delivery_lock(again) == Settled()
    assert world.store.release_delivery_lock(again) == LockOver()
    assert take(world, B).epoch == again.epoch + 1


@pytest.mark.parametrize("how", ["evicted", "left", "another incarnation"])
def test_another_node_takes_the_lock_of_a_dead_node(
    world: World, tenures: list[Tenure], how: str
) -> None:
    """1. a takes the lock and stops; 2. its lease lapses; 3. b delivers; 4. a wakes up."""
    commit(world, tenures[0], 0)
    claim = take(world, A)
    if how == "left":
        world.store.leave(world.key, A, "a-1")
    else:
        counter = world.node(A).lease_id
        world.store.evict(world.key, A, counter, observer="b", reason="silent")
    if how == "another incarnation":
        world.register(A, "a-2")
    assert take(world, B).epoch == claim.epoch + 1
    (event,) = world.store.pending_events(world.key, kind=HOOK)
    assert world.store.settle_event(claim, event.sequence) == LockOver()
    assert waiting(world) == [("x", 1, "x.0")]


def test_only_a_live_node_takes_the_lock(world: World, tenures: list[Tenure]) -> None:
    assert world.store.take_delivery_lock(world.key, A, "a-0") == LockTaken(None)
    assert world.store.take_delivery_lock(world.key, A, "") == LockTaken(None)
    world.store.leave(world.key, A, "a-1")
    assert world.store.take_delivery_lock(world.key, A, "a-1") == LockTaken(None)
    assert world.store.take_delivery_lock(world.key, A, "") == LockTaken(None)


def test_one_of_two_nodes_takes_the_lock(world: World, tenures: list[Tenure]) -> None:
    outcomes = at_once(
        lambda: world.store.take_delivery_lock(world.key, A, "a-1"),
        lambda: world.store.take_delivery_lock(world.key, B, "b-1"),
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["DeliveryClaim", "LockTaken"]
