"""Planning by load: a bounded spread, few moves, none when nothing changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_leasehold.lease_store.group_rows import Group, Node, Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.rules.assignment_plan import (
    BeginTransfer,
    CancelTransfer,
    Claim,
    Plan,
)
from dagster_leasehold.lease_store.rules.planning import plan, quantised
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease

GROUP = Group(GroupKey.parse("group", "stream"), weighted=True)
NODES = [NodeName(f"node-{letter}") for letter in "abcde"]


def lease(name: str, owner: str | None) -> ShardLease:
    node = NodeName(owner) if owner else None
    state = ShardState.ALREADY_ALLOC if owner else ShardState.NOT_ALLOC
    return ShardLease(
        ShardId(name), state, lease_id=3, lease_owner=node, consumer_owner=node, consumer_run="r"
    )


def snapshot(
    shards: dict[str, tuple[str | None, float]], nodes: int | list[Node], group: Group = GROUP
) -> Snapshot:
    """Shards with their owners and weights."""
    members = nodes if isinstance(nodes, list) else [Node(n, 1, "i") for n in NODES[:nodes]]
    leases = tuple(lease(name, owner) for name, (owner, _) in shards.items())
    weights = {ShardId(name): weight for name, (_, weight) in shards.items()}
    return Snapshot(group, tuple(members), leases, weights)


def planned(snap: Snapshot) -> Plan:
    return plan(snap, live=[node.name for node in snap.nodes])


def carried_out(snap: Snapshot, decided: Plan) -> Snapshot:
    rows = {row.shard: row for row in snap.shards}
    for action in decided.actions:
        rows[action.shard] = replace(
            rows[action.shard],
            state=ShardState.ALREADY_ALLOC,
            lease_id=rows[action.shard].lease_id + 1,
            lease_owner=action.gains,
            consumer_owner=action.gains,
        )
    return replace(snap, shards=tuple(rows.values()))


def loads(snap: Snapshot) -> dict[NodeName, float]:
    sums = {node.name: 0.0 for node in snap.nodes}
    for row in snap.shards:
        if row.lease_owner:
            sums[row.lease_owner] += snap.weights[row.shard]
    return sums


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    nodes = draw(st.integers(1, 5))
    owners = st.sampled_from([None, *NODES[:nodes]])
    weights = st.floats(1, 1000).map(quantised)
    shards = draw(st.lists(st.tuples(owners, weights), max_size=24))
    return snapshot({str(number): shard for number, shard in enumerate(shards)}, nodes)


@given(snapshots())
@settings(max_examples=300)
def test_no_node_carries_more_than_the_mean_and_one_heaviest_shard(snap: Snapshot) -> None:
    after = loads(carried_out(snap, planned(snap)))
    total, heaviest = sum(snap.weights.values()), max(snap.weights.values(), default=0.0)
    assert max(after.values()) <= total / len(after) + heaviest
    assert sum(after.values()) == total


@given(snapshots())
@settings(max_examples=300)
def test_a_plan_after_a_completed_plan_is_empty(snap: Snapshot) -> None:
    after = carried_out(snap, planned(snap))
    again = planned(after)
    assert (again.actions, again.moves) == ((), 0)


@given(snapshots(), st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_planners_with_the_same_rows_compute_the_same_plan(snap: Snapshot, random: object) -> None:
    shuffled = list(snap.shards)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    other = replace(snap, shards=tuple(shuffled), nodes=tuple(reversed(snap.nodes)))
    assert planned(other) == planned(snap)


@given(snapshots())
@settings(max_examples=100)
def test_each_node_can_carry_out_its_part_alone(snap: Snapshot) -> None:
    """A node that claims its free shards first leaves the same free shards to the others."""
    free = replace(snap, shards=tuple(lease(row.shard, None) for row in snap.shards))
    whole = planned(free)
    rows = free
    for node in free.nodes:
        part = [action for action in planned(rows).actions if action.gains == node.name]
        rows = carried_out(rows, replace(whole, actions=tuple(part)))
    assert loads(rows) == loads(carried_out(free, whole))


@given(snapshots(), st.sampled_from([4.0, 96.0]))
@settings(max_examples=100)
def test_equal_weights_are_the_same_as_none(snap: Snapshot, weight: float) -> None:
    equal = replace(snap, weights=dict.fromkeys(snap.weights, weight))
    by_count = replace(snap, group=replace(GROUP, weighted=False), weights={})
    assert planned(equal) == planned(by_count)


def test_a_group_that_balances_by_count_ignores_weights() -> None:
    shards = {"1": ("node-a", 100.0), "2": ("node-a", 1.0), "3": ("node-b", 1.0)}
    assert planned(snapshot(shards, 2, replace(GROUP, weighted=False))).actions == ()


def test_the_heaviest_shard_gets_a_separate_node() -> None:
    """By count, the node with the busy shard would have three more."""
    shards = {str(number): (None, 100.0 if number == 0 else 10.0) for number in range(8)}
    decided = planned(snapshot(shards, 2))
    assert sorted(load for _, load in decided.loads) == [70, 100]
    counts = dict(decided.counts)
    busy = next(node for node, load in decided.loads if load == 100)
    assert counts.pop(busy) == 1
    assert list(counts.values()) == [7]
    assert all(isinstance(action, Claim) for action in decided.actions)
    assert decided.moves == decided.moves_minimum == 8
    assert any(f"{busy} then has 100 records/s" in line for line in decided.explain())


def test_a_busy_shard_moves_others_away() -> None:
    shards = {
        "0": ("node-a", 64.0), "1": ("node-a", 8.0), "2": ("node-a", 8.0),
        "3": ("node-b", 8.0), "4": ("node-b", 8.0), "5": ("node-b", 8.0),
    }  # fmt: skip
    decided = planned(snapshot(shards, 2))
    assert {(action.shard, action.gains) for action in decided.actions} == {
        ("1", "node-b"),
        ("2", "node-b"),
    }
    assert all(isinstance(action, BeginTransfer) for action in decided.actions)
    assert (decided.moves, decided.moves_minimum) == (2, 0)
    assert any("further moves that level the loads: 2;" in line for line in decided.explain())


@pytest.mark.parametrize(("nodes", "others"), [(2, 7), (3, 14), (5, 20)])
def test_a_shard_with_nine_tenths_of_the_load_is_alone_on_its_node(nodes: int, others: int) -> None:
    """Its companions are little beside it, and yet they wait for it, or it for them."""
    shards: dict[str, tuple[str | None, float]] = {
        str(number): (f"node-{'abcde'[number % nodes]}", 8.0) for number in range(1, others + 1)
    }
    shards["0"] = ("node-a", 8.0 * 9 * others)
    before = snapshot(shards, nodes)
    decided = planned(before)
    assert {action.shard for action in decided.actions} >= {
        name for name, (owner, _) in shards.items() if owner == "node-a" and name != "0"
    }
    after = carried_out(before, decided)
    assert {row.shard for row in after.shards if row.lease_owner == "node-a"} == {"0"}
    rest = [load for node, load in loads(after).items() if node != "node-a"]
    assert max(rest) - min(rest) <= 8
    assert planned(after).actions == ()
    lighter = replace(after, weights={**after.weights, ShardId("0"): 8.0 * 7 * others})
    assert planned(lighter).actions == (), "what was given away does not come back for a little"


def test_a_tenth_of_a_load_is_not_worth_a_move() -> None:
    """Moving one of ten equal shards relieves its node by a tenth, not by more."""
    shards: dict[str, tuple[str | None, float]] = {
        str(number): ("node-a" if number < 10 else "node-b", 8.0) for number in range(19)
    }
    shards["18"] = ("node-b", 7.0)
    assert planned(snapshot(shards, 2)).actions == ()


def test_a_shard_without_a_weight_counts_like_the_middle_one() -> None:
    shards = {"1": ("node-a", 2.0), "2": ("node-a", 16.0), "3": ("node-b", 128.0)}
    snap = snapshot(shards, 2)
    new = replace(snap, shards=(*snap.shards, lease("4", None)))
    assert dict(planned(new).loads) == {"node-a": 34, "node-b": 128}


def test_a_cap_bounds_the_number_of_shards_however_light() -> None:
    shards = {str(number): (None, float(2**number)) for number in range(6)}
    decided = planned(snapshot(shards, 2, replace(GROUP, node_cap=2)))
    assert dict(decided.counts) == {"node-a": 2, "node-b": 2}
    assert [shard.shard for shard in decided.unassigned] == ["0", "1"]


def test_a_cap_that_shrank_takes_the_lightest_away() -> None:
    shards = {"1": ("node-a", 1.0), "2": ("node-a", 8.0), "3": ("node-a", 8.0), "4": (None, 64.0)}
    decided = planned(snapshot(shards, 2, replace(GROUP, node_cap=2)))
    assert dict(decided.counts) == {"node-a": 2, "node-b": 2}
    assert dict(decided.loads) == {"node-a": 16, "node-b": 65}


def test_shards_of_nodes_that_accept_no_runs_are_transferred_or_returned() -> None:
    busy = Node(NODES[1], 1, "i", accepts_runs=False)
    nodes = [Node(NODES[0], 1, "i"), busy, Node(NODES[2], 1, "i")]
    snap = snapshot({"1": ("node-a", 8.0), "2": ("node-b", 64.0), "3": ("node-b", 1.0)}, nodes)
    moving = replace(snap.shards[2], state=ShardState.TRANSFER, consumer_owner=NODES[2])
    decided = planned(replace(snap, shards=(*snap.shards[:2], moving)))
    kinds = {action.shard: (type(action), action.gains) for action in decided.actions}
    assert kinds == {"2": (BeginTransfer, "node-c"), "3": (CancelTransfer, "node-c")}
    assert decided.moves == decided.moves_minimum == 2


def test_a_dead_nodes_shards_are_planned_for_but_not_claimed_yet() -> None:
    snap = snapshot({"1": ("node-a", 8.0), "2": ("node-b", 64.0)}, 2)
    decided = plan(snap, live=[NODES[0]])
    assert dict(decided.counts) == {"node-a": 2}
    assert (decided.actions, decided.moves) == ((), 1)


def test_a_new_node_gets_its_share_with_few_moves() -> None:
    """From each of ten nodes a little, although no one of them gets rid of a tenth of its load."""
    owners = [f"node-{number}" for number in range(10)]
    shards = {
        str(number): (owners[number % 10], 8.0 if number % 3 else 10.0) for number in range(300)
    }
    members = [Node(NodeName(name), 1, "i") for name in [*owners, "node-new"]]
    decided = planned(snapshot(shards, members))  # type: ignore[arg-type]
    mean = sum(weight for _, weight in shards.values()) / 11
    assert {action.gains for action in decided.actions} == {"node-new"}
    assert len({action.shard for action in decided.actions}) <= 300 / 11
    assert min(load for _, load in decided.loads) >= 0.95 * mean - 10
    assert max(load for _, load in decided.loads) <= 1.05 * mean + 10
