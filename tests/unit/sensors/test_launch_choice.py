from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.isolation import Suspicion
from dagster_leasehold.sensors.launch_choice import (
    RETRY_FIRST_S,
    RETRY_MAX_S,
    IdleShard,
    Launch,
    LaunchHistory,
    Work,
    choose_launches,
    next_work,
)
from dagster_leasehold.shard_sources.positions import removed_bounds
from dagster_leasehold.shard_sources.source import ShardBounds

A, B = NodeName("a"), NodeName("b")


def bounds(begin: str = "0", end: str = "10", *, finished: bool = False) -> ShardBounds:
    return ShardBounds(begin, end, finished)


def idle(
    shard: int, node: NodeName = A, check_point: str | None = "3", epoch: int = 0
) -> IdleShard:
    return IdleShard(ShardId(str(shard)), node, check_point, bounds(), epoch)


def note(history: LaunchHistory, launch: Launch, ready: list[IdleShard], now_s: float) -> None:
    history.note(launch, {each.shard: each for each in ready}, now_s)


def blocked(shard: int, suspicion: Suspicion | None = None) -> IdleShard:
    return replace(idle(shard), blocked=True, suspicion=suspicion)


def test_remaining_work_compares_checkpoint_and_end():
    assert next_work("3", bounds(), "begin") is Work.READ
    assert next_work("10", bounds(), "begin") is Work.NONE
    assert next_work("10", bounds(finished=True), "begin") is Work.FINISH
    assert next_work(None, bounds(), "begin") is Work.READ
    assert next_work(None, bounds(begin="0", end="0"), "begin") is Work.NONE
    assert next_work(None, bounds(begin="0", end="0", finished=True), "begin") is Work.FINISH


def test_a_shard_that_starts_at_the_end_needs_a_run_that_stores_the_position():
    assert next_work(None, bounds(begin="10", end="10"), "end") is Work.READ
    assert next_work("10", bounds(begin="10", end="10"), "end") is Work.NONE


def test_a_child_whose_beginning_was_removed_needs_a_run_to_record_the_gap():
    """All its records are gone: without a run it would be finished as if it had had none."""
    gone = ShardBounds("4", "4", finished=True, origin="0")
    assert next_work(None, gone, "begin", child=True) is Work.READ
    assert next_work("4", gone, "begin", child=True) is Work.FINISH
    assert next_work(None, gone, "begin") is Work.FINISH, "a new group begins at what is left"
    whole = ShardBounds("0", "0", finished=True, origin="0")
    assert next_work(None, whole, "begin", child=True) is Work.FINISH


def test_a_removed_shard_needs_one_run_that_records_the_gap():
    removed = removed_bounds("0")
    assert next_work(None, removed, "begin") is Work.READ
    assert next_work("3", removed, "begin") is Work.READ
    assert next_work(removed.end, removed, "begin") is Work.FINISH


def test_launches_have_one_node_and_at_most_shards_per_run():
    ready = [idle(n) for n in range(5)] + [idle(7, B)]
    launches = choose_launches(ready, history=LaunchHistory(), runs_active={}, shards_per_run=2)
    assert [(run.node, len(run.shards)) for run in launches] == [(A, 2), (A, 2), (B, 1)]


def test_a_shard_at_which_every_run_hangs_soon_gets_a_separate_run():
    """Method: a run that serves shard 7 commits nothing at all; any other one moves its shards."""
    history, at, now_s = LaunchHistory(), dict.fromkeys(range(64), "0"), 0.0
    launches_of_seven: list[int] = []
    while not launches_of_seven or launches_of_seven[-1] > 1:
        ready = [idle(n, check_point=at[n], epoch=int(now_s)) for n in range(64)]
        due = [each for each in ready if not history.wait_s(each, now_s)]
        for launch in choose_launches(due, history=history, runs_active={}, shards_per_run=64):
            note(history, launch, ready, now_s)
            if "7" in launch.shards:
                launches_of_seven.append(len(launch.shards))
            else:
                at |= {int(shard): str(int(at[int(shard)]) + 1) for shard in launch.shards}
        now_s += RETRY_MAX_S
    assert launches_of_seven == [64, 16, 4, 1]
    for _ in range(8):
        ready = [idle(n, check_point=at[n], epoch=int(now_s)) for n in range(64)]
        launches = choose_launches(ready, history=history, runs_active={}, shards_per_run=64)
        for launch in launches:
            note(history, launch, ready, now_s)
            assert "7" not in launch.shards or len(launch.shards) == 1
            at |= {int(shard): at[int(shard)] + "1" for shard in launch.shards if shard != "7"}
        now_s += RETRY_MAX_S
    assert max(len(launch.shards) for launch in launches) == 63, "the others share a run again"


def test_a_blocked_shard_gets_a_separate_run_and_never_the_last_slot_of_its_node():
    ready = [blocked(0), blocked(1), *(idle(n) for n in range(2, 9))]
    launches = choose_launches(ready, history=LaunchHistory(), runs_active={}, shards_per_run=64)
    others = tuple(ShardId(str(n)) for n in range(2, 9))
    assert [launch.shards for launch in launches] == [("0",), others]
    beside = choose_launches(
        [blocked(1)], history=LaunchHistory(), runs_active={A: 1}, shards_per_run=64,
        apart_active={A: 1},
    )  # fmt: skip
    assert beside == []
    one_place = choose_launches(
        ready, history=LaunchHistory(), runs_active={}, shards_per_run=64, runs_per_node=1
    )
    assert [launch.shards for launch in one_place] == [("0",)]


def test_a_progressing_search_is_launched_at_once_and_a_held_shard_waits_longer_each_time():
    history, launch = LaunchHistory(), Launch(A, (ShardId("0"),))
    suspicion = Suspicion(failure="it hangs").within(64)
    while suspicion.records > 1:
        suspicion = suspicion.within(suspicion.records // 2)
        searched = blocked(0, suspicion)
        assert history.wait_s(searched, 0.0) == 0.0
        note(history, launch, [searched], 0.0)
    held = blocked(0, replace(suspicion, alone=True, holds_shard=True))
    for epoch, wait_s in enumerate((RETRY_FIRST_S, 2 * RETRY_FIRST_S, 4 * RETRY_FIRST_S)):
        note(history, launch, [replace(held, epoch=epoch)], 0.0)
        assert history.wait_s(replace(held, epoch=epoch + 1), 0.0) == wait_s


def test_a_node_gets_at_most_its_number_of_runs():
    ready = [idle(n) for n in range(5)]
    launches = choose_launches(
        ready, history=LaunchHistory(), runs_active={A: 1}, shards_per_run=1, runs_per_node=2
    )
    assert len(launches) == 1
    none = choose_launches(
        ready, history=LaunchHistory(), runs_active={A: 2}, shards_per_run=1, runs_per_node=2
    )
    assert none == []


@given(st.integers(1, 40), st.integers(1, 7))
def test_every_shard_is_served_once_before_any_is_served_twice(shards: int, per_run: int):
    history, ready = LaunchHistory(), [idle(n) for n in range(shards)]
    served: list[ShardId] = []
    while len(served) < shards:
        (launch,) = choose_launches(
            ready, history=history, runs_active={}, shards_per_run=per_run, runs_per_node=1
        )
        note(history, launch, ready, 0.0)
        served.extend(launch.shards)
    assert len(set(served[:shards])) == shards


def test_a_shard_without_progress_waits_longer_each_time_until_it_progresses():
    history, launch = LaunchHistory(), Launch(A, (ShardId("0"),))
    now, waits = 0.0, []
    for epoch in range(8):
        note(history, launch, [idle(0, epoch=epoch)], now)
        opened = idle(0, epoch=epoch + 1)
        waits.append(history.wait_s(opened, now))
        now += waits[-1]
        assert history.wait_s(opened, now) == 0.0
    assert waits[:3] == [RETRY_FIRST_S, 2 * RETRY_FIRST_S, 4 * RETRY_FIRST_S]
    assert waits[-1] == RETRY_MAX_S
    moved = idle(0, check_point="4", epoch=9)
    assert history.wait_s(moved, now - 1) == 0.0
    note(history, launch, [moved], now)
    assert history.wait_s(replace(moved, epoch=10), now) == RETRY_FIRST_S


def test_a_launch_that_never_started_is_repeated_at_once_and_then_after_growing_pauses():
    """No run has opened the shard since: the first one found no code server, say."""
    history, launch, shard = LaunchHistory(), Launch(A, (ShardId("0"),)), idle(0, epoch=4)
    waits: list[float] = []
    for _ in range(4):
        note(history, launch, [shard], 0.0)
        waits.append(history.wait_s(shard, 0.0))
    assert waits == [0.0, RETRY_FIRST_S, 2 * RETRY_FIRST_S, 4 * RETRY_FIRST_S]
    assert history.fruitless(shard) == 0, "it says nothing about the records"
    assert history.wait_s(idle(0, epoch=5), 0.0) == RETRY_FIRST_S, "now a run has"


def test_a_node_that_takes_over_a_shard_launches_at_once():
    history, launch = LaunchHistory(), Launch(A, (ShardId("0"),))
    note(history, launch, [idle(0)], 0.0)
    assert history.wait_s(idle(0, epoch=1), 0.0) == RETRY_FIRST_S
    assert history.wait_s(idle(0, B, epoch=1), 0.0) == 0.0
    assert history.fruitless(idle(0, B, epoch=1)) == 1, "its runs are shared with few others"


def test_a_shard_that_is_stuck_for_years_waits_five_minutes_each_time():
    """Goal: no count of launches in vain is too high; a year has 105,120 waits of 5 minutes."""
    history, launch = LaunchHistory(), Launch(A, (ShardId("0"),))
    now = 0.0
    for epoch in range(105_120):
        history.note(launch, {ShardId("0"): idle(0, epoch=epoch)}, now)
        now += history.wait_s(idle(0, epoch=epoch + 1), now)
    note(history, launch, [idle(0, epoch=105_120)], now)
    assert history.wait_s(idle(0, epoch=105_121), now) == RETRY_MAX_S


def test_a_shard_that_is_over_is_forgotten():
    history, shard = LaunchHistory(), ShardId("0")
    note(history, Launch(A, (shard, ShardId("1"))), [idle(0), idle(1)], 0.0)
    history.keep({ShardId("1")})
    assert history.launch_number(shard) == 0
    assert history.launch_number(ShardId("1")) == 1
