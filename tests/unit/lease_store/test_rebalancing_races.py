"""Rebalancing when others are faster, slower or silent: hand-overs, lost replies, late claims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dagster_leasehold.lease_store.errors import OutcomeUnknown, StoreUnavailable
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Stale
from dagster_leasehold.lease_store.rebalancing import TRANSFERS_PER_STEP
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.shard_rows import ShardListing
from tests.unit.lease_store.scene import KEY, TICK_S, Scene


def test_a_shard_is_transferred_at_the_batch_boundary_of_its_holder() -> None:
    scene = Scene(shards=2)
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    scene.tick(a)
    held = {shard: scene.open(shard).tenure for shard in "01"}
    (_, report) = scene.tick(a, b)
    assert report.owned["b"] == ()
    assert "shard 1 moves from a to b" in report.explanation
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
def test_after_its_deadline_a_transfer_completes_without_the_holder(
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
    assert "b took over 1: a did not release it" in report.explanation
    assert not scene.store.review([held["1"]])[ShardId("1")].current
    assert verify(scene.store, KEY) == []


def test_the_wait_for_a_transfer_survives_a_restart() -> None:
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


def test_after_a_failed_tick_the_whole_group_is_read_again() -> None:
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


def test_a_late_claim_is_reported_and_harmless() -> None:
    scene = Scene(shards=2)
    scene.store.register(KEY, Node(NodeName("b"), 0, "b.0"), observer="test")
    original = scene.store.claim

    def lost_race(key, claims, **kwargs):
        scene.store.claim = original
        (shard,) = claims
        original(key, {shard: (NodeName("b"), 0)}, observer="b", reason="test")
        return original(key, claims, **kwargs)

    scene.store.claim = lost_race
    (report,) = scene.tick(scene.rebalancer("a"))
    assert "1 claims of a came too late" in report.explanation
    assert sorted(scene.owners().values()) == ["a", "b"]


def test_freed_orphans_are_reported() -> None:
    scene = Scene(shards=1)
    rebalancer = scene.rebalancer("a")
    scene.tick(rebalancer)
    scene.list_shards(ShardListing(ShardId("1"), parents=(ShardId("0"),)))
    scene.tick(rebalancer)
    # A parent that was over before the restore of the database: no run finishes it again.
    rows = scene.store._groups[KEY]
    rows.shards[ShardId("0")] = replace(
        rows.shards[ShardId("0")], state=ShardState.OVER, lease_owner=None, consumer_owner=None
    )
    rows.group = replace(rows.group, generation=rows.group.generation + 1)
    rows.generations[ShardId("0")] = rows.group.generation
    (report,) = scene.tick(rebalancer)
    assert "freed 1 orphans: 1 waits for parents that are finished" in report.explanation
    assert report.owned["a"] == ("1",)


def test_stale_outcomes_are_planned_again() -> None:
    scene = Scene(shards=4)
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    scene.tick(a)
    original = scene.store.begin_transfer
    refused: list[ShardId] = []

    def late(key, transfers, **kwargs):
        others = dict(transfers)
        if not refused:
            refused.append(next(iter(others)))
            del others[refused[0]]
        stale = dict.fromkeys(transfers, Stale())
        return stale | original(key, others, **kwargs)

    scene.store.begin_transfer = late
    (_, report) = scene.tick(a, b)
    assert "came too late" in report.explanation
    assert scene.counts() == [2, 2]
    assert report.rounds == 2


def test_moves_beyond_the_time_of_a_tick_are_left_to_the_next_one() -> None:
    """A node that gains hundreds of shards from a slow store keeps beating."""
    scene = Scene(shards=5 * 2 * TRANSFERS_PER_STEP)
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    scene.tick(a)
    original = scene.store.begin_transfer

    def slow(*args, **kwargs):
        scene.now += 4.0
        return original(*args, **kwargs)

    scene.store.begin_transfer = slow
    (_, report) = scene.tick(a, b)
    assert "1500 moves are left to the next tick" in report.explanation
    assert scene.counts() == [1000, 4000]
    scene.tick(a, b, times=3)
    assert scene.counts() == [2500, 2500]
    assert not [entry for entry in scene.store.journal(KEY) if entry.kind == "evict"]


def test_long_lists_are_shortened_in_the_message_of_a_tick() -> None:
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
    assert report.statements["begin_transfer"] == 1
    assert report.decisions[-1] == "and 2 further moves"


def test_all_due_transfers_complete_in_one_tick() -> None:
    scene = Scene(shards=4, handoff_limit_s=10.0)
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    scene.tick(a)
    for shard in "0123":
        scene.open(shard)
    scene.tick(a, b, times=3)
    assert scene.counts() == [4]
    (_, report) = scene.tick(a, b)
    assert scene.counts() == [2, 2]
    assert sum("did not release it" in decision for decision in report.decisions) == 2


def test_transfers_to_another_deployment_are_left_to_it() -> None:
    scene = Scene(shards=2, handoff_limit_s=10.0)
    a, b, c = (scene.rebalancer(name) for name in "abc")
    scene.tick(a, c)
    held = [shard for shard, owner in scene.owners().items() if owner == "a"]
    scene.open(held[0])
    scene.store.begin_transfer(
        KEY, {ShardId(held[0]): (NodeName("c"), 1, "test")}, observer="test"
    )[ShardId(held[0])]
    scene.tick(b, times=4)
    assert scene.owners()[held[0]] == "a"


def test_one_claim_that_came_too_late_among_others_is_counted() -> None:
    scene = Scene(shards=4)
    scene.store.register(KEY, Node(NodeName("z"), 0, "z.0"), observer="test")
    original = scene.store.claim
    won: list[ShardId] = []

    def lost_race(key, claims, **kwargs):
        scene.store.claim = original
        stolen, other = claims
        won.append(other)
        original(key, {stolen: (NodeName("z"), 0)}, observer="z", reason="test")
        return original(key, claims, **kwargs)

    scene.store.claim = lost_race
    (report,) = scene.tick(scene.rebalancer("a"))
    assert f"a claimed shard {won[0]}: " in report.explanation
    assert "1 claims of a came too late" in report.explanation


def test_leaving_continues_after_a_failure_and_reports_it() -> None:
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
