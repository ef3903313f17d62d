"""A member that no process rebalances for: an agent keeps it alive."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_leasehold.lease_store.errors import (
    NodeNameTaken,
    OutcomeUnknown,
    StoreUnavailable,
    UnknownGroup,
)
from dagster_leasehold.lease_store.group_rows import AssignmentMode, Group, Node, Pulse
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.member import Member
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Changed, Opened, Stale
from dagster_leasehold.lease_store.shard_rows import ShardListing
from tests.manual_clock import ManualClock

KEY = GroupKey.parse("default", "orders")
A, ZERO = NodeName("a"), ShardId("0")
TIMEOUT_S = 20.0


@pytest.fixture
def store() -> MemoryStore:
    empty = MemoryStore()
    empty.create_group(Group(KEY, timeout_s=TIMEOUT_S))
    empty.sync_shards(KEY, [ShardListing(ZERO)], observer="test")
    return empty


def member(store: MemoryStore, clock: ManualClock, incarnation: str = "first") -> Member:
    return Member(store, KEY, Node(A, 0, incarnation, address="here"), clock=clock)


def row(store: MemoryStore) -> Node:
    (only,) = store.snapshot(KEY).nodes
    return only


def test_a_member_joins_once_and_beats_every_third_of_the_timeout(store: MemoryStore) -> None:
    clock = ManualClock()
    place = member(store, clock)
    assert place.keep_alive(accepts_runs=True) == "joined group orders/default"
    began = row(store).lease_id
    for _ in range(40):
        clock.now_s += 0.5
        assert place.keep_alive(accepts_runs=True) == ""
    assert row(store).address == "here"
    assert 3 <= row(store).lease_id - began <= 5


def test_a_beat_reads_no_other_node(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a thousand nodes would read a million rows in the time of one beat."""
    clock, pulses = ManualClock(), list[tuple[NodeName, ...]]()
    place = member(store, clock)
    store.register(KEY, Node(NodeName("b"), 0, "other"), observer="test")
    place.keep_alive(accepts_runs=True)
    whole = MemoryStore.pulse

    def seen(self: MemoryStore, key: GroupKey, node: NodeName | None = None) -> Pulse:
        pulse = whole(self, key, node)
        pulses.append(tuple(row.name for row in pulse.nodes))
        return pulse

    monkeypatch.setattr(MemoryStore, "pulse", seen)
    clock.now_s += 7
    place.keep_alive(accepts_runs=True)
    assert pulses == [(A,)]


def test_a_member_waits_for_its_group() -> None:
    place = member(MemoryStore(), ManualClock())
    assert place.keep_alive(accepts_runs=True) == ""
    assert not place.joined
    assert place.open_shards() == []
    with pytest.raises(UnknownGroup):
        place.leave()


def test_a_member_stores_whether_it_accepts_runs(store: MemoryStore) -> None:
    place = member(store, ManualClock())
    place.keep_alive(accepts_runs=True)
    assert place.keep_alive(accepts_runs=False) == "takes no runs for now in group orders/default"
    assert not row(store).accepts_runs
    assert place.keep_alive(accepts_runs=True) == "takes runs again in group orders/default"
    assert row(store).accepts_runs


def test_a_cold_member_takes_no_runs_while_all_others_do(store: MemoryStore) -> None:
    clock = ManualClock()
    other = Node(NodeName("b"), 0, "other")
    place = member(store, clock)
    place.cold = True
    place.keep_alive(accepts_runs=True)
    assert place.settings.accepts_runs, "a cold member without others must take runs"
    store.register(KEY, other, observer="test")
    for others_take_runs in (True, False, True):
        store.register(KEY, replace(other, accepts_runs=others_take_runs), observer="test")
        for _ in range(8):
            clock.now_s += 1
            place.keep_alive(accepts_runs=True)
        [stored] = [node for node in store.snapshot(KEY).nodes if node.name == A]
        assert stored.accepts_runs is not others_take_runs
    place.cold = False
    place.keep_alive(accepts_runs=True)
    assert all(node.accepts_runs for node in store.snapshot(KEY).nodes)


def test_a_cold_member_takes_runs_where_shards_cannot_move() -> None:
    store = MemoryStore()
    store.create_group(Group(KEY, assignment=AssignmentMode.MODULO))
    store.register(KEY, Node(NodeName("b"), 0, "b", source_count=2, node_id=1), observer="test")
    settings = Node(A, 0, "first", source_count=2, node_id=0)
    place = Member(store, KEY, settings, clock=ManualClock())
    place.cold = True
    place.keep_alive(accepts_runs=True)
    assert all(node.accepts_runs for node in store.snapshot(KEY).nodes)


def test_the_name_of_a_live_member_is_refused_in_one_sentence(store: MemoryStore) -> None:
    clock = ManualClock()
    first, second = member(store, clock), member(store, clock, "second")
    first.keep_alive(accepts_runs=True)
    assert second.keep_alive(accepts_runs=True) == ""
    clock.now_s += 7.0
    first.keep_alive(accepts_runs=True)
    with pytest.raises(NodeNameTaken, match=r"^Another live process answers to node 'a'[^\n]+$"):
        second.keep_alive(accepts_runs=True)
    assert row(store).incarnation == "first"


def test_the_name_of_a_frozen_process_is_taken_over_after_the_timeout(store: MemoryStore) -> None:
    clock = ManualClock()
    member(store, clock).keep_alive(accepts_runs=True)
    second = member(store, clock, "second")
    second.keep_alive(accepts_runs=True)
    for _ in range(2):
        clock.now_s += (TIMEOUT_S - 1) / 2
        second.keep_alive(accepts_runs=True)
    assert row(store).incarnation == "first"
    clock.now_s += 2
    assert second.keep_alive(accepts_runs=True) == "joined group orders/default"
    assert row(store).incarnation == "second"


def test_an_evicted_member_joins_again(store: MemoryStore) -> None:
    clock = ManualClock()
    place = member(store, clock)
    place.keep_alive(accepts_runs=True)
    store.evict(KEY, A, row(store).lease_id, observer="test", reason="no beat")
    clock.now_s += 7
    assert place.keep_alive(accepts_runs=True) == "joined group orders/default"


def test_leaving_frees_all_shards_at_once(store: MemoryStore) -> None:
    place = member(store, ManualClock())
    place.keep_alive(accepts_runs=True)
    (lease,) = store.snapshot(KEY).shards
    store.claim(KEY, {ZERO: (A, lease.lease_id)}, observer="test", reason="free")
    assert place.open_shards() == []
    assert isinstance(store.open_tenure(KEY, ZERO, A, "run"), Opened)
    assert place.open_shards() == [ZERO]
    assert place.leave() == Changed((ZERO,))
    (lease,) = store.snapshot(KEY).shards
    assert lease.consumer_owner is None
    assert isinstance(place.leave(), Stale)


def test_a_change_with_a_lost_reply_is_repeated_and_so_is_its_reverse() -> None:
    """The store can have stored the change: the last state of the node is unknown."""

    class LosesAReply(MemoryStore):
        loses = False

        def register(self, *args: object, **options: object) -> object:  # pyright: ignore
            outcome = super().register(*args, **options)  # pyright: ignore
            if self.loses:
                raise OutcomeUnknown("the reply was lost")
            return outcome

    store = LosesAReply()
    store.create_group(Group(KEY, timeout_s=TIMEOUT_S))
    place = member(store, ManualClock())
    place.keep_alive(accepts_runs=True)
    store.loses = True
    with pytest.raises(OutcomeUnknown):
        place.keep_alive(accepts_runs=False)
    assert not row(store).accepts_runs
    store.loses = False
    place.keep_alive(accepts_runs=True)
    assert row(store).accepts_runs


def test_a_change_that_the_store_lost_is_repeated_with_the_next_beat(store: MemoryStore) -> None:
    clock = ManualClock()
    place = member(store, clock)
    place.keep_alive(accepts_runs=True)
    place.keep_alive(accepts_runs=False)
    backup = store.backup()
    place.keep_alive(accepts_runs=True)
    store.restore(backup)
    clock.now_s += 7
    assert place.keep_alive(accepts_runs=True) == "joined group orders/default"
    assert row(store).accepts_runs


def test_a_name_is_contested_while_another_incarnation_beats(store: MemoryStore) -> None:
    clock = ManualClock()
    first, second = member(store, clock), member(store, clock, "second")
    assert second.contested, "nobody has looked yet"
    first.keep_alive(accepts_runs=True)
    second.keep_alive(accepts_runs=True, joins=False)
    assert second.contested
    for _ in range(2):
        clock.now_s += (TIMEOUT_S + 1) / 2
        assert second.keep_alive(accepts_runs=True, joins=False) == ""
    assert not second.contested
    assert row(store).incarnation == "first", "it was only watched"
    assert second.keep_alive(accepts_runs=True) == "joined group orders/default"
    assert not second.contested


def test_a_name_is_not_taken_from_a_process_that_could_not_reach_the_store(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store is away, the one that has the name can beat as little as the other."""
    clock = ManualClock()
    member(store, clock).keep_alive(accepts_runs=True)
    second = member(store, clock, "second")
    second.keep_alive(accepts_runs=True)
    with monkeypatch.context() as outage:

        def away(*_: object) -> object:
            clock.now_s += 5
            raise StoreUnavailable("The store is away.")

        outage.setattr(store, "pulse", away)
        for _ in range(20):
            with pytest.raises(StoreUnavailable):
                second.keep_alive(accepts_runs=True)
    second.keep_alive(accepts_runs=True)
    clock.now_s += TIMEOUT_S / 2
    second.keep_alive(accepts_runs=True)
    assert row(store).incarnation == "first"
