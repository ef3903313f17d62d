"""Draining: work in progress is reported, and no work starts after a pause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_leasehold.lease_store.draining import Draining, wait_until_drained
from dagster_leasehold.lease_store.errors import UnknownGroup
from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.outcomes import NotHeld
from tests.conformance.world import A, World, X, Y


class Time:
    """Seconds that pass by sleeping alone; something may happen at each."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept.append(seconds)


def paused(world: World, group: Group, *, now: bool = True) -> None:
    world.store.update_group(replace(group, paused=now), observer="ops")


def test_a_drain_reports_all_work_in_progress(world: World) -> None:
    group = world.group()
    world.join(A)
    world.add(X, Y)
    tenure, _ = world.hold(A, X, Y)
    world.consume(tenure, "0", "5")
    world.intend(tenure, "5", "9", 1)
    paused(world, group)
    draining = world.store.draining(world.key)
    first, second = draining.shards
    assert (first.shard, first.check_point, first.run, first.holder) == (X, "5", "run-1", A)
    assert first.intent is not None
    assert (first.intent.start, first.intent.end) == ("5", "9")
    assert (second.run, second.check_point, second.intent) == ("run-1", None, None)
    assert [shard.shard for shard in draining.open] == [X, Y]
    assert not draining.drained


def test_a_group_is_drained_once_all_tenures_are_closed(world: World) -> None:
    group = world.group()
    world.join(A)
    world.add(X, Y)
    tenures = world.hold(A, X, Y)
    paused(world, group)
    time, reports = Time(), list[Draining]()

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        if tenures and len(time.slept) % 2 == 0:
            world.store.close_tenure(tenures.pop(), reason="paused")

    draining = wait_until_drained(
        lambda: world.store.draining(world.key),
        timeout_s=60,
        clock=time.clock,
        sleep=sleep,
        report=reports.append,
    )
    assert draining.drained
    assert [len(each.open) for each in reports] == [2, 1, 0]
    assert isinstance(world.store.open_tenure(world.key, X, A, "run-2"), NotHeld)
    paused(world, group, now=False)
    assert world.open(A, X, "run-2").tenure.epoch == 2
    assert not world.store.draining(world.key).drained


def test_a_drain_ends_after_its_timeout(world: World) -> None:
    group = world.group()
    world.join(A)
    world.add(X)
    world.hold(A, X)
    paused(world, group)
    time = Time()
    draining = wait_until_drained(
        lambda: world.store.draining(world.key), timeout_s=1.2, clock=time.clock, sleep=time.sleep
    )
    assert [shard.shard for shard in draining.open] == [X]
    assert time.now_s == pytest.approx(1.2)


def test_a_drain_ends_if_the_group_is_resumed(world: World) -> None:
    group = world.group()
    world.join(A)
    world.add(X)
    world.hold(A, X)
    paused(world, group)
    time = Time()

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        paused(world, group, now=False)

    draining = wait_until_drained(
        lambda: world.store.draining(world.key), timeout_s=60, clock=time.clock, sleep=sleep
    )
    assert (draining.paused, draining.drained, len(time.slept)) == (False, False, 1)


def test_the_intent_of_a_dead_run_is_reported_and_does_not_delay_a_drain(world: World) -> None:
    group = world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    world.intend(tenure, "0", "9")
    world.store.leave(world.key, A, world.incarnations[A])
    paused(world, group)
    draining = world.store.draining(world.key)
    (shard,) = draining.shards
    assert draining.drained
    assert shard.intent is not None
    assert shard.intent.batch_id == "x.0"


def test_an_unknown_group_cannot_be_drained(world: World) -> None:
    with pytest.raises(UnknownGroup):
        world.store.draining(world.key)
