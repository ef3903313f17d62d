from __future__ import annotations

from dagster_leasehold.sensors.active_runs import ActiveRun
from dagster_leasehold.sensors.run_cleaning import (
    NEVER_HELD_GRACE_S,
    PARTITIONS_GRACE_S,
    RunsWithoutShards,
)


def started(run_id: str, *, launched: bool = True) -> ActiveRun:
    return ActiveRun(run_id, "a", frozenset({"0"}), started=True, launched=launched)


def overdue(memory: RunsWithoutShards, active: list[ActiveRun], holding: set[str], now_s: float):
    return memory.overdue(active, holding, now_s=now_s, grace_s=20.0)


def test_a_run_without_shards_is_overdue_after_the_grace_time():
    memory, run = RunsWithoutShards(), started("run-1")
    assert overdue(memory, [run], {"run-1"}, 0.0) == []
    assert overdue(memory, [run], set(), 20.0) == []
    assert overdue(memory, [run], set(), 20.1) == ["run-1"]


def test_a_starting_run_is_not_overdue():
    memory, run = RunsWithoutShards(), started("run-1")
    assert overdue(memory, [run], set(), 0.0) == []
    assert overdue(memory, [run], set(), NEVER_HELD_GRACE_S) == []


def test_a_run_that_died_before_it_opened_a_shard_becomes_overdue():
    memory, run = RunsWithoutShards(), started("run-1")
    assert overdue(memory, [run], set(), 0.0) == []
    assert overdue(memory, [run], set(), NEVER_HELD_GRACE_S + 0.1) == ["run-1"]


def test_a_run_for_one_partition_can_wait_for_its_shard_without_a_limit():
    memory, run = RunsWithoutShards(), started("run-1", launched=False)
    assert overdue(memory, [run], set(), 0.0) == []
    assert overdue(memory, [run], set(), 10_000.0) == []


def test_a_run_of_partitions_can_report_long_after_its_last_release():
    memory, run = RunsWithoutShards(), started("run-1", launched=False)
    assert overdue(memory, [run], {"run-1"}, 0.0) == []
    assert overdue(memory, [run], set(), PARTITIONS_GRACE_S) == []
    assert overdue(memory, [run], set(), PARTITIONS_GRACE_S + 0.1) == ["run-1"]


def test_a_run_that_ended_is_forgotten():
    memory, run = RunsWithoutShards(), started("run-1")
    overdue(memory, [run], {"run-1"}, 0.0)
    assert overdue(memory, [], set(), 30.0) == []
    assert overdue(memory, [run], set(), 60.0) == []
