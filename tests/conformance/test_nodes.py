"""Nodes: who answers to a name, beats, leaving and evicting."""

from __future__ import annotations

import time

import pytest

from dagster_leasehold.lease_store.errors import AssignmentConflict
from dagster_leasehold.lease_store.group_rows import AssignmentMode
from dagster_leasehold.lease_store.outcomes import (
    Beaten,
    BeatRefused,
    Changed,
    NameTaken,
    Registered,
    Stale,
)
from dagster_leasehold.lease_store.release import RELEASE
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardListing
from tests.conformance.world import A, B, C, World, X, Y, Z


def test_the_counter_of_a_new_node_starts_at_one(world: World) -> None:
    world.group()
    assert world.register(A, "a-1", address="host:1") == Registered(1)
    node = world.node(A)
    assert (node.incarnation, node.lease_id, node.address) == ("a-1", 1, "host:1")
    assert world.kinds() == ["join"]
    assert world.generation() == 1


def test_settings_of_a_node_are_read_back(world: World) -> None:
    world.group()
    settings = {"source_count": 3, "node_id": 2, "pinned": {X: "7", Y: None}, "accepts_runs": False}
    world.register(A, "a-1", **settings)
    node = world.node(A)
    assert {name: getattr(node, name) for name in settings} == settings


def test_a_node_stores_its_release(world: World) -> None:
    """A sensor continues its own node after an upgrade, under the release of now."""
    world.group()
    world.register(A, "a-1", release_version="0.1.9")
    assert world.node(A).release_version == "0.1.9"
    world.register(A, "a-1")
    assert world.node(A).release_version == RELEASE


def test_an_incarnation_that_registers_again_continues(world: World) -> None:
    """Its counter rises, so that who counted its silence starts again; nothing is journalled."""
    world.group()
    world.join(A)
    before = world.generation()
    assert world.register(A, "a-1") == Registered(2)
    assert world.generation() == before
    assert world.kinds() == ["join"]


def test_new_settings_of_a_member_raise_the_generation(world: World) -> None:
    world.group()
    world.join(A)
    before = world.generation()
    assert world.register(A, "a-1", accepts_runs=False) == Registered(2)
    assert world.generation() == before + 1
    assert world.kinds() == ["join", "resume"]
    assert not world.node(A).accepts_runs


def test_the_name_of_a_live_node_is_refused(world: World) -> None:
    world.group()
    world.join(A)
    assert world.register(A, "other") == NameTaken("a-1", 1)
    assert world.register(A, "other", displaced=0) == NameTaken("a-1", 1)
    assert world.node(A).incarnation == "a-1"


def test_replacing_a_silent_incarnation_releases_its_shards(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X)
    world.hold(A, X)
    assert world.register(A, "other", displaced=1) == Registered(2)
    assert world.node(A).incarnation == "other"
    assert world.shard(X).state is ShardState.NOT_ALLOC
    assert world.kinds() == ["join", "edge", "edge", "open", "evict", "close", "edge", "join"]


def test_a_beat_prevents_the_replacement_of_its_incarnation(world: World) -> None:
    """1. An observer sees counter 1 stall. 2. It beats: 2. 3. Displacing 1 is refused."""
    world.group()
    world.join(A)
    assert world.store.beat(world.key, A, "a-1") == Beaten(2)
    assert world.register(A, "other", displaced=1) == NameTaken("a-1", 2)


def test_each_beat_adds_one_and_changes_no_generation(world: World) -> None:
    world.group()
    world.join(A)
    before = world.generation()
    assert [world.store.beat(world.key, A, "a-1") for _ in range(3)] == [
        Beaten(2),
        Beaten(3),
        Beaten(4),
    ]
    assert world.generation() == before
    assert world.node(A).lease_id == 4


def test_a_beat_of_another_incarnation_is_refused(world: World) -> None:
    world.group()
    world.join(A)
    assert world.store.beat(world.key, A, "other") == BeatRefused()
    assert world.store.beat(world.key, B, "b-1") == BeatRefused()
    world.store.leave(world.key, A, "a-1")
    assert world.store.beat(world.key, A, "a-1") == BeatRefused()
    assert world.store.beat(world.key, A, "") == BeatRefused()


def test_a_node_that_leaves_releases_all_its_shards_at_once(world: World) -> None:
    world.group()
    world.join(A, B)
    world.add(X, Y, Z)
    world.hold(A, X, Y)
    world.claim(B, Z)
    assert world.store.leave(world.key, A, "a-1") == Changed((X, Y))
    states = {row.shard: row.state for row in world.store.snapshot(world.key).shards}
    assert states == {X: ShardState.NOT_ALLOC, Y: ShardState.NOT_ALLOC, Z: ShardState.ALREADY_ALLOC}
    assert not world.node(A).member
    assert world.edges(X) == [1, 3, 4]
    assert world.store.leave(world.key, A, "a-1") == Stale()


def test_only_the_current_incarnation_can_leave(world: World) -> None:
    world.group()
    world.join(A)
    assert world.store.leave(world.key, A, "other") == Stale()
    assert world.store.leave(world.key, B, "b-1") == Stale()
    assert world.node(A).member


def test_a_name_can_be_used_again_after_its_node_left(world: World) -> None:
    world.group()
    world.join(A)
    world.store.leave(world.key, A, "a-1")
    assert world.register(A, "a-2") == Registered(2)
    assert world.kinds() == ["join", "leave", "join"]


def test_an_eviction_releases_the_shards_of_a_dead_node(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X)
    world.hold(A, X)
    outcome = world.store.evict(world.key, A, 1, observer="b", reason="silent for 21 s")
    assert outcome == Changed((X,))
    shard = world.shard(X)
    assert shard.state is ShardState.NOT_ALLOC
    assert (shard.lease_owner, shard.consumer_owner, shard.consumer_run) == (None, None, "")
    assert (shard.lease_id, shard.consumer_epoch) == (2, 1)
    closed, edge = world.journal(X)[-2:]
    assert (closed.kind, closed.epoch, closed.run) == ("close", 1, "run-1")
    assert (edge.edge, edge.reason, edge.observer) == (4, "silent for 21 s", "b")
    assert (edge.from_owner, edge.to_owner) == (A, None)


def test_a_beat_before_the_eviction_prevents_it(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X)
    world.claim(A, X)
    world.store.beat(world.key, A, "a-1")
    before = world.generation()
    assert world.store.evict(world.key, A, 1, observer="b", reason="silent") == Stale()
    assert world.shard(X).consumer_owner == A
    assert world.generation() == before
    assert world.store.evict(world.key, A, 2, observer="b", reason="silent") == Changed((X,))
    assert world.store.evict(world.key, A, 2, observer="b", reason="silent") == Stale()
    assert world.store.evict(world.key, C, 0, observer="b", reason="silent") == Stale()


def test_a_holder_that_dies_in_a_transfer_frees_the_shard(world: World) -> None:
    """Edge 9: the next node claims the shard like any other, with its new lease_id."""
    world.group()
    world.join(A, B)
    world.add(X)
    world.hold(A, X)
    world.transfer(X, B)
    world.store.evict(world.key, A, 1, observer="b", reason="silent")
    assert world.shard(X).state is ShardState.NOT_ALLOC
    assert world.edges(X) == [1, 3, 5, 9]


def test_a_shard_returns_to_its_holder_if_the_next_node_dies(world: World) -> None:
    """Edge 6 back to the holder, whose tenure continues: nothing is read again."""
    world.group()
    world.join(A, B)
    world.add(X)
    (tenure,) = world.hold(A, X)
    world.transfer(X, B)
    assert world.store.evict(world.key, B, 1, observer="a", reason="silent") == Changed((X,))
    shard = world.shard(X)
    assert shard.state is ShardState.ALREADY_ALLOC
    assert (shard.lease_owner, shard.consumer_owner) == (A, A)
    assert world.edges(X) == [1, 3, 5, 6]
    assert world.store.review([tenure])[X].current
    assert isinstance(world.consume(tenure, "0", "5"), Changed)


def test_in_a_modulo_group_members_must_agree(world: World) -> None:
    world.group(assignment=AssignmentMode.MODULO)
    world.register(A, "a-1", source_count=2, node_id=0)
    before = world.generation()
    for settings in (
        {},
        {"source_count": 3, "node_id": 1},
        {"source_count": 2, "node_id": 0},
        {"source_count": 2, "node_id": 2},
    ):
        with pytest.raises(AssignmentConflict):
            world.register(B, "b-1", **settings)
    assert world.generation() == before
    assert [node.name for node in world.store.pulse(world.key).nodes] == [A]
    assert world.register(B, "b-1", source_count=2, node_id=1) == Registered(1)
    # Nodes that have left no longer count.
    world.store.leave(world.key, A, "a-1")
    world.store.leave(world.key, B, "b-1")
    assert world.register(A, "a-2", source_count=5, node_id=4) == Registered(2)


def test_a_node_that_leaves_changes_no_waiting_or_finished_shard(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X, ShardListing(Y, parents=(X,)), ShardListing(Z, read_only=True))
    (tenure,) = world.hold(A, Z)
    world.store.finish_empty(tenure, "0")
    world.store.leave(world.key, A, "a-1")
    assert world.shard(Y).state is ShardState.WAIT
    assert world.shard(Z).state is ShardState.OVER


def test_the_age_of_a_beat_is_that_of_the_newest_one(world: World) -> None:
    """By the store's own clock, and only for members. Method: wait, then let one of two beat."""
    assert world.store.beat_ages(world.key) == {}
    world.group()
    world.join(A, B, C)
    world.store.leave(world.key, C, "c-1")
    time.sleep(0.3)
    world.store.beat(world.key, A, "a-1")
    ages = world.store.beat_ages(world.key)
    assert ages.keys() == {A, B}
    assert 0 <= ages[A] <= ages[B] - 0.25
