"""The thread that beats for a client: its interval, and its reaction to failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from dagster_leasehold.lease_store.errors import NodeNameTaken, StoreUnavailable
from dagster_leasehold.lease_store.group_rows import Node, Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.member import Member
from dagster_leasehold.lease_store.memory_store import MemoryStore

DEADLINE_S = 20.0


def member(beat_s: float = 0.02) -> Member:
    """A member whose heartbeats are the test's."""
    key = GroupKey.parse("group", "stream")
    return Member(MemoryStore(), key, Node(NodeName("test"), 0, "first"), Timing(20.0, beat_s))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def test_beats_continue_after_an_outage_of_the_store():
    calls: list[float] = []

    def beat() -> None:
        calls.append(time.monotonic())
        if len(calls) % 2:
            raise StoreUnavailable("away")

    beats = member()
    beats.start(beat)
    wait_until(lambda: len(calls) >= 6)
    assert beats.problem is None
    beats.stop()
    ended = len(calls)
    threading.Event().wait(0.1)
    assert len(calls) == ended


def test_an_unexpected_error_does_not_end_the_beats():
    calls: list[int] = []

    def beat() -> None:
        calls.append(1)
        raise ZeroDivisionError

    beats = member()
    beats.start(beat)
    wait_until(lambda: len(calls) >= 3)
    beats.stop()


def test_a_mistake_is_kept_for_the_client_until_a_beat_succeeds():
    taken = threading.Event()
    taken.set()

    def beat() -> None:
        if taken.is_set():
            raise NodeNameTaken("taken")

    beats = member()
    beats.start(beat)
    wait_until(lambda: isinstance(beats.problem, NodeNameTaken))
    taken.clear()
    wait_until(lambda: beats.problem is None)
    beats.stop()


def test_a_thread_can_be_stopped_before_its_start_and_from_its_own_beat():
    member(1.0).stop()
    stopped = threading.Event()

    def beat() -> None:
        beats.stop()
        stopped.set()

    beats = member()
    beats.start(beat)
    assert stopped.wait(DEADLINE_S)
