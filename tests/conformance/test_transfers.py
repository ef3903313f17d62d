"""Transfers: a shard on its way from a live holder to the next node."""

from __future__ import annotations

import pytest

from dagster_leasehold.lease_store.errors import LeaseLost
from dagster_leasehold.lease_store.outcomes import Changed, NotHeld, OpenByOther, Stale
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardListing
from tests.conformance.world import A, B, C, World, X, Y


@pytest.fixture
def moving(world: World) -> World:
    """Shard x, open by run-1 of node a, on its way to node b."""
    world.group()
    world.join(A, B, C)
    world.add(X)
    world.hold(A, X)
    assert world.transfer(X, B) == Changed((X,))
    return world


def test_the_holder_consumes_until_it_releases_the_shard(moving: World) -> None:
    shard = moving.shard(X)
    assert shard.state is ShardState.TRANSFER
    assert (shard.lease_owner, shard.consumer_owner) == (B, A)
    assert (shard.consumer_epoch, shard.consumer_run) == (1, "run-1")
    edge = moving.journal(X)[-1]
    assert (edge.edge, edge.from_owner, edge.to_owner, edge.reason) == (5, A, B, "balance")


def test_the_holder_can_commit_and_sees_the_next_node(moving: World) -> None:
    opened = moving.store.open_tenure(moving.key, X, A, "run-1")
    assert opened == OpenByOther("run-1")
    tenure = tenure_of(moving)
    assert isinstance(moving.consume(tenure, "0", "5"), Changed)
    view = moving.store.review([tenure])[X]
    assert (view.current, view.transfer_to, view.paused) == (True, B, False)


def test_a_release_completes_the_transfer(moving: World) -> None:
    tenure = tenure_of(moving)
    moving.consume(tenure, "0", "5")
    before = moving.generation()
    moving.store.close_tenure(tenure, reason="handed over at a batch boundary")
    shard = moving.shard(X)
    assert shard.state is ShardState.ALREADY_ALLOC
    assert (shard.lease_owner, shard.consumer_owner, shard.consumer_run) == (B, B, "")
    assert moving.generation() == before + 1
    assert moving.edges(X) == [1, 3, 5, 6]
    opened = moving.open(B, X, "run-2")
    assert (opened.check_point, opened.tenure.epoch, opened.next_sequence) == ("5", 2, 1)
    with pytest.raises(LeaseLost):
        moving.store.close_tenure(tenure, reason="again")


def test_the_transfer_of_a_shard_without_a_run_completes_at_once(world: World) -> None:
    world.group()
    world.join(A, B)
    world.add(X)
    world.claim(A, X)
    world.transfer(X, B)
    shard = world.shard(X)
    assert (shard.state, shard.consumer_owner) == (ShardState.ALREADY_ALLOC, B)
    assert world.edges(X) == [1, 3, 5, 6]
    assert shard.lease_id == 3


def test_a_transfer_needs_a_held_shard_and_another_member(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X, Y, ShardListing(X.__class__("w"), parents=(X,)))
    assert world.transfer(X, A) == Stale()
    world.claim(A, X)
    before = world.generation()
    assert world.transfer(X, A) == Stale()
    assert world.transfer(X, B) == Stale()
    world.join(B)
    stale = world.store.begin_transfer(world.key, {X: (B, 0, "late")}, observer="test")[X]
    unknown = world.store.begin_transfer(
        world.key, {X.__class__("none"): (B, 0, "r")}, observer="test"
    )[X.__class__("none")]
    assert (stale, unknown) == (Stale(), Stale())
    assert world.generation() == before + 1  # b's joining alone


def test_a_shard_moves_to_one_node_at_a_time(moving: World) -> None:
    assert moving.transfer(X, C) == Stale()
    assert moving.shard(X).lease_owner == B


def test_a_cancelled_transfer_returns_the_shard_to_its_holder(moving: World) -> None:
    tenure = tenure_of(moving)
    lease_id = moving.shard(X).lease_id
    outcome = moving.store.cancel_transfer(moving.key, X, lease_id, observer="t", reason="r")
    assert outcome == Changed((X,))
    shard = moving.shard(X)
    assert (shard.state, shard.lease_owner) == (ShardState.ALREADY_ALLOC, A)
    assert moving.store.review([tenure])[X].current
    again = moving.store.cancel_transfer(moving.key, X, lease_id, observer="t", reason="r")
    current = moving.store.cancel_transfer(moving.key, X, shard.lease_id, observer="t", reason="r")
    assert (again, current) == (Stale(), Stale())


def test_a_passed_deadline_fences_the_holder(moving: World) -> None:
    """1. A's batch hangs. 2. B takes over. 3. A wakes and commits: nothing of it is visible."""
    tenure = tenure_of(moving)
    moving.intend(tenure, "0", "5")
    lease_id = moving.shard(X).lease_id
    outcome = moving.store.complete_transfer(
        moving.key, X, lease_id, observer="b", reason="deadline passed"
    )
    assert outcome == Changed((X,))
    next_tenure = moving.open(B, X, "run-2")
    assert next_tenure.tenure.epoch == 2
    assert next_tenure.intent is not None
    assert moving.kinds(X)[-3:] == ["close", "edge", "open"]
    from tests.conformance.world import a_commit

    assert moving.store.commit([a_commit(tenure, "0", "5")]) == {X: Stale()}
    with pytest.raises(LeaseLost):
        moving.store.save_checkpoint(tenure, "5")
    with pytest.raises(LeaseLost):
        moving.store.announce(tenure, handoff_eta_s=1)
    assert moving.store.batches(moving.key) == []
    assert isinstance(moving.consume(next_tenure.tenure, "0", "5"), Changed)


def test_completing_needs_the_seen_lease_and_a_live_next_node(moving: World) -> None:
    lease_id = moving.shard(X).lease_id
    stale = moving.store.complete_transfer(moving.key, X, lease_id - 1, observer="b", reason="late")
    assert stale == Stale()
    moving.store.leave(moving.key, B, "b-1")
    gone = moving.store.complete_transfer(
        moving.key, X, moving.shard(X).lease_id, observer="b", reason="late"
    )
    assert gone == Stale()
    assert moving.shard(X).consumer_owner == A


def test_the_next_node_cannot_open_the_shard_before_its_release(moving: World) -> None:
    assert moving.store.open_tenure(moving.key, X, B, "run-2") == NotHeld("transfer", A)


def test_replacing_a_dead_run_completes_its_transfer(moving: World) -> None:
    """The holder's run died in a transfer: naming it as ended lets the shard continue to b."""
    outcome = moving.store.open_tenure(moving.key, X, A, "run-2", replaces="run-1")
    assert outcome == NotHeld("transfer", B)
    shard = moving.shard(X)
    assert (shard.state, shard.consumer_owner) == (ShardState.ALREADY_ALLOC, B)
    assert moving.kinds(X)[-2:] == ["close", "edge"]


def test_a_finished_shard_ends_its_transfer(moving: World) -> None:
    """Edge 8 from transfer: there is nothing left to hand over."""
    tenure = tenure_of(moving)
    assert isinstance(moving.consume(tenure, "0", "5", finished=True), Changed)
    shard = moving.shard(X)
    assert shard.state is ShardState.OVER
    assert (shard.lease_owner, shard.consumer_owner) == (None, None)
    assert moving.edges(X) == [1, 3, 5, 8]


def test_an_announced_eta_is_published_and_cleared_at_the_end(moving: World) -> None:
    tenure = tenure_of(moving)
    before = moving.generation()
    moving.store.announce(tenure, handoff_eta_s=4.5)
    assert moving.shard(X).handoff_eta_s == 4.5
    # Planners keep their snapshot while the generation stalls: in a transfer they must see.
    assert moving.generation() == before + 1
    moving.store.close_tenure(tenure, reason="done")
    assert moving.shard(X).handoff_eta_s is None


def tenure_of(world: World):
    from dagster_leasehold.lease_store.shard_rows import Tenure

    row = world.shard(X)
    assert row.consumer_owner is not None
    return Tenure(world.key, X, row.consumer_owner, row.consumer_epoch, row.consumer_run)
