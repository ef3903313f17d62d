"""Shards: the shard list, claims, orphans, forced checkpoints."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from dagster_leasehold.lease_store.errors import LeaseLost, UnknownShard
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchState
from dagster_leasehold.lease_store.outcomes import Changed, ShardsSynced, Stale
from dagster_leasehold.lease_store.rules.planning import orphans
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.shard_rows import ShardListing
from tests.conformance.world import A, B, C, World, X, Y, Z

LISTED = ShardListing(X, hash_begin="00", hash_end="7f", read_only=True, subscribable=False)


def test_a_new_shard_is_free(world: World) -> None:
    world.group()
    synced = world.store.sync_shards(world.key, [LISTED], observer="sensor")
    assert synced == ShardsSynced(added=(X,))
    shard = world.shard(X)
    assert (shard.state, shard.lease_id, shard.check_point) == (ShardState.NOT_ALLOC, 0, None)
    assert (shard.hash_begin, shard.hash_end) == ("00", "7f")
    assert (shard.read_only, shard.subscribable) == (True, False)
    (entry,) = world.journal(X)
    assert (entry.edge, entry.observer, entry.to_state) == (1, "sensor", ShardState.NOT_ALLOC)


def test_the_same_list_again_changes_nothing(world: World) -> None:
    world.group()
    world.add(LISTED)
    before = world.generation()
    again = world.store.sync_shards(world.key, [LISTED], observer="sensor")
    assert again == ShardsSynced()
    assert world.generation() == before
    assert len(world.journal()) == 1


def test_flags_and_lineage_follow_the_list(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X)
    world.claim(A, X)
    before = world.shard(X)
    synced = world.store.sync_shards(world.key, [LISTED], observer="sensor")
    assert synced == ShardsSynced(changed=(X,))
    after = world.shard(X)
    assert after == replace(
        before, hash_begin="00", hash_end="7f", read_only=True, subscribable=False
    )


def test_a_shard_that_is_missing_from_the_list_stays(world: World) -> None:
    world.group()
    world.add(X, Y)
    world.add(Y)
    assert world.shard(X).state is ShardState.NOT_ALLOC


def test_children_wait_for_parents_of_the_same_list_in_any_order(world: World) -> None:
    world.group()
    world.add(ShardListing(Z, parents=(X, Y)), X, ShardListing(Y))
    assert world.shard(Z).state is ShardState.WAIT
    assert world.shard(Z).parents == (X, Y)


def test_a_child_does_not_wait_for_a_parent_that_the_source_removed(world: World) -> None:
    world.group()
    trimmed = ShardId("trimmed")
    world.add(ShardListing(Y, parents=(trimmed,), gone_parents=(trimmed,)))
    assert world.shard(Y).state is ShardState.NOT_ALLOC
    assert (world.shard(Y).parents, world.shard(Y).gone_parents) == ((trimmed,), (trimmed,))


def finish(world: World, shard: ShardId) -> Changed:
    (tenure,) = world.hold(A, shard)
    finished = world.store.finish_empty(tenure, "0")
    assert isinstance(finished, Changed)
    return finished


def test_a_merge_waits_for_a_parent_that_is_not_listed_yet(world: World) -> None:
    """1. z and its parent x are listed; 2. x is over; 3. y, the other parent, is listed."""
    world.group()
    world.join(A)
    listing = [ShardListing(X, read_only=True), ShardListing(Z, parents=(X, Y))]
    world.add(*listing)
    assert finish(world, X) == Changed()
    assert world.store.free_orphans(world.key, observer="test") == Changed()
    assert world.shard(Z).state is ShardState.WAIT
    world.add(*listing, ShardListing(Y, read_only=True))
    assert world.shard(Z).state is ShardState.WAIT
    assert finish(world, Y) == Changed((Z,))
    assert world.shard(Z).state is ShardState.NOT_ALLOC
    assert verify(world.store, world.key) == []


def test_a_child_stops_waiting_once_its_parent_is_known_to_be_removed(world: World) -> None:
    world.group()
    world.join(A)
    world.add(ShardListing(X, read_only=True), ShardListing(Z, parents=(X, Y)))
    finish(world, X)
    relisted = ShardListing(Z, parents=(X, Y), gone_parents=(Y,))
    synced = world.store.sync_shards(world.key, [relisted], observer="sensor")
    assert synced == ShardsSynced(changed=(Z,))
    assert orphans(world.store.snapshot(world.key)) != [], "a plan looks after it"
    assert world.store.free_orphans(world.key, observer="test") == Changed((Z,))
    assert verify(world.store, world.key) == []


def test_a_child_waits_for_a_known_parent_that_the_source_removed(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X, ShardListing(Y, parents=(X,)))
    world.add(ShardListing(Y, parents=(X,), gone_parents=(X,)))
    assert world.store.free_orphans(world.key, observer="test") == Changed()
    assert world.shard(Y).state is ShardState.WAIT
    world.add(ShardListing(Y))
    assert world.shard(Y).parents == (X,), "the source has forgotten it; the lineage has not"
    assert world.store.free_orphans(world.key, observer="test") == Changed()
    assert finish(world, X) == Changed((Y,))


def test_verify_reports_a_parent_that_was_listed_after_its_child_started(world: World) -> None:
    world.group()
    world.join(A)
    world.add(ShardListing(X, read_only=True), ShardListing(Z, parents=(X, Y), gone_parents=(Y,)))
    finish(world, X)
    world.hold(A, Z)
    assert verify(world.store, world.key) == []
    world.add(ShardListing(Y), ShardListing(Z, parents=(X, Y)))
    assert world.shard(Z).gone_parents == ()
    violations = verify(world.store, world.key)
    assert [(each.rule, each.shard) for each in violations] == [("order", Z)]
    assert "before its parent y was over" in violations[0].detail


def test_in_an_unordered_group_children_do_not_wait(world: World) -> None:
    world.group(ordered=False)
    world.add(X, ShardListing(Y, parents=(X,)))
    assert world.shard(Y).state is ShardState.NOT_ALLOC


def test_a_list_longer_than_one_statement_is_stored(world: World) -> None:
    """The list is longer than one statement; order and states equal those of a short list."""
    world.group()
    world.join(A)
    shards = [ShardId(f"s{number:04}") for number in range(1_200)]
    synced = world.store.sync_shards(
        world.key, [ShardListing(shard) for shard in reversed(shards)], observer="test"
    )
    assert list(synced.added) == shards
    claims = dict.fromkeys(shards, (A, 0))
    outcomes = world.store.claim(world.key, claims, observer="test", reason="test")
    assert outcomes == {shard: Changed((shard,)) for shard in shards}
    released = world.store.leave(world.key, A, "a-1")
    assert released == Changed(tuple(shards))


def test_a_claim_takes_free_shards(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X)
    outcome = world.store.claim(world.key, {X: (A, 0)}, observer="a", reason="its share")
    assert outcome == {X: Changed((X,))}
    shard = world.shard(X)
    assert (shard.state, shard.lease_id) == (ShardState.ALREADY_ALLOC, 1)
    assert (shard.lease_owner, shard.consumer_owner) == (A, A)
    edge = world.journal(X)[-1]
    assert (edge.edge, edge.reason, edge.observer, edge.to_owner) == (3, "its share", "a", A)


def test_the_first_of_two_claims_wins(world: World) -> None:
    world.group()
    world.join(A, B)
    world.add(X, Y)
    world.claim(A, X)
    before = world.generation()
    outcome = world.store.claim(world.key, {X: (B, 0)}, observer="b", reason="late")
    assert outcome == {X: Stale()}
    assert world.generation() == before
    assert world.store.claim(world.key, {X: (B, 1)}, observer="b", reason="held") == {X: Stale()}
    mixed = world.store.claim(world.key, {X: (B, 1), Y: (B, 0)}, observer="b", reason="mixed")
    assert mixed == {X: Stale(), Y: Changed((Y,))}
    assert world.shard(X).consumer_owner == A


def test_an_outdated_snapshot_cannot_claim_a_shard(world: World) -> None:
    """1. B sees x free, lease 0. 2. A claims x and leaves: free again, lease 2. 3. B claims x with
    lease 0, and its plan is outdated.
    """
    world.group()
    world.join(A, B)
    world.add(X)
    world.claim(A, X)
    world.store.leave(world.key, A, "a-1")
    assert world.store.claim(world.key, {X: (B, 0)}, observer="b", reason="r") == {X: Stale()}
    assert world.shard(X).state is ShardState.NOT_ALLOC
    assert world.store.claim(world.key, {X: (B, 2)}, observer="b", reason="r") == {X: Changed((X,))}


def test_claims_need_a_member_a_known_shard_and_a_free_one(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X, ShardListing(Y, parents=(X,)))
    claims = {X: (C, 0), Y: (A, 0), Z: (A, 0)}
    outcomes = world.store.claim(world.key, claims, observer="test", reason="test")
    assert outcomes == {X: Stale(), Y: Stale(), Z: Stale()}


def test_nothing_is_claimed_while_paused(world: World) -> None:
    group = world.group(paused=True)
    world.join(A)
    world.add(X)
    claims = {X: (A, 0)}
    assert world.store.claim(world.key, claims, observer="a", reason="r") == {X: Stale()}
    world.store.update_group(replace(group, paused=False), observer="ops")
    assert world.store.claim(world.key, claims, observer="a", reason="r") == {X: Changed((X,))}


def test_every_change_of_owner_raises_lease_id_and_generation(world: World) -> None:
    world.group()
    world.join(A, B)
    world.add(X)
    seen = [(world.shard(X).lease_id, world.generation())]
    for step in (
        lambda: world.claim(A, X),
        lambda: world.transfer(X, B),
        lambda: world.store.leave(world.key, B, "b-1"),
        lambda: world.claim(A, X),
    ):
        step()
        seen.append((world.shard(X).lease_id, world.generation()))
    assert all(
        lease > before and generation > earlier
        for (before, earlier), (lease, generation) in itertools.pairwise(seen)
    )


def test_healthy_groups_have_no_orphans(world: World) -> None:
    world.group()
    world.join(A, B)
    world.add(X, Y, ShardListing(Z, parents=(X,)))
    world.hold(A, X)
    world.claim(B, Y)
    world.transfer(X, B)
    before = world.generation()
    assert world.store.free_orphans(world.key, observer="test") == Changed()
    assert world.generation() == before


def test_a_child_listed_after_its_parents_ended_is_free(world: World) -> None:
    world.group()
    world.join(A)
    world.add(ShardListing(X, read_only=True))
    (tenure,) = world.hold(A, X)
    world.store.finish_empty(tenure, "0")
    world.add(ShardListing(Y, parents=(X,)))
    assert world.shard(Y).state is ShardState.NOT_ALLOC


def test_a_waiting_child_whose_lineage_changed_is_freed(world: World) -> None:
    """The source corrects a shard's parents, and no other event would free the waiting shard."""
    world.group()
    world.add(X, ShardListing(Y, parents=(X,)))
    world.add(X, ShardListing(Y, parents=()))
    assert world.store.free_orphans(world.key, observer="test") == Changed((Y,))
    assert world.edges(Y) == [1, 2]


def test_forcing_a_checkpoint_fences_the_holder(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    world.consume(tenure, "0", "5")
    world.intend(tenure, "5", "9", 1)
    outcome = world.store.force_checkpoint(world.key, X, "7", observer="ops", reason="skip")
    assert outcome == Changed((X,))
    shard = world.shard(X)
    assert (shard.check_point, shard.consumer_epoch, shard.consumer_run) == ("7", 2, "")
    assert shard.consumer_owner == A
    assert not world.store.review([tenure])[X].current
    with pytest.raises(LeaseLost):
        world.store.save_checkpoint(tenure, "9")
    force = world.journal(X)[-1]
    assert (force.kind, force.check_point, force.epoch) == ("force", "7", 2)
    assert (force.observer, force.reason) == ("ops", "skip")
    assert world.kinds(X)[-2:] == ["close", "force"]


def test_forcing_a_checkpoint_abandons_the_intent(world: World) -> None:
    """The next batch has a new number, because the abandoned one keeps its number."""
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    world.intend(tenure, "0", "9")
    world.store.force_checkpoint(world.key, X, "2", observer="ops", reason="skip")
    (abandoned,) = world.store.batches(world.key, X, state=None)
    assert (abandoned.state, abandoned.sequence) == (BatchState.ABANDONED, 0)
    opened = world.open(A, X, "run-2")
    assert (opened.check_point, opened.next_sequence, opened.intent) == ("2", 1, None)
    assert opened.tenure.epoch == 3
    assert isinstance(world.consume(opened.tenure, "2", "4", 1), Changed)


def test_a_free_or_waiting_shard_can_be_forced(world: World) -> None:
    world.group()
    world.add(X, ShardListing(Y, parents=(X,)))
    for shard in (X, Y):
        before = world.shard(shard)
        world.store.force_checkpoint(world.key, shard, "3", observer="ops", reason="r")
        after = world.shard(shard)
        assert (after.state, after.check_point) == (before.state, "3")
        assert after.consumer_epoch == before.consumer_epoch + 1


def test_forcing_a_shard_in_transfer_completes_the_transfer(world: World) -> None:
    world.group()
    world.join(A, B)
    world.add(X)
    (tenure,) = world.hold(A, X)
    world.transfer(X, B)
    world.store.force_checkpoint(world.key, X, "3", observer="ops", reason="r")
    shard = world.shard(X)
    assert (shard.state, shard.consumer_owner) == (ShardState.ALREADY_ALLOC, B)
    assert world.edges(X) == [1, 3, 5, 6]
    assert world.open(B, X).tenure.epoch > tenure.epoch


def test_a_forced_checkpoint_reopens_a_finished_shard(world: World) -> None:
    world.group()
    world.join(A)
    world.add(ShardListing(X, read_only=True))
    (tenure,) = world.hold(A, X)
    world.consume(tenure, "0", "5", finished=True)
    world.store.force_checkpoint(world.key, X, "0", observer="ops", reason="again")
    shard = world.shard(X)
    assert (shard.state, shard.check_point) == (ShardState.NOT_ALLOC, "0")
    assert world.edges(X) == [1, 3, 8, 7]
    world.claim(A, X)
    assert world.open(A, X, "run-2").tenure.epoch == 3


def test_forcing_an_unknown_shard_is_refused(world: World) -> None:
    world.group()
    with pytest.raises(UnknownShard, match="'x'"):
        world.store.force_checkpoint(world.key, X, "0", observer="ops", reason="r")
