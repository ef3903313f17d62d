"""Pinned shards start at their bootstrap cursor, once, and after a gap if it has no records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.checks import NO_GAP, check_shard
from dagster_leasehold.assets.consuming.bootstrapping import bootstrap_cursors
from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.node_settings import Pinned
from dagster_leasehold.lease_store.group_rows import AssignmentMode
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.verification import verify
from tests.unit.assets.consumption_world import NODE, World

ZERO, ONE = ShardId("0"), ShardId("1")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two shards of ten records, read four at a time."""
    return World(tmp_path, declaration={"assignment": AssignmentMode.PINNED})


def consume(world: World, cursors: dict[ShardId, str], run: str = "run-1") -> dict[ShardId, Any]:
    return world.consume(run, bootstrap=cursors)


def test_consumption_starts_at_the_bootstrap_cursor_and_a_restart_continues(world: World) -> None:
    reports = consume(world, {ZERO: "4"})
    assert (reports[ZERO].start, reports[ZERO].end) == ("4", "10")
    assert (reports[ONE].start, reports[ONE].end) == ("0", "10")
    assert world.committed("0") == world.expected("0", 10)[4:]
    world.append(ZERO, 2)
    reports = consume(world, {ZERO: "4"}, "run-2")
    assert (reports[ZERO].start, reports[ZERO].end) == ("10", "12")
    assert world.committed("0") == world.expected("0", 12)[4:]
    assert verify(world.store, world.key) == []


def test_another_bootstrap_cursor_reads_again_and_keeps_each_record_once(world: World) -> None:
    consume(world, {})
    reports = consume(world, {ZERO: "4"}, "run-2")
    assert (reports[ZERO].start, reports[ZERO].end) == ("4", "10")
    assert world.committed("0") == world.expected("0", 10)
    assert verify(world.store, world.key) == []


def test_a_cursor_beyond_the_end_is_clamped_and_recorded_as_a_gap(world: World) -> None:
    reports = consume(world, {ZERO: "99"})
    assert (reports[ZERO].start, reports[ZERO].stopped) == ("10", StopReason.CAUGHT_UP)
    (gap,) = world.store.gaps(world.key)
    assert (gap.shard, gap.start, gap.end, gap.acknowledged) == ("0", "10", "10", False)
    assert "the log has no record at 99: reading begins at 10" in gap.reason
    (force,) = [entry for entry in world.store.journal(world.key) if entry.kind == "force"]
    assert (force.check_point, "start it at 99" in force.reason) == ("10", True)
    (check,) = (
        check
        for check in check_shard(world.stream, None, gaps=[gap], lag=0)
        if check.name == NO_GAP
    )
    assert not check.passed
    world.append(ZERO, 2)
    reports = consume(world, {ZERO: "99"}, "run-2")
    assert (reports[ZERO].start, reports[ZERO].end) == ("10", "12")
    assert len(world.store.gaps(world.key)) == 1
    assert verify(world.store, world.key) == []


def test_a_cursor_beyond_the_end_never_goes_back_over_committed_records(world: World) -> None:
    """1. All is committed. 2. The cursor lies beyond it. 3. A gap back would double records."""
    consume(world, {})
    reports = consume(world, {ZERO: "99"}, "run-2")
    assert (reports[ZERO].start, reports[ZERO].error) == ("10", "")
    world.append(ZERO, 2)
    consume(world, {ZERO: "99"}, "run-3")
    assert world.committed("0") == world.expected("0", 12)
    assert verify(world.store, world.key) == []


def test_the_next_run_keeps_the_start_position_of_a_run_that_died(world: World) -> None:
    world.store.bootstrap(world.key, ZERO, NODE, "99", run="died", start="10")
    reports = consume(world, {ZERO: "99"})
    assert reports[ZERO].start == "10"


@pytest.mark.parametrize(
    ("cursor", "says"), [("nonsense", "nonsense"), ("3", "batch"), ("-5", "-5")]
)
def test_an_impossible_bootstrap_cursor_fails_only_its_shard(
    world: World, cursor: str, says: str
) -> None:
    consume(world, {})
    reports = consume(world, {ZERO: cursor}, "run-2")
    assert reports[ZERO].stopped is StopReason.FAILED
    assert says in reports[ZERO].error
    assert reports[ONE].stopped is StopReason.CAUGHT_UP
    assert (world.lease("0").check_point, world.lease("0").bootstrap) == ("10", None)


def test_bootstrap_cursors_come_from_the_row_of_a_pinned_node(world: World) -> None:
    row = replace(world.store.pulse(world.key).nodes[0], pinned={ZERO: "4", ONE: None})
    pulse = replace(world.store.pulse(world.key), nodes=(row,))
    assert bootstrap_cursors(pulse, NODE) == {"0": "4"}
    balanced = replace(pulse.group, assignment=AssignmentMode.BALANCED)
    assert bootstrap_cursors(replace(pulse, group=balanced), NODE) == {}
    assert Pinned({"0": 4}).cursors == {"0": "4"}
