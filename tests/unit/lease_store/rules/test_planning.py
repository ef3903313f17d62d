"""Planning: equal shares, the fewest moves, the same plan everywhere."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_leasehold.lease_store.group_rows import AssignmentMode, Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.assignment_plan import (
    BeginTransfer,
    CancelTransfer,
    rank_key,
)
from dagster_leasehold.lease_store.rules.planning import orphans, plan
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from tests.unit.lease_store.group_pictures import (
    NODES,
    carried_out,
    counts,
    live,
    moves_of,
    node,
    shard,
    snapshot,
)


@st.composite
def snapshots(draw: st.DrawFn, nodes_max: int = 4, shards_max: int = 7) -> Snapshot:
    names = NODES[: draw(st.integers(1, nodes_max))]
    owners = st.sampled_from([None, *names])
    leases = [shard(str(i), draw(owners)) for i in range(draw(st.integers(0, shards_max)))]
    return snapshot([node(name) for name in names], leases)


def brute_force_minimum(snap: Snapshot) -> int:
    """The fewest changed owners over every assignment whose counts differ by at most one."""
    names = sorted(live(snap))
    best = math.inf
    for owners in itertools.product(names, repeat=len(snap.shards)):
        shares = [owners.count(name) for name in names]
        if max(shares) - min(shares) <= 1:
            changed = sum(
                lease.lease_owner != owner for lease, owner in zip(snap.shards, owners, strict=True)
            )
            best = min(best, changed)
    return int(best)


@given(snapshots())
@settings(max_examples=150)
def test_moves_are_the_fewest_that_any_assignment_needs(snap: Snapshot) -> None:
    decided = plan(snap, live=live(snap))
    assert decided.moves == decided.moves_minimum == brute_force_minimum(snap)
    assert len(decided.actions) == decided.moves


@given(snapshots(nodes_max=7, shards_max=50))
@settings(max_examples=200)
def test_one_round_balances_and_a_second_has_nothing_to_do(snap: Snapshot) -> None:
    decided = plan(snap, live=live(snap))
    after = carried_out(snap, decided)
    shares = counts(after).values()
    assert max(shares) - min(shares) <= 1
    assert sum(shares) == len(snap.shards)
    assert dict(decided.counts) == counts(after)
    steady = plan(after, live=live(after))
    assert steady.actions == ()
    assert steady.moves == steady.moves_minimum == 0


@given(snapshots(nodes_max=6, shards_max=40))
@settings(max_examples=150)
def test_a_join_moves_at_most_its_own_share_and_a_leave_only_the_leavers(snap: Snapshot) -> None:
    balanced = carried_out(snap, plan(snap, live=live(snap)))
    newcomer = node(NODES[6])
    joined = replace(balanced, nodes=(*balanced.nodes, newcomer))
    decided = plan(joined, live=live(joined))
    assert decided.moves <= math.ceil(len(snap.shards) / len(joined.nodes))
    assert all(action.gains == newcomer.name for action in decided.actions)

    after = carried_out(joined, decided)
    lost = {lease.shard for lease in after.shards if lease.lease_owner == newcomer.name}
    freed = [
        replace(lease, state=ShardState.NOT_ALLOC, lease_owner=None, consumer_owner=None)
        if lease.shard in lost
        else lease
        for lease in after.shards
    ]
    left = replace(after, nodes=balanced.nodes, shards=tuple(freed))
    assert {action.shard for action in plan(left, live=live(left)).actions} == lost


@given(snapshots(nodes_max=6, shards_max=40), st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_every_node_computes_the_same_plan(snap: Snapshot, chance: random.Random) -> None:
    nodes, shards = list(snap.nodes), list(snap.shards)
    chance.shuffle(nodes)
    chance.shuffle(shards)
    shuffled = replace(snap, nodes=tuple(nodes), shards=tuple(shards))
    assert plan(shuffled, live=sorted(live(snap))) == plan(snap, live=live(snap))


@st.composite
def unsettled(draw: st.DrawFn) -> Snapshot:
    """Members that accept no runs, transfers in progress, a cap, in every combination."""
    names = NODES[: draw(st.integers(1, 4))]
    nodes = [node(name, accepts_runs=draw(st.integers(0, 3)) > 0) for name in names]
    leases: list[ShardLease] = []
    for index in range(draw(st.integers(0, 10))):
        owner = draw(st.sampled_from([None, *names]))
        holder = draw(st.sampled_from([None, *names])) if owner else None
        leases.append(shard(str(index), owner, holder if holder != owner else None))
    return snapshot(nodes, leases, node_cap=draw(st.sampled_from([None, 1, 2, 3])))


@given(unsettled())
@settings(max_examples=400)
def test_any_mixture_settles_within_three_rounds(snap: Snapshot) -> None:
    """Each round is carried out completely; then nothing is left to do and shares are equal."""
    for _ in range(3):
        decided = plan(snap, live=live(snap))
        assert decided.moves == decided.moves_minimum
        # A transfer between two nodes that accept no runs completes by itself.
        moved = {action.shard for action in decided.actions}
        arrived = [
            replace(lease, state=ShardState.ALREADY_ALLOC, consumer_owner=lease.lease_owner)
            if lease.state is ShardState.TRANSFER and lease.shard not in moved
            else lease
            for lease in carried_out(snap, decided).shards
        ]
        snap = replace(snap, shards=tuple(arrived))
    final = plan(snap, live=live(snap))
    assert final.actions == ()
    takers = {member.name for member in snap.nodes if member.accepts_runs}
    shares = [count for name, count in counts(snap).items() if name in takers]
    cap = snap.group.node_cap
    held = sum(shares)
    if takers and cap is None:
        assert max(shares) - min(shares) <= 1
        assert held == len(snap.shards)
    elif takers and len(snap.shards) <= cap * len(takers):
        assert max(shares) <= cap
        assert held == len(snap.shards)
    else:
        assert len(final.unassigned) == len(snap.shards) - sum(
            min(share, cap or 0) for share in shares
        )


def test_finished_waiting_and_unsubscribable_shards_do_not_count() -> None:
    leases = [
        shard("0"),
        shard("1"),
        replace(shard("2"), state=ShardState.OVER),
        replace(shard("3"), state=ShardState.WAIT),
        replace(shard("4"), subscribable=False),
        replace(shard("5", "node-a"), subscribable=False),
    ]
    decided = plan(snapshot([node("node-a"), node("node-b")], leases), live=NODES)
    assert [action.shard for action in decided.actions] == ["0", "1"]
    assert {action.gains for action in decided.actions} == {"node-a", "node-b"}


@pytest.mark.parametrize("mode", AssignmentMode)
def test_the_plan_explains_a_parent_that_was_never_listed(mode: AssignmentMode) -> None:
    parents = (ShardId("8"),)
    leases = [
        shard("0"),
        replace(shard("1"), state=ShardState.WAIT, parents=(ShardId("0"),)),
        replace(shard("2"), state=ShardState.WAIT, parents=parents),
        replace(shard("3"), state=ShardState.WAIT, parents=parents, gone_parents=parents),
    ]
    members = [node("node-a", source_count=1, node_id=0, pinned={ShardId("0"): None})]
    decided = plan(snapshot(members, leases, assignment=mode), live=NODES)
    [left] = [each for each in decided.unassigned if each.shard != "0"]
    assert left.shard == "2"
    assert "it waits for parents that its source names and has never listed (8)" in str(left)
    assert str(left) in decided.explain()


def test_a_shard_in_transfer_counts_for_the_next_node() -> None:
    leases = [shard("0", "node-b", holder="node-a"), shard("1", "node-a")]
    decided = plan(snapshot([node("node-a"), node("node-b")], leases), live=NODES)
    assert decided.actions == ()
    assert dict(decided.counts) == {"node-a": 1, "node-b": 1}


def test_a_surplus_in_transfer_goes_back_before_anything_else_moves() -> None:
    leases = [shard(str(i), "node-b", holder="node-a") for i in range(2)]
    decided = plan(snapshot([node("node-a"), node("node-b")], leases), live=NODES)
    assert [type(action) for action in decided.actions] == [CancelTransfer]
    assert decided.actions[0].gains == "node-a"


def test_a_node_that_accepts_no_runs_transfers_its_shards() -> None:
    leases = [shard("0", "node-a"), shard("1", "node-a")]
    idle = node("node-a", accepts_runs=False)
    decided = plan(snapshot([idle, node("node-b")], leases), live=NODES)
    assert [(type(action), action.gains) for action in decided.actions] == [
        (BeginTransfer, "node-b"),
        (BeginTransfer, "node-b"),
    ]
    assert decided.moves_minimum == 2


def test_a_transfer_to_a_node_that_accepts_no_runs_is_called_off() -> None:
    leases = [shard("0", "node-b", holder="node-a")]
    idle = node("node-b", accepts_runs=False)
    decided = plan(snapshot([node("node-a"), idle], leases), live=NODES)
    assert decided.actions == (
        CancelTransfer(
            ShardId("0"), NodeName("node-a"), NodeName("node-b"), 3, "node-b takes no runs"
        ),
    )


def test_shards_of_a_dead_node_are_planned_for_but_not_claimed_before_its_eviction() -> None:
    leases = [shard("0", "node-a"), shard("1"), shard("2", "node-b"), shard("3", "node-b")]
    snap = snapshot([node("node-a"), node("node-b"), node("node-c")], leases)
    decided = plan(snap, live={NodeName("node-b"), NodeName("node-c")})
    assert [(action.shard, action.gains) for action in decided.actions] == [("1", "node-c")]
    assert dict(decided.counts) == {"node-b": 2, "node-c": 2}
    assert decided.moves == 2


def test_shards_that_no_node_can_take_are_reported() -> None:
    leases = [shard(str(i)) for i in range(5)]
    decided = plan(snapshot([node("node-a"), node("node-b")], leases, node_cap=2), live=NODES)
    assert len(decided.actions) == 4
    assert [str(left) for left in decided.unassigned] == [
        "no new node for shard 4: every live node has as many shards as the node cap"
    ]


def test_without_a_node_every_shard_stays_unassigned() -> None:
    decided = plan(snapshot([], [shard("0"), shard("1")]), live=())
    assert [left.shard for left in decided.unassigned] == ["0", "1"]
    assert decided.spread == 0


def test_a_paused_group_keeps_its_owners() -> None:
    decided = plan(snapshot([node("node-a")], [shard("0")], paused=True), live=NODES)
    assert decided.actions == ()
    assert "paused" in decided.summary


def test_the_explanation_names_each_move_its_reason_and_the_bound() -> None:
    leases = [shard(str(i), "node-a") for i in range(4)] + [shard("4")]
    decided = plan(snapshot([node("node-a"), node("node-b")], leases), live=NODES)
    lines = decided.explain()
    assert lines[0] == "5 consumable shards on 2 live nodes, 2 or 3 each"
    assert any(line.startswith("node-b claims shard 4: it is unassigned") for line in lines)
    assert any(
        line.startswith("shard 3 moves from node-a to node-b: node-a has more") for line in lines
    )
    assert "2 moves; every plan needs at least 2" in lines
    assert "node-a has 4 shards and a share of 3, so 1 must move" in lines


def test_names_are_sorted_in_natural_order() -> None:
    assert sorted(["10", "9", "a", "2", "02", "A-10", "A-9"], key=rank_key) == [
        "02",
        "2",
        "9",
        "10",
        "A-9",
        "A-10",
        "a",
    ]


def test_orphans_are_found() -> None:
    gone = replace(node("node-z"), incarnation="")
    leases = [
        shard("0", "node-z"),
        shard("1", "node-z", holder="node-a"),
        replace(shard("2", "node-b", holder="node-a"), consumer_run=""),
        replace(shard("3"), state=ShardState.WAIT, parents=(ShardId("4"),)),
        replace(shard("4"), state=ShardState.OVER),
        replace(shard("5"), state=ShardState.WAIT, parents=(ShardId("6"),)),
        shard("6", "node-a"),
    ]
    lines = orphans(snapshot([node("node-a"), node("node-b"), gone], leases))
    assert [line.split()[0] for line in lines] == ["0", "1", "2", "3"]


def test_an_inbound_shard_whose_holder_has_room_stays_before_one_in_use_moves() -> None:
    """node-b has 4 and should have 2: shards that are still on node-a can stay there at no cost."""
    leases = [
        shard("0", "node-b"),
        shard("1", "node-b"),
        shard("2", "node-b", holder="node-a"),
        shard("3", "node-b", holder="node-a"),
    ]
    decided = plan(snapshot([node("node-a"), node("node-b")], leases), live=NODES)
    assert moves_of(decided) == [
        ("CancelTransfer", "3", "node-a"),
        ("CancelTransfer", "2", "node-a"),
    ]
    assert decided.moves == decided.moves_minimum == 2


def test_an_inbound_shard_whose_holder_has_no_room_is_the_last_to_move() -> None:
    """node-a has its two: sending 4 on to node-c would first have to take it back to node-a."""
    leases = [
        shard("0", "node-a"),
        shard("1", "node-a"),
        shard("2", "node-b"),
        shard("3", "node-b"),
        shard("4", "node-b", holder="node-a"),
    ]
    nodes = [node("node-a"), node("node-b"), node("node-c")]
    decided = plan(snapshot(nodes, leases), live=NODES)
    assert moves_of(decided) == [("BeginTransfer", "3", "node-c")]


def test_room_at_the_holder_is_given_once() -> None:
    """node-a has room for one of the two shards that are on their way from it."""
    leases = [
        shard("0", "node-a"),
        shard("1", "node-b"),
        shard("2", "node-b", holder="node-a"),
        shard("3", "node-b", holder="node-a"),
    ]
    decided = plan(snapshot([node("node-a"), node("node-b")], leases), live=NODES)
    assert moves_of(decided) == [("CancelTransfer", "3", "node-a")]


def test_room_at_a_holder_is_kept_for_shards_that_can_stay() -> None:
    """node-a has room for one: neither a free shard nor another's may take it from shard 4."""
    own = [shard("0", "node-a"), shard("1", "node-b"), shard("2", "node-b"), shard("5", "node-c")]
    inbound = shard("4", "node-b", holder="node-a")
    nodes = [node("node-a"), node("node-b"), node("node-c")]
    free = plan(snapshot(nodes, [*own, inbound, shard("3")]), live=NODES)
    assert moves_of(free) == [("CancelTransfer", "4", "node-a"), ("Claim", "3", "node-c")]
    held = plan(snapshot(nodes, [*own, inbound, shard("3", "node-b")]), live=NODES)
    assert moves_of(held) == [("CancelTransfer", "4", "node-a"), ("BeginTransfer", "3", "node-c")]


def test_a_shard_in_transfer_returns_before_it_moves_to_a_third_node() -> None:
    """All that node-b has is on its way from node-a, which has no room: two rounds."""
    leases = [shard(str(i), "node-a") for i in range(2)]
    leases += [shard(str(i), "node-b", holder="node-a") for i in range(2, 6)]
    nodes = [node("node-a"), node("node-b"), node("node-c")]
    snap = snapshot(nodes, leases)
    first = plan(snap, live=NODES)
    assert {kind for kind, _, _ in moves_of(first)} == {"CancelTransfer"}
    second = plan(carried_out(snap, first), live=NODES)
    assert {(kind, gains) for kind, _, gains in moves_of(second)} == {("BeginTransfer", "node-c")}


def test_a_shard_in_transfer_between_nodes_without_runs_moves_on_after_it_arrived() -> None:
    nodes = [node("node-a", accepts_runs=False), node("node-b", accepts_runs=False), node("node-c")]
    decided = plan(snapshot(nodes, [shard("0", "node-b", holder="node-a")]), live=NODES)
    assert decided.actions == ()
    assert dict(decided.counts) == {"node-c": 1}
    assert decided.moves == decided.moves_minimum == 1


def test_a_holder_over_its_cap_keeps_shards_that_no_node_can_take() -> None:
    leases = [shard(str(i), "node-a") for i in range(4)] + [shard("4", "node-b")]
    snap = snapshot([node("node-a"), node("node-b")], leases, node_cap=2)
    decided = plan(snap, live=NODES)
    assert moves_of(decided) == [("BeginTransfer", "3", "node-b")]
    assert [str(left) for left in decided.unassigned] == [
        "no new node for shard 2: "
        "node-a has more shards than the node cap, but no other node has room"
    ]


def test_the_proof_counts_each_reason_to_move() -> None:
    leases = [shard(str(i), "node-a") for i in range(3)]
    leases += [shard("3"), shard("4", "node-z"), shard("5", "node-y", holder="node-a")]
    nodes = [
        node("node-a"),
        node("node-b"),
        node("node-y", accepts_runs=False),
        node("node-z", accepts_runs=False),
    ]
    decided = plan(snapshot(nodes, leases), live=[*NODES, "node-y", "node-z"])
    assert decided.proof == (
        "node-a has 4 shards and a share of 3, so 1 must move",
        "1 unassigned shard must be claimed",
        "1 shard of nodes that take no runs must move",
        "1 transfer to nodes that take no runs must end",
        "larger shares go to nodes with more shards, so that the fewest shards move",
    )
    assert decided.moves == decided.moves_minimum == 4


def test_the_proof_of_a_balanced_group_lists_only_the_larger_shares() -> None:
    leases = [shard("0", "node-a"), shard("1", "node-b"), shard("2", "node-a")]
    decided = plan(snapshot([node("node-a"), node("node-b")], leases), live=NODES)
    assert decided.proof == (
        "larger shares go to nodes with more shards, so that the fewest shards move",
    )
    assert decided.summary == "3 consumable shards on 2 live nodes, 1 or 2 each"
    alone = plan(snapshot([node("node-a")], leases[:1]), live=NODES)
    assert alone.summary == "1 consumable shard on 1 live node, 1 each"
