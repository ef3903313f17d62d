"""Rebalancing on the memory store, on a clock moved by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lease_store.errors import ModuloIdTaken, NodeNameTaken, OutcomeUnknown, StoreUnavailable
from lease_store.identifiers import GroupKey, NodeName, ShardId
from lease_store.memory_store import MemoryStore
from lease_store.rebalancing import Rebalancer
from lease_store.records import AssignmentMode, Group, Node, ShardListing, Timing
from lease_store.states import ShardState
from lease_store.store import Opened, Stale
from lease_store.tick_report import TickReport
from lease_store.verification import verify

KEY = GroupKey.parse("group", "stream")
TIMING = Timing(timeout_s=20.0, beat_s=6.0)
TICK_S = 5.0


class Scene:
    """A group with shards, and rebalancers that tick on one clock."""

    def __init__(self, shards: int = 8, store: MemoryStore | None = None, **group: object) -> None:
        self.now = 0.0
        self.store = store or MemoryStore()
        self.store.create_group(replace(Group(KEY), **group))
        self.list_shards(*(ShardListing(ShardId(str(i))) for i in range(shards)))
        self.made = 0

    def list_shards(self, *listing: ShardListing) -> None:
        self.store.sync_shards(KEY, listing, observer="test")

    def rebalancer(self, *names: str, **options: object) -> Rebalancer:
        def incarnation_of(name: NodeName) -> str:
            self.made += 1
            return f"{name}.{self.made}"

        return Rebalancer(
            self.store,
            KEY,
            serves=tuple(map(NodeName, names)),
            timing=TIMING,
            observer="+".join(names),
            incarnation_of=incarnation_of,
            clock=lambda: self.now,
            **options,
        )

    def tick(self, *rebalancers: Rebalancer, times: int = 1) -> list[TickReport]:
        reports: list[TickReport] = []
        for _ in range(times):
            self.now += TICK_S
            reports = [rebalancer.tick() for rebalancer in rebalancers]
        return reports

    def owners(self) -> dict[str, str | None]:
        shards = self.store.snapshot(KEY).shards
        return {str(lease.shard): lease.consumer_owner for lease in shards}

    def counts(self) -> list[int]:
        owners = list(self.owners().values())
        return sorted(owners.count(owner) for owner in {*owners} - {None})

    def open(self, shard: str, run: str = "run") -> Opened:
        owner = self.owners()[shard]
        assert owner is not None
        outcome = self.store.open_tenure(KEY, ShardId(shard), NodeName(owner), run)
        assert isinstance(outcome, Opened)
        return outcome


def test_one_node_claims_everything_in_its_first_tick() -> None:
    scene = Scene()
    (report,) = scene.tick(scene.rebalancer("a"))
    assert report.owned == {"a": tuple("01234567")}
    assert report.decisions[0] == "a joined"
    assert report.decisions[1].startswith("a claimed shards 0, 1, 2, 3, 4, 5, 6, 7: 8 shards")
    assert report.rounds == 1


@pytest.mark.parametrize("shards", [1, 100, 1000])
def test_an_idle_tick_is_three_statements_whatever_the_number_of_shards(shards: int) -> None:
    scene = Scene(shards=shards)
    rebalancer = scene.rebalancer("a")
    scene.tick(rebalancer, times=2)
    before = scene.store.statements.copy()
    (report,) = scene.tick(rebalancer)
    assert scene.store.statements - before == {"pulse": 1, "beat": 1, "progress": 1}
    assert report.statements == {"pulse": 1, "beat": 1, "progress": 1}
    assert report.decisions == ()
    assert report.explanation.startswith("nothing to change at generation")


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
    scene.now += 20.0
    assert "evicted" not in b.tick().explanation
    scene.now += 0.5
    report = b.tick()
    assert "evicted a (no beat for 20.5 s, timeout 20 s), freed shards" in report.explanation
    assert report.owned["b"] == tuple("01234567")
    rejoined = a.tick()
    assert "a joined" in rejoined.explanation
    (counter,) = (n.lease_id for n in scene.store.pulse(KEY).nodes if n.name == "a")
    assert counter > last_seen, "a counter never goes back, or an old sight could match again"


def test_the_wall_clock_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> float:
        raise AssertionError("the time of day must decide nothing")

    scene = Scene()
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    monkeypatch.setattr("time.time", refuse)
    monkeypatch.setattr("time.monotonic", refuse)
    scene.tick(a, b, times=3)
    scene.tick(b, times=6)
    assert scene.counts() == [8]


def test_a_tenure_is_handed_over_at_the_holders_boundary() -> None:
    scene = Scene(shards=2)
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    scene.tick(a)
    held = {shard: scene.open(shard).tenure for shard in "01"}
    (_, report) = scene.tick(a, b)
    assert report.owned["b"] == ()
    assert "transfer 1 from a to b" in report.explanation
    view = scene.store.review([held["1"]])[ShardId("1")]
    assert view.current
    assert view.transfer_to == "b"
    scene.store.close_tenure(held["1"], reason="handed over")
    (_, report) = scene.tick(a, b)
    assert report.owned["b"] == ("1",)
    assert verify(scene.store, KEY) == []


@pytest.mark.parametrize(
    ("eta_s", "limit_s", "deadline_s"), [(None, 30.0, 30.0), (12.0, 30.0, 12.0), (99.0, 30.0, 30.0)]
)
def test_past_its_deadline_a_hand_over_happens_without_the_holder(
    eta_s: float | None, limit_s: float, deadline_s: float
) -> None:
    scene = Scene(shards=2, handoff_limit_s=limit_s)
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    scene.tick(a)
    held = {shard: scene.open(shard).tenure for shard in "01"}
    if eta_s is not None:
        scene.store.announce(held["1"], handoff_eta_s=eta_s)
    scene.tick(a, b)
    begun = scene.now
    while scene.owners()["1"] == "a":
        assert scene.now - begun < 120
        (_, report) = scene.tick(a, b)
    waited_s = scene.now - begun
    assert deadline_s < waited_s <= deadline_s + TICK_S
    assert "b took over 1: a did not let go" in report.explanation
    assert not scene.store.review([held["1"]])[ShardId("1")].current
    assert verify(scene.store, KEY) == []


def test_the_wait_for_a_hand_over_survives_a_restart() -> None:
    scene = Scene(shards=2, handoff_limit_s=30.0)
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    scene.tick(a)
    scene.open("1")
    scene.open("0")
    scene.tick(a, b)
    begun = scene.now
    remembered = ""
    while scene.owners()["1"] == "a":
        assert scene.now - begun < 120
        successor = scene.rebalancer("b")
        successor.tick(remembered or b.tick().remembered)
        scene.tick(a, successor, times=2)
        remembered = successor.tick().remembered
    assert scene.now - begun <= 40


def test_a_transfer_returns_to_its_holder_when_the_next_dies() -> None:
    scene = Scene(shards=2)
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    scene.tick(a)
    held = {shard: scene.open(shard).tenure for shard in "01"}
    scene.tick(a, b)
    scene.tick(a, times=6)
    lease = next(lease for lease in scene.store.snapshot(KEY).shards if lease.shard == "1")
    assert (lease.state, lease.lease_owner) == (ShardState.ALREADY_ALLOC, "a")
    assert scene.store.review([held["1"]])[ShardId("1")].current, "nothing is read again"


def test_a_successor_continues_the_incarnation_and_the_observations() -> None:
    scene = Scene()
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    scene.tick(a, b, times=2)
    scene.now += 18
    remembered = b.tick().remembered
    successor = scene.rebalancer("b")
    successor.tick(remembered)
    assert successor.incarnations == b.incarnations
    scene.now += 3
    report = successor.tick()
    assert "evicted a" in report.explanation


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


def test_a_deployment_carries_out_only_what_its_nodes_gain() -> None:
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


def test_a_node_that_takes_no_runs_gives_its_shards_away_and_gets_them_back() -> None:
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


def test_leaving_frees_everything_at_once() -> None:
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


def test_a_paused_group_claims_nothing_and_goes_on_afterwards() -> None:
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


class FaultyStore(MemoryStore):
    """A memory store that loses the reply of one verb, after or before its effect."""

    def __init__(self) -> None:
        super().__init__()
        self.fault: Callable[[str], Exception | None] = lambda verb: None

    def claim(self, *args, **kwargs):
        outcome = super().claim(*args, **kwargs)
        if error := self.fault("claim"):
            raise error
        return outcome

    def progress(self, *args, **kwargs):
        if error := self.fault("progress"):
            raise error
        return super().progress(*args, **kwargs)


def test_an_unknown_outcome_is_read_again_not_repeated() -> None:
    store = FaultyStore()
    scene = Scene(store=store)
    errors = iter([OutcomeUnknown("the reply was lost")])
    store.fault = lambda verb: next(errors, None) if verb == "claim" else None
    (report,) = scene.tick(scene.rebalancer("a"))
    assert "the outcome of a write is unknown" in report.explanation
    assert len(report.owned["a"]) == 8
    assert all(lease.lease_id == 1 for lease in report.snapshot.shards)


def test_after_a_failed_tick_nothing_is_taken_for_read() -> None:
    store = FaultyStore()
    scene = Scene(store=store)
    rebalancer = scene.rebalancer("a")
    store.fault = lambda verb: StoreUnavailable("gone") if verb == "progress" else None
    with pytest.raises(StoreUnavailable):
        rebalancer.tick()
    store.fault = lambda verb: None
    (report,) = scene.tick(rebalancer)
    assert len(report.owned["a"]) == 8
    assert report.statements["snapshot"] == 1


def test_a_corrupt_memory_starts_from_nothing() -> None:
    scene = Scene()
    report = scene.rebalancer("a").tick('{"format":1,"incarnations":{"a":["x"]},"nodes":7}')
    assert len(report.owned["a"]) == 8


def test_a_late_claim_is_said_and_costs_nothing() -> None:
    scene = Scene(shards=1)
    scene.store.register(KEY, Node(NodeName("b"), 0, "b.0"), observer="test")
    original = scene.store.claim

    def lost_race(key, claims, **kwargs):
        scene.store.claim = original
        original(key, {ShardId("0"): (NodeName("b"), 0)}, observer="b", reason="test")
        return original(key, claims, **kwargs)

    scene.store.claim = lost_race
    (report,) = scene.tick(scene.rebalancer("a"))
    assert "1 claims of a came too late" in report.explanation
    assert scene.owners() == {"0": "b"}


def test_freed_orphans_are_reported() -> None:
    scene = Scene(shards=1)
    rebalancer = scene.rebalancer("a")
    scene.tick(rebalancer)
    scene.list_shards(ShardListing(ShardId("1"), parents=(ShardId("0"),)))
    scene.tick(rebalancer)
    # A parent that a restored database had already seen over: nobody finishes it again.
    rows = scene.store._groups[KEY]
    rows.shards[ShardId("0")] = replace(
        rows.shards[ShardId("0")], state=ShardState.OVER, lease_owner=None, consumer_owner=None
    )
    rows.bump()
    (report,) = scene.tick(rebalancer)
    assert "freed 1 orphans: 1 waits for parents that are finished" in report.explanation
    assert report.owned["a"] == ("1",)


def test_stale_outcomes_are_planned_again() -> None:
    scene = Scene(shards=4)
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    scene.tick(a)
    original = scene.store.begin_transfer
    refused: list[ShardId] = []

    def late(key, shard, *args, **kwargs):
        if not refused:
            refused.append(shard)
            return Stale()
        return original(key, shard, *args, **kwargs)

    scene.store.begin_transfer = late
    (_, report) = scene.tick(a, b)
    assert "came too late" in report.explanation
    assert scene.counts() == [2, 2]
    assert report.rounds == 2


def test_moves_that_take_too_long_are_left_to_the_next_tick() -> None:
    """A node that gains hundreds of shards from a slow store goes on beating meanwhile."""
    scene = Scene(shards=100)
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    scene.tick(a)
    original = scene.store.begin_transfer

    def slow(*args, **kwargs):
        scene.now += 1.0
        return original(*args, **kwargs)

    scene.store.begin_transfer = slow
    (_, report) = scene.tick(a, b)
    assert "44 moves are left to the next tick" in report.explanation
    assert scene.counts() == [6, 94]
    scene.tick(a, b, times=9)
    assert scene.counts() == [50, 50]
    assert not [entry for entry in scene.store.journal(KEY) if entry.kind == "evict"]


def test_long_lists_are_cut_in_what_a_tick_says() -> None:
    scene = Scene(shards=13)
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    (report,) = scene.tick(a)
    assert "a claimed 13 shards (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, …):" in report.explanation
    (_, report) = scene.tick(a, b)
    assert len(report.decisions) == 1 + 6
    assert "further" not in report.explanation

    scene = Scene(shards=12)
    (report,) = scene.tick(scene.rebalancer("a"))
    assert "a claimed shards 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11:" in report.explanation

    scene = Scene(shards=28)
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    scene.tick(a)
    (_, report) = scene.tick(a, b)
    assert len(report.decisions) == 1 + 12 + 1
    assert report.decisions[-1] == "and 2 further moves alike"


def test_every_hand_over_that_is_due_is_completed_in_one_tick() -> None:
    scene = Scene(shards=4, handoff_limit_s=10.0)
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    scene.tick(a)
    for shard in "0123":
        scene.open(shard)
    scene.tick(a, b, times=3)
    assert scene.counts() == [4]
    (_, report) = scene.tick(a, b)
    assert scene.counts() == [2, 2]
    assert sum("did not let go" in decision for decision in report.decisions) == 2


def test_hand_overs_of_another_deployment_are_left_to_it() -> None:
    scene = Scene(shards=2, handoff_limit_s=10.0)
    a, b, c = (scene.rebalancer(name) for name in "abc")
    scene.tick(a, c)
    held = [shard for shard, owner in scene.owners().items() if owner == "a"]
    scene.open(held[0])
    scene.store.begin_transfer(
        KEY, ShardId(held[0]), 1, NodeName("c"), observer="test", reason="test"
    )
    scene.tick(b, times=4)
    assert scene.owners()[held[0]] == "a"


def test_one_claim_that_came_too_late_among_others_is_counted() -> None:
    scene = Scene(shards=3)
    scene.store.register(KEY, Node(NodeName("z"), 0, "z.0"), observer="test")
    original = scene.store.claim

    def lost_race(key, claims, **kwargs):
        scene.store.claim = original
        original(key, {ShardId("0"): (NodeName("z"), 0)}, observer="z", reason="test")
        return original(key, claims, **kwargs)

    scene.store.claim = lost_race
    (report,) = scene.tick(scene.rebalancer("a"))
    assert "a claimed shard 2: " in report.explanation
    assert "1 claims of a came too late" in report.explanation


def test_a_name_that_was_left_is_simply_taken() -> None:
    scene = Scene(shards=1)
    first, second = scene.rebalancer("a"), scene.rebalancer("a")
    scene.tick(first)
    first.leave()
    (report,) = scene.tick(second)
    assert report.refusals == ()
    assert report.decisions[0] == "a joined"


def test_leaving_goes_on_after_a_failure_and_reports_it() -> None:
    scene = Scene()
    both = scene.rebalancer("a", "b")
    scene.tick(both)
    original = scene.store.leave

    def fails_for_a(key, node, incarnation):
        if node == "a":
            raise StoreUnavailable("gone")
        return original(key, node, incarnation)

    scene.store.leave = fails_for_a
    with pytest.raises(StoreUnavailable):
        both.leave()
    assert [node.name for node in scene.store.pulse(KEY).nodes if node.member] == ["a"]
