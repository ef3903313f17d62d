"""Rebalancing on the memory store: joins, evictions, assignments, and their costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_leasehold.lease_store.errors import ModuloCountMismatch, ModuloIdTaken, NodeNameTaken
from dagster_leasehold.lease_store.group_rows import AssignmentMode, Node, Timing
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rebalancing import Rebalancer
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.shard_rows import ShardListing
from tests.unit.lease_store.scene import KEY, Scene


def test_one_node_claims_everything_in_its_first_tick() -> None:
    scene = Scene()
    (report,) = scene.tick(scene.rebalancer("a"))
    assert report.owned == {"a": tuple("01234567")}
    assert report.decisions[0] == "a joined"
    assert report.decisions[1].startswith("a claimed shards 0, 1, 2, 3, 4, 5, 6, 7: 8 consumable")
    assert report.rounds == 1


@pytest.mark.parametrize("shards", [1, 100, 1000])
def test_an_idle_tick_costs_three_statements_for_any_number_of_shards(shards: int) -> None:
    scene = Scene(shards=shards)
    rebalancer = scene.rebalancer("a")
    scene.tick(rebalancer, times=2)
    before = scene.store.statements.copy()
    (report,) = scene.tick(rebalancer)
    assert scene.store.statements - before == {"pulse": 1, "beat": 1, "progress": 1}
    assert report.statements == {"pulse": 1, "beat": 1, "progress": 1}
    assert report.decisions == ()
    assert report.explanation.startswith("nothing to change at generation")


def test_a_generation_that_a_failover_repeated_is_detected() -> None:
    scene = Scene(shards=1)
    rebalancer = scene.rebalancer("a")
    scene.tick(rebalancer, times=2)
    backup, group = scene.store.backup(), scene.store.pulse(KEY).group
    listing = [ShardListing(ShardId("0")), ShardListing(ShardId("1"))]
    scene.list_shards(*listing)
    (report,) = scene.tick(rebalancer)
    scene.store.restore(backup)
    scene.list_shards(*listing)
    while scene.store.pulse(KEY).group.generation < report.generation:
        scene.store.update_group(replace(group, node_cap=9), observer="test")
    assert scene.owners()["1"] is None
    scene.tick(rebalancer, times=2)
    assert scene.owners() == {"0": "a", "1": "a"}


def test_a_beat_that_can_wait_for_the_next_tick_waits() -> None:
    scene = Scene(timeout_s=300.0)
    rebalancer = Rebalancer(
        scene.store, KEY, serves=(NodeName("a"),), timing=Timing(300.0, 100.0), observer="a",
        incarnation_of=lambda name: f"{name}.1", clock=lambda: scene.now,
    )  # fmt: skip
    scene.tick(rebalancer, times=61)
    assert 3 <= scene.store.statements["beat"] <= 4


def test_nodes_that_arrive_together_are_balanced_in_one_round() -> None:
    scene = Scene()
    for name in "abc":
        scene.store.register(KEY, Node(NodeName(name), 0, f"{name}.0"), observer="test")
    rebalancers = [scene.rebalancer(name, beats=False) for name in "abc"]
    reports = scene.tick(*rebalancers)
    assert scene.counts() == [2, 3, 3]
    assert [report.rounds for report in reports] == [1, 1, 1]


def test_a_join_moves_only_the_newcomers_share_and_a_steady_group_moves_nothing() -> None:
    scene = Scene(shards=10)
    a, b, c = (scene.rebalancer(name) for name in "abc")
    scene.tick(a, b, times=2)
    before = scene.owners()
    scene.tick(a, b, c)
    after = scene.owners()
    moved = [shard for shard in before if before[shard] != after[shard]]
    assert len(moved) == 3
    assert {after[shard] for shard in moved} == {"c"}
    scene.tick(a, b, c)
    written = len(scene.store.journal(KEY))
    scene.tick(a, b, c, times=1000)
    assert len(scene.store.journal(KEY)) == written


def test_a_silent_node_is_evicted_after_the_timeout_and_not_before() -> None:
    scene = Scene()
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    scene.tick(a, b, times=3)
    (last_seen,) = (n.lease_id for n in scene.store.pulse(KEY).nodes if n.name == "a")
    b.tick()
    for _ in range(4):
        scene.now += 5.0
        assert "evicted" not in b.tick().explanation
    scene.now += 0.5
    report = b.tick()
    assert "evicted a (no heartbeat for 20.5 s, timeout 20 s), freed shards" in report.explanation
    assert report.owned["b"] == tuple("01234567")
    rejoined = a.tick()
    assert "a joined" in rejoined.explanation
    (counter,) = (n.lease_id for n in scene.store.pulse(KEY).nodes if n.name == "a")
    assert counter > last_seen, "a counter never goes back, or an old sight could match again"


def test_the_wall_clock_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> float:
        raise AssertionError("the time of day must decide nothing")

    scene = Scene()
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    monkeypatch.setattr("time.time", refuse)
    monkeypatch.setattr("time.monotonic", refuse)
    scene.tick(a, b, times=3)
    scene.tick(b, times=6)
    assert scene.counts() == [8]


def test_a_successor_continues_the_incarnation_and_the_observations() -> None:
    scene = Scene()
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    scene.tick(a, b, times=2)
    for _ in range(2):
        scene.now += 9
        remembered = b.tick().remembered
    successor = scene.rebalancer("b")
    successor.tick(remembered)
    assert successor.incarnations == b.incarnations
    scene.now += 3
    report = successor.tick()
    assert "evicted a" in report.explanation


def test_shards_of_a_run_that_died_in_a_reboot_are_freed_after_the_timeout() -> None:
    """The sensor keeps beating; if it had kept the incarnation, the run's death would go
    unnoticed.
    """
    scene = Scene()
    before = scene.rebalancer("a", place="boot-1")
    (report,) = scene.tick(before)
    dead = scene.open("0").tenure
    after = scene.rebalancer("a", place="boot-2")
    scene.now += 5.0
    after.tick(report.remembered)
    assert after.incarnations != before.incarnations
    scene.tick(after, times=3)
    assert scene.store.review([dead])[dead.shard].current, "it might live somewhere"
    scene.tick(after, times=2)
    assert not scene.store.review([dead])[dead.shard].current
    assert scene.counts() == [8]


def test_two_live_processes_cannot_share_a_name() -> None:
    scene = Scene()
    first, second = scene.rebalancer("a"), scene.rebalancer("a")
    scene.tick(first)
    for _ in range(8):
        (_, report) = scene.tick(first, second)
        (refusal,) = report.refusals
        assert isinstance(refusal.error, NodeNameTaken)
        assert report.owned == {"a": tuple("01234567")}
    assert "Another live process answers to node 'a'" in report.explanation


def test_the_name_of_a_dead_process_is_taken_over_after_the_timeout() -> None:
    scene = Scene()
    first, second = scene.rebalancer("a"), scene.rebalancer("a")
    scene.tick(first)
    tenure = scene.open("0").tenure
    begun = scene.now
    while second.tick().refusals:
        scene.now += 1
    assert 20 < scene.now - begun <= 22
    assert not scene.store.review([tenure])[ShardId("0")].current
    assert scene.counts() == [8]
    (report,) = scene.tick(first)
    assert isinstance(report.refusals[0].error, NodeNameTaken)
    assert verify(scene.store, KEY) == []


def test_one_deployment_can_serve_several_nodes() -> None:
    scene = Scene()
    both = scene.rebalancer("a", "b")
    (report,) = scene.tick(both)
    assert {node: len(shards) for node, shards in report.owned.items()} == {"a": 4, "b": 4}
    scene.tick(both)
    (report,) = scene.tick(both)
    assert report.statements == {"pulse": 1, "beat": 2, "progress": 1}


def test_a_deployment_carries_out_only_moves_to_its_nodes() -> None:
    scene = Scene()
    for name in "ab":
        scene.store.register(KEY, Node(NodeName(name), 0, f"{name}.0"), observer="test")
    (report,) = scene.tick(scene.rebalancer("a", beats=False))
    assert len(report.owned["a"]) == 4
    assert sum(action.gains == "b" for action in report.plan.actions) == 4
    assert list(scene.owners().values()).count(None) == 4


def test_an_agent_that_stops_is_evicted_even_by_the_deployment_that_serves_it() -> None:
    scene = Scene()
    scene.store.register(KEY, Node(NodeName("a"), 0, "agent"), observer="agent")
    rebalancer = scene.rebalancer("a", beats=False)
    (report,) = scene.tick(rebalancer)
    assert len(report.owned["a"]) == 8
    (report,) = scene.tick(rebalancer, times=6)
    assert report.owned["a"] == ()
    assert "beat" not in scene.store.statements


def test_a_node_that_stops_accepting_runs_loses_its_shards_and_gets_them_back_later() -> None:
    scene = Scene()
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    scene.tick(a, b, times=2)
    a.offer(Node(NodeName("a"), 0, "", accepts_runs=False))
    reports = scene.tick(a, b, times=2)
    assert "a" not in scene.owners().values()
    assert reports[0].live == {"a", "b"}
    a.offer(Node(NodeName("a"), 0, ""))
    scene.tick(a, b, times=2)
    assert scene.counts() == [4, 4]


def test_leaving_frees_all_shards_at_once() -> None:
    scene = Scene()
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    scene.tick(a, b, times=2)
    assert a.leave() == ["a left and freed shards 0, 1, 2, 3"]
    (report,) = scene.tick(b)
    assert report.owned["b"] == tuple("01234567")


def test_children_wait_until_their_parents_are_over() -> None:
    scene = Scene(shards=1)
    rebalancer = scene.rebalancer("a")
    scene.tick(rebalancer)
    scene.list_shards(
        ShardListing(ShardId("0"), read_only=True),
        ShardListing(ShardId("1"), parents=(ShardId("0"),)),
        ShardListing(ShardId("2"), parents=(ShardId("0"),)),
    )
    (report,) = scene.tick(rebalancer)
    assert report.owned["a"] == ("0",)
    scene.store.finish_empty(scene.open("0").tenure, "10")
    (report,) = scene.tick(rebalancer)
    assert report.owned["a"] == ("1", "2")
    assert verify(scene.store, KEY) == []


def test_a_paused_group_claims_nothing_and_continues_when_resumed() -> None:
    scene = Scene(paused=True)
    rebalancer = scene.rebalancer("a")
    (report,) = scene.tick(rebalancer)
    assert report.owned["a"] == ()
    assert "paused" in report.plan.summary
    group = scene.store.pulse(KEY).group
    scene.store.update_group(replace(group, paused=False), observer="test")
    (report,) = scene.tick(rebalancer)
    assert len(report.owned["a"]) == 8


def test_a_modulo_member_that_contradicts_is_refused_and_does_not_join() -> None:
    scene = Scene(assignment=AssignmentMode.MODULO)
    settings = {
        NodeName(name): Node(NodeName(name), 0, "", source_count=2, node_id=remainder)
        for name, remainder in [("a", 0), ("b", 1), ("c", 1)]
    }
    a, b, c = (scene.rebalancer(name, settings=settings) for name in "abc")
    scene.tick(a, b)
    (*_, report) = scene.tick(a, b, c, times=2)
    assert isinstance(report.refusals[0].error, ModuloIdTaken)
    assert scene.owners() == {str(i): "ab"[i % 2] for i in range(8)}


def test_the_name_of_a_node_that_left_is_taken_at_once() -> None:
    scene = Scene(shards=1)
    first, second = scene.rebalancer("a"), scene.rebalancer("a")
    scene.tick(first)
    first.leave()
    (report,) = scene.tick(second)
    assert report.refusals == ()
    assert report.decisions[0] == "a joined"


def modulo_settings(count: int, *names: str) -> dict[NodeName, Node]:
    return {
        NodeName(name): Node(NodeName(name), 0, "", source_count=count, node_id=place)
        for place, name in enumerate(names)
    }


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_a_modulo_group_is_resized_by_new_settings_in_any_order(order: str, together: bool) -> None:
    """A node whose settings changed is no member under the old ones, so no node waits for another.

    Served by one deployment, or each node by its own; the restart keeps the incarnations.
    """
    scene = Scene(shards=6, assignment=AssignmentMode.MODULO)
    parties = [("a", "b")] if together else [("a",), ("b",)]
    old = [scene.rebalancer(*names, settings=modulo_settings(2, "a", "b")) for names in parties]
    memories = [scene.tick(each)[0].remembered for each in old]
    remembered = dict(zip(parties, memories, strict=True))
    assert scene.owners() == {str(i): "ab"[i % 2] for i in range(6)}
    wanted = modulo_settings(3, "a", "b", "c")
    resized = [tuple(order)] if together else [(name,) for name in order]
    new = []
    for names in resized:
        rebalancer = scene.rebalancer(*names, settings=wanted)
        rebalancer.tick(remembered.get(tuple(sorted(names)), remembered.get(("a", "b"), "")))
        new.append(rebalancer)
    reports = scene.tick(*new, times=3)
    assert [report.refusals for report in reports] == [()] * len(new)
    assert scene.owners() == {str(i): "abc"[i % 3] for i in range(6)}
    assert verify(scene.store, KEY) == []


def test_a_member_whose_new_settings_contradict_the_others_leaves_and_says_so() -> None:
    scene = Scene(shards=4, assignment=AssignmentMode.MODULO)
    a = scene.rebalancer("a", settings=modulo_settings(2, "a", "b"))
    b = scene.rebalancer("b", settings=modulo_settings(2, "a", "b"))
    scene.tick(a, b, times=2)
    b.offer(Node(NodeName("b"), 0, "", source_count=3, node_id=1))
    (_, report) = scene.tick(a, b)
    assert [type(refusal.error) for refusal in report.refusals] == [ModuloCountMismatch]
    assert "b could not join: Node 'b' has source_count 3" in report.explanation
    assert "b left" in report.explanation
    scene.tick(a, b, times=3)
    assert scene.owners() == {"0": "a", "1": None, "2": "a", "3": None}


def test_a_member_that_has_to_leave_lets_its_runs_end_first() -> None:
    """Otherwise another node would open a shard while a run of this one still trusts its lease."""
    scene = Scene(shards=4, assignment=AssignmentMode.MODULO)
    settings = modulo_settings(2, "a", "b")
    a, b = (scene.rebalancer(name, settings=settings) for name in "ab")
    scene.tick(a, b, times=2)
    opened = scene.store.open_tenure(KEY, ShardId("1"), NodeName("b"), "run-1")
    assert isinstance(opened, Opened)
    b.offer(Node(NodeName("b"), 0, "", source_count=3, node_id=1))
    (_, report) = scene.tick(a, b, times=2)[-2:]
    assert "b leaves once its runs have ended" in report.explanation
    assert report.owned["b"] == (), "nothing new is launched for it"
    assert scene.owners() == {"0": "a", "1": "b", "2": "a", "3": "b"}
    assert scene.store.review([opened.tenure])[ShardId("1")].current
    scene.store.close_tenure(opened.tenure, reason="done")
    scene.tick(a, b)
    assert scene.owners() == {"0": "a", "1": None, "2": "a", "3": None}


def test_a_member_that_has_to_leave_does_not_wait_for_dead_runs() -> None:
    """No run is launched that would replace them, and there can be no other node.

    A live run beats for the node. Once the counter has not moved for T, none is alive.
    """
    scene = Scene(shards=2, assignment=AssignmentMode.MODULO)
    b = scene.rebalancer("b", settings=modulo_settings(2, "a", "b"))
    scene.tick(b, times=2)
    opened = scene.store.open_tenure(KEY, ShardId("1"), NodeName("b"), "run-that-dies")
    assert isinstance(opened, Opened)
    b.offer(Node(NodeName("b"), 0, "", source_count=1, node_id=1))
    reports = [report for _ in range(10) for report in scene.tick(b)]
    assert "b leaves once its runs have ended" in reports[0].explanation
    assert any("evicted b" in report.explanation for report in reports)
    assert scene.owners() == {"0": None, "1": None}
    assert not scene.store.review([opened.tenure])[ShardId("1")].current


def test_a_refusal_of_the_plan_is_in_the_explanation_as_long_as_it_lasts() -> None:
    """The mode changed under members that give no numbers."""
    scene = Scene(shards=2)
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    scene.tick(a, b, times=2)
    group = scene.store.pulse(KEY).group
    changed = replace(group, assignment=AssignmentMode.MODULO)
    scene.store.update_group(changed, observer="test")
    for report in (*scene.tick(a, b), *scene.tick(a, b)):
        assert "a is refused: Node 'a' gives no source_count" in report.explanation
        assert "b is refused" in report.explanation
