from __future__ import annotations

from dataclasses import replace

from dagster_leasehold.assets.consuming.ownership import (
    CanClaim,
    CanConsume,
    Finished,
    Refused,
    Standing,
    claim_for_run,
    close_ended_tenure,
    standings_of,
)
from dagster_leasehold.assets.node_settings import Modulo, Pinned, node_row
from dagster_leasehold.lease_store.group_rows import AssignmentMode, Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import OpenByOther, Opened, TenureView
from dagster_leasehold.lease_store.shard_rows import ShardListing, Tenure

KEY = GroupKey.parse("default", "orders")
A, B, C = NodeName("a"), NodeName("b"), NodeName("c")
ZERO, ONE, CHILD = ShardId("0"), ShardId("1"), ShardId("2")


def store_with_members(*nodes: NodeName) -> MemoryStore:
    """Shards 0 and 1, and 2 that waits for 0; `nodes` are members."""
    store = MemoryStore()
    store.create_group(Group(key=KEY))
    listing = [ShardListing(ZERO), ShardListing(ONE), ShardListing(CHILD, parents=(ZERO,))]
    store.sync_shards(KEY, listing, observer="test")
    for node in nodes:
        store.register(KEY, Node(node, 0, f"incarnation-{node}", address="here"), observer="test")
    return store


def claim(store: MemoryStore, shard: ShardId, node: NodeName) -> None:
    row = next(row for row in store.snapshot(KEY).shards if row.shard == shard)
    store.claim(KEY, {shard: (node, row.lease_id)}, observer="test", reason="test")


def standing(store: MemoryStore, shard: str, *, target: str | None = None) -> Standing:
    asked = ShardId(shard)
    snapshot = store.snapshot(KEY)
    return standings_of(snapshot, [asked], served=(A, B), address="here", target=target)[asked]


def sentence(refusal: Standing) -> str:
    assert isinstance(refusal, Refused)
    assert "\n" not in refusal.sentence
    assert refusal.sentence.endswith(".")
    return refusal.sentence


def test_the_member_with_the_fewest_shards_can_claim_a_free_shard():
    store = store_with_members(A, B)
    claim(store, ZERO, A)
    answer = standing(store, "1")
    assert isinstance(answer, CanClaim)
    assert answer.node == B
    claim_for_run(store, KEY, {ONE: answer}, run="run-1")
    claim_for_run(store, KEY, {ONE: answer}, run="run-2")
    assert store.journal(KEY)[-1].reason == "requested by run run-1"
    assert standing(store, "1") == CanConsume(B, "incarnation-b", "")


def free_shards_of(mode: AssignmentMode, *nodes: Node) -> MemoryStore:
    """Shards 0 and 1, both free, in a group of this mode with these members."""
    store = MemoryStore()
    store.create_group(Group(key=KEY, assignment=mode))
    store.sync_shards(KEY, [ShardListing(ZERO), ShardListing(ONE)], observer="test")
    for node in nodes:
        row = replace(node, incarnation=f"incarnation-{node.name}")
        store.register(KEY, row, observer="test")
    return store


def claims(store: MemoryStore, shard: str, *, target: str | None = None) -> NodeName:
    answer = standing(store, shard, target=target)
    assert isinstance(answer, CanClaim)
    return answer.node


def test_a_free_shard_goes_to_the_node_of_its_rank_in_a_modulo_group():
    store = free_shards_of(
        AssignmentMode.MODULO,
        node_row(A, Modulo(2, 1), address="here"),
        node_row(B, Modulo(2, 0), address="here"),
    )
    assert (claims(store, "0"), claims(store, "1")) == (B, A)
    assert claims(store, "0", target="b") == B
    text = sentence(standing(store, "0", target="a"))
    assert text.startswith("Shard 0 of orders/default is planned for node b, not for a")


def test_a_shard_of_a_missing_rank_stays_unassigned():
    store = free_shards_of(AssignmentMode.MODULO, node_row(A, Modulo(2, 0), address="here"))
    assert claims(store, "0") == A
    text = sentence(standing(store, "1"))
    assert "no live node that takes runs has node_id 1 of 2" in text
    assert "leasehold plan --explain" in text


def test_no_shard_is_claimed_while_nodes_contradict_each_other():
    store = store_with_members(A, B)
    by_modulo = replace(store.snapshot(KEY).group, assignment=AssignmentMode.MODULO)
    store.update_group(by_modulo, observer="test")
    text = sentence(standing(store, "0"))
    assert "the modulo settings of 2 nodes conflict" in text
    assert "leasehold plan --explain" in text


def test_a_free_shard_goes_to_the_node_that_names_it_in_a_pinned_group():
    store = free_shards_of(
        AssignmentMode.PINNED,
        node_row(A, Pinned({}), address="here"),
        node_row(B, Pinned({"0": -1}), address="here"),
    )
    assert claims(store, "0") == B
    assert "no live node that takes runs is pinned to it" in sentence(standing(store, "1"))


def test_a_free_shard_planned_for_another_deployment_is_refused():
    store = store_with_members(A, C)
    claim(store, ZERO, A)
    text = sentence(standing(store, "1"))
    assert "is planned for node c, which another deployment serves" in text
    elsewhere = node_row(B, Pinned({"0": -1}), address="elsewhere")
    store = free_shards_of(
        AssignmentMode.PINNED, node_row(A, Pinned({}), address="here"), elsewhere
    )
    answer = sentence(standing(store, "0"))
    assert "is planned for node b, which another deployment serves" in answer


def test_a_node_that_accepts_no_runs_claims_nothing():
    store = store_with_members()
    closed = Node(A, 0, "incarnation-a", address="here", accepts_runs=False)
    store.register(KEY, closed, observer="test")
    assert "no live node takes runs" in sentence(standing(store, "0"))


def test_a_shard_that_its_source_closed_is_refused():
    store = store_with_members(A)
    store.sync_shards(KEY, [ShardListing(ONE, subscribable=False)], observer="test")
    assert "does not allow consumers to subscribe" in sentence(standing(store, "1"))


def test_a_free_shard_without_any_member_is_refused():
    assert "rebalance sensor" in sentence(standing(store_with_members(), "0"))
    assert "rebalance sensor" in sentence(standing(store_with_members(C), "0"))
    assert "rebalance sensor" in sentence(standing(store_with_members(A), "0", target="b"))


def test_an_unknown_shard_and_an_unserved_node_are_named():
    store = store_with_members(A)
    assert "'77'" in sentence(standing(store, "77"))
    assert "'zz'" in sentence(standing(store, "0", target="zz"))


def test_a_shard_of_another_deployment_or_another_node_is_refused_by_name():
    store = store_with_members(A, B, C)
    claim(store, ZERO, C)
    claim(store, ONE, A)
    assert "node c" in sentence(standing(store, "0"))
    assert "node a" in sentence(standing(store, "1", target="b"))


def test_a_waiting_shard_names_its_parents_and_a_paused_group_itself():
    store = store_with_members(A)
    assert "(0)" in sentence(standing(store, "2"))
    store.update_group(replace(store.snapshot(KEY).group, paused=True), observer="test")
    assert "paused" in sentence(standing(store, "0"))


def test_a_child_of_a_parent_that_was_never_listed_says_what_to_do():
    store = store_with_members(A)
    store.sync_shards(KEY, [ShardListing(ShardId("5"), parents=(ShardId("9"),))], observer="test")
    text = sentence(standing(store, "5"))
    assert "never listed (9)" in text
    assert "`gone_parents`" in text


def test_the_holder_does_not_consume_a_shard_that_its_source_closed():
    store = store_with_members(A)
    claim(store, ONE, A)
    store.sync_shards(KEY, [ShardListing(ONE, subscribable=False)], observer="test")
    assert "does not allow consumers to subscribe" in sentence(standing(store, "1"))


def test_a_finished_shard_of_a_paused_group_is_reported_as_finished():
    store = store_with_members(A)
    claim(store, ZERO, A)
    opened = store.open_tenure(KEY, ZERO, A, "run-1")
    assert isinstance(opened, Opened)
    store.finish_empty(opened.tenure, "0")
    store.update_group(replace(store.snapshot(KEY).group, paused=True), observer="test")
    assert standing(store, "0") == Finished()


def test_closing_an_ended_tenure_fences_its_run_and_frees_the_shard():
    store = store_with_members(A)
    claim(store, ZERO, A)
    opened = store.open_tenure(KEY, ZERO, A, "dead")
    assert isinstance(opened, Opened)
    assert isinstance(store.open_tenure(KEY, ZERO, A, "next"), OpenByOther)
    assert close_ended_tenure(store, KEY, ZERO, A, ended="dead", closing="closing-1")
    assert store.review([opened.tenure])[ZERO] == TenureView(current=False)
    after = store.open_tenure(KEY, ZERO, A, "next")
    assert isinstance(after, Opened)
    assert after.tenure == Tenure(KEY, ZERO, A, opened.tenure.epoch + 2, "next")


def test_closing_does_not_touch_another_tenure():
    store = store_with_members(A)
    claim(store, ZERO, A)
    opened = store.open_tenure(KEY, ZERO, A, "alive")
    assert isinstance(opened, Opened)
    assert not close_ended_tenure(store, KEY, ZERO, A, ended="dead", closing="closing-1")
    assert store.review([opened.tenure])[ZERO].current


def test_closing_an_ended_tenure_completes_a_waiting_transfer():
    store = store_with_members(A, B)
    claim(store, ZERO, A)
    assert isinstance(store.open_tenure(KEY, ZERO, A, "dead"), Opened)
    row = next(row for row in store.snapshot(KEY).shards if row.shard == ZERO)
    store.begin_transfer(KEY, {ZERO: (B, row.lease_id, "test")}, observer="test")[ZERO]
    assert close_ended_tenure(store, KEY, ZERO, A, ended="dead", closing="closing-1")
    assert standing(store, "0") == CanConsume(B, "incarnation-b", "")


def test_a_node_of_the_same_name_in_another_deployment_is_not_served():
    store = store_with_members()
    elsewhere = Node(A, 0, "incarnation-of-others", address="elsewhere")
    store.register(KEY, elsewhere, observer="test")
    assert "no node of this deployment" in sentence(standing(store, "1"))
    claim(store, ZERO, A)
    assert "another deployment serves" in sentence(standing(store, "0"))
