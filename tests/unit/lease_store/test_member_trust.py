"""A member's beats while a run works, and its trust window."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from dagster_leasehold.lease_store.errors import OutcomeUnknown, StoreUnavailable
from dagster_leasehold.lease_store.group_rows import Group, Node, Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.member import Member
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Beaten, BeatRefused
from tests.manual_clock import ManualClock
from tests.waiting import wait_for

KEY = GroupKey.parse("group", "stream")
NODE = NodeName("node-a")
TIMING = Timing(timeout_s=20.0, beat_s=5.0)


class ScriptedStore(MemoryStore):
    """A memory store whose beats can be made slow, or to fail before or after their effect."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.create_group(Group(KEY))
        self.register(KEY, Node(NODE, 0, "first"), observer="test")

    def beat(self, key: GroupKey, node: NodeName, incarnation: str) -> Beaten | BeatRefused:
        self.before()
        outcome = super().beat(key, node, incarnation)
        self.after()
        return outcome


def heartbeat(store: MemoryStore, clock: Callable[[], float]) -> Member:
    return Member(store, KEY, Node(NODE, 0, "first"), TIMING, clock)


def raises(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def test_trust_counts_from_before_the_beat_was_sent() -> None:
    store, clock = ScriptedStore(), ManualClock(100.0)

    def slow() -> None:
        clock.now_s += 3.0

    store.after = slow
    beating = heartbeat(store, clock)
    assert beating.attempt() == TIMING.beat_s
    assert beating.trusted_until == 100.0 + 15.0
    clock.now_s = 114.9
    assert beating.trusted
    clock.now_s = 115.0
    assert not beating.trusted
    assert beating.lost.is_set()


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), OutcomeUnknown("lost")])
def test_an_unanswered_beat_is_repeated_soon_until_trust_ends(error: Exception) -> None:
    store, clock = ScriptedStore(), ManualClock(100.0)
    beating = heartbeat(store, clock)
    beating.attempt()
    store.after = raises(error)
    clock.now_s += 10
    assert beating.attempt() <= TIMING.beat_s / 4
    assert beating.trusted
    clock.now_s += 5
    assert not beating.trusted
    store.after = lambda: None
    beating.attempt()
    assert not beating.trusted, "trust that ran out must not come back: the work was told to stop"


def test_a_refused_beat_ends_trust_permanently_with_a_reason() -> None:
    store, clock = ScriptedStore(), ManualClock(100.0)
    beating = heartbeat(store, clock)
    beating.attempt()
    node = store.pulse(KEY).nodes[0]
    store.evict(KEY, NODE, node.lease_id, observer="test", reason="test")
    assert beating.trusted, "until told, the holder may rely on its window"
    beating.attempt()
    assert not beating.trusted
    assert "evicted" in beating.reason
    store.register(KEY, Node(NODE, 0, "first"), observer="test")
    beating.attempt()
    assert not beating.trusted


def test_a_member_is_not_trusted_before_its_first_confirmed_beat() -> None:
    assert not heartbeat(ScriptedStore(), ManualClock(100.0)).trusted


wait_until = partial(wait_for, "the beats", timeout_s=10)


def test_the_thread_beats_until_its_block_ends() -> None:
    store = ScriptedStore()
    timing = Timing(timeout_s=5.0, beat_s=0.01)
    with Member(store, KEY, Node(NODE, 0, "first"), timing) as beating:
        first = store.pulse(KEY).nodes[0].lease_id
        wait_until(lambda: store.pulse(KEY).nodes[0].lease_id >= first + 3)
        assert beating.trusted
    # Who leaves waits for one beat, which is short here; the thread may need longer to end.
    wait_until(lambda: not any(t.name.startswith("beats") for t in threading.enumerate()))
    last = store.pulse(KEY).nodes[0].lease_id
    time.sleep(3 * timing.beat_s)
    assert store.pulse(KEY).nodes[0].lease_id == last


def test_the_thread_survives_an_unforeseen_error_and_sets_lost_on_eviction() -> None:
    store = ScriptedStore()
    timing = Timing(timeout_s=5.0, beat_s=0.01)
    with Member(store, KEY, Node(NODE, 0, "first"), timing) as beating:
        failures: list[None] = []

        def fail() -> None:
            failures.append(None)
            raise RuntimeError("the driver broke")

        store.before = fail
        wait_until(lambda: len(failures) >= 3)
        store.before = lambda: None
        while beating.trusted:
            lease_id = store.pulse(KEY).nodes[0].lease_id
            store.evict(KEY, NODE, lease_id, observer="test", reason="test")
        assert beating.lost.wait(5)


def test_entering_repeats_a_lost_first_beat() -> None:
    store = ScriptedStore()
    answers = iter([StoreUnavailable("gone"), None])

    def first_fails() -> None:
        error = next(answers, None)
        if error:
            raise error

    store.before = first_fails
    with Member(store, KEY, Node(NODE, 0, "first"), Timing(timeout_s=5.0, beat_s=0.01)) as beating:
        assert beating.trusted


def test_entering_under_a_taken_name_is_lost_at_once() -> None:
    store = ScriptedStore()
    with Member(store, KEY, Node(NODE, 0, "another"), TIMING) as beating:
        assert not beating.trusted
        assert beating.lost.is_set()
