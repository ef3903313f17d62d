"""Groups: creating, listing, updating, deleting and reading them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_leasehold.lease_store.errors import (
    GroupExists,
    GroupInUse,
    GroupLimitReached,
    UnknownGroup,
)
from dagster_leasehold.lease_store.group_rows import AssignmentMode, Group
from dagster_leasehold.lease_store.identifiers import GroupKey, GroupName, NodeName, StreamName
from dagster_leasehold.lease_store.journal_rows import DeliveryClaim, EventKind, Gap
from dagster_leasehold.lease_store.ledger_rows import Intent, RewriteKind
from dagster_leasehold.lease_store.outcomes import BeatRefused, Changed
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardListing, Tenure
from dagster_leasehold.lease_store.store import LeaseStore
from tests.conformance.world import NOON, A, B, World, X, Y, a_commit


def test_a_group_is_read_back_as_it_was_created(world: World) -> None:
    group = Group(
        world.key,
        ordered=False,
        timeout_s=7.5,
        handoff_limit_s=33.25,
        assignment=AssignmentMode.PINNED,
        initial_position="2026-01-01T00:00:00+00:00",
        node_cap=3,
        weighted=True,
        paused=True,
    )
    world.store.create_group(group)
    assert world.store.groups(world.key.stream) == [group]
    assert world.store.pulse(world.key).group == group


def test_a_name_is_used_once_per_stream(world: World) -> None:
    world.group()
    with pytest.raises(GroupExists):
        world.group(ordered=False)
    assert world.store.pulse(world.key).group.ordered


def test_groups_are_listed_in_order_and_by_stream(world: World) -> None:
    names = ["b", "a", "B"]
    for name in names:
        world.store.create_group(Group(GroupKey.parse(name, world.key.stream)))
    assert [group.key.group for group in world.store.groups(world.key.stream)] == sorted(names)
    assert {group.key for group in world.store.groups()} >= {
        GroupKey.parse(name, world.key.stream) for name in names
    }
    assert world.store.groups(StreamName("nobody")) == []


def test_a_stream_has_at_most_five_groups(world: World) -> None:
    for number in range(5):
        world.store.create_group(Group(replace(world.key, group=GroupName(f"g{number}"))))
    with pytest.raises(GroupLimitReached, match="5"):
        world.group()


def test_names_are_compared_byte_for_byte(world: World) -> None:
    """`a` and `A`, and names where one is a prefix of the other, are different groups and
    shards.
    """
    lower, upper = (GroupKey.parse(name, world.key.stream) for name in ("g", "G"))
    world.store.create_group(Group(lower))
    world.store.create_group(Group(upper, paused=True))
    world.key = lower
    world.add(X, X.__class__("X"), X.__class__("x.1"))
    assert [row.shard for row in world.store.snapshot(lower).shards] == ["X", "x", "x.1"]
    assert world.store.snapshot(upper).shards == ()
    assert world.store.pulse(upper).group.paused


def test_an_update_replaces_settings_and_raises_the_generation(world: World) -> None:
    group = world.group()
    after = world.store.update_group(replace(group, node_cap=2, timeout_s=9.0), observer="ops")
    assert (after.node_cap, after.timeout_s, after.generation) == (2, 9.0, 1)
    assert world.store.pulse(world.key).group == after
    (entry,) = world.journal()
    assert (entry.kind, entry.observer) == ("group", "ops")
    assert "node_cap: None → 2" in entry.reason


def test_a_group_that_becomes_unordered_frees_every_waiting_shard(world: World) -> None:
    group = world.group()
    world.add(X, ShardListing(Y, parents=(X,)))
    assert world.shard(Y).state is ShardState.WAIT
    world.store.update_group(replace(group, ordered=False), observer="ops")
    assert world.shard(Y).state is ShardState.NOT_ALLOC
    assert world.edges(Y) == [1, 2]


def test_a_group_that_becomes_ordered_keeps_its_running_shards(world: World) -> None:
    group = world.group(ordered=False)
    world.join(A)
    world.add(X, ShardListing(Y, parents=(X,)))
    (tenure,) = world.hold(A, Y)
    world.store.update_group(replace(group, ordered=True), observer="ops")
    assert world.shard(Y).state is ShardState.ALREADY_ALLOC
    assert isinstance(world.consume(tenure, "0", "5"), Changed)


def test_a_group_with_live_nodes_is_not_deleted(world: World) -> None:
    world.group()
    world.join(A)
    with pytest.raises(GroupInUse, match="a"):
        world.store.delete_group(world.key)
    world.store.leave(world.key, A, "a-1")
    world.store.delete_group(world.key)
    with pytest.raises(UnknownGroup):
        world.store.pulse(world.key)


def test_deleting_by_force_removes_all_that_belongs_to_the_group(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    world.consume(tenure, "0", "5")
    world.store.delete_group(world.key, force=True)
    world.group()
    snapshot = world.store.snapshot(world.key)
    assert (snapshot.nodes, snapshot.shards) == ((), ())
    assert world.journal() == []
    assert world.store.batches(world.key) == []
    assert world.store.pending_events(world.key) == []


def test_every_operation_names_an_unknown_group(world: World) -> None:
    store, key = world.store, world.key
    tenure = Tenure(key, X, A, 1, "run")
    verbs = [
        lambda: store.pulse(key),
        lambda: store.snapshot(key),
        lambda: store.progress(key, [A]),
        lambda: store.update_group(Group(key), observer="test"),
        lambda: store.delete_group(key),
        lambda: world.register(A, "i"),
        lambda: store.leave(key, A, "i"),
        lambda: store.evict(key, A, 1, observer="test", reason="test"),
        lambda: world.add(X),
        lambda: store.claim(key, {X: (A, 0)}, observer="test", reason="test"),
        lambda: store.begin_transfer(key, {X: (B, 0, "test")}, observer="test")[X],
        lambda: store.cancel_transfer(key, X, 0, observer="test", reason="test"),
        lambda: store.complete_transfer(key, X, 0, observer="test", reason="test"),
        lambda: store.free_orphans(key, observer="test"),
        lambda: store.force_checkpoint(key, X, "1", observer="test", reason="test"),
        lambda: store.open_tenure(key, X, A, "run"),
        lambda: store.review([tenure]),
        lambda: store.announce(tenure, handoff_eta_s=1),
        lambda: store.close_tenure(tenure, reason="test"),
        lambda: store.save_checkpoint(tenure, "1"),
        lambda: store.record_intents([Intent(tenure, 0, "0", "1")]),
        lambda: store.commit([a_commit(tenure, "0", "1")]),
        lambda: store.finish_empty(tenure, "0"),
        lambda: store.batches(key),
        lambda: store.pending_events(key),
        lambda: store.mark_delivered(key, [1]),
        lambda: store.waiting_events(key, EventKind.HOOK),
        lambda: store.take_delivery_lock(key, A, "i"),
        lambda: store.settle_event(DeliveryClaim(key, A, 1), 1),
        lambda: store.release_delivery_lock(DeliveryClaim(key, A, 1)),
        lambda: store.journal(key),
        lambda: store.record_gap(tenure, start="0", end="1", reason="test"),
        lambda: store.gaps(key),
        lambda: store.claim_rewrite(key, X, "run", RewriteKind.REPLAY),
        lambda: store.release_rewrite(key, X, "run"),
        lambda: store.rewrites(key),
        lambda: store.rewrite_batches(key, X, "run", [], reason="test"),
        lambda: store.acknowledge_gap(key, Gap(X, "0", "1", "r", NOON), observer="test"),
    ]
    for verb in verbs:
        with pytest.raises(UnknownGroup, match=key.stream):
            verb()
    # A beat is one statement, which does not know why it found no row.
    assert store.beat(key, A, "i") == BeatRefused()


def test_a_snapshot_is_ordered_by_names(world: World) -> None:
    world.group()
    world.join(B, A)
    world.add(Y, X)
    snapshot = world.store.snapshot(world.key)
    assert [node.name for node in snapshot.nodes] == [A, B]
    assert [row.shard for row in snapshot.shards] == [X, Y]
    assert world.store.pulse(world.key).nodes == snapshot.nodes


def test_progress_lists_the_shards_that_the_served_nodes_can_consume(world: World) -> None:
    world.group()
    world.join(A, B)
    world.add(X, Y)
    (tenure,) = world.hold(A, X)
    world.claim(B, Y)
    world.consume(tenure, "0", "5")
    world.transfer(X, B)
    progress = world.store.progress(world.key, [A])
    assert list(progress) == [X]
    assert progress[X].check_point == "5"
    assert (progress[X].consumer_epoch, progress[X].consumer_run) == (1, "run-1")
    assert list(world.store.progress(world.key, [A, B])) == [X, Y]
    assert world.store.progress(world.key, []) == {}


def test_the_pulse_of_one_node_contains_no_other_node(world: World) -> None:
    world.group()
    world.join(A, B)
    whole = world.store.pulse(world.key)
    assert [node.name for node in whole.nodes] == [A, B]
    alone = world.store.pulse(world.key, B)
    assert alone == replace(whole, nodes=whole.nodes[1:])
    assert world.store.pulse(world.key, NodeName("none")) == replace(whole, nodes=())


def test_statements_are_counted_by_kind(store: LeaseStore, world: World) -> None:
    world.group()
    before = store.statements["pulse"]
    store.pulse(world.key)
    assert store.statements["pulse"] == before + 1
