"""Gaps: held or skipped, growing until they are accepted, accepted exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_leasehold.lease_store.errors import CheckpointRefused, LeaseLost, UnknownShard
from dagster_leasehold.lease_store.group_rows import GapPolicy
from dagster_leasehold.lease_store.journal_rows import Gap
from dagster_leasehold.lease_store.outcomes import Changed, Stale
from dagster_leasehold.lease_store.shard_rows import Tenure
from tests.conformance.world import NOON, A, World, X, Z


@pytest.fixture
def tenure(world: World) -> Tenure:
    """Shard x open under node a, consumed up to 5, with [5, 7) intended."""
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    world.consume(tenure, "0", "5")
    world.intend(tenure, "5", "7", 1)
    return tenure


def record(world: World, tenure: Tenure, end: str, *, skip: bool) -> None:
    world.store.record_gap(tenure, start="5", end=end, reason="trimmed", skip=skip)


def spans(world: World) -> list[tuple[str, str, bool, bool]]:
    return [
        (gap.start, gap.end, gap.acknowledged, gap.skipped) for gap in world.store.gaps(world.key)
    ]


def accept(world: World, start: str, end: str) -> Changed | Stale:
    gap = Gap(X, start, end, "", NOON)
    return world.store.acknowledge_gap(world.key, gap, observer="ops")


def test_a_held_gap_moves_no_checkpoint(world: World, tenure: Tenure) -> None:
    record(world, tenure, "9", skip=False)
    record(world, tenure, "9", skip=False)
    assert spans(world) == [("5", "9", False, False)]
    assert world.shard(X).check_point == "5"
    assert [batch.state for batch in world.store.batches(world.key, X, None)] == [
        "committed",
        "intent",
    ]
    assert world.kinds(X)[-1:] == ["gap"]
    assert world.kinds(X).count("gap") == 1


def test_a_held_gap_grows_with_retention_until_it_is_skipped(world: World, tenure: Tenure) -> None:
    record(world, tenure, "9", skip=False)
    record(world, tenure, "12", skip=False)
    assert spans(world) == [("5", "12", False, False)]
    record(world, tenure, "20", skip=True)
    assert spans(world) == [("5", "20", False, True)]
    assert world.shard(X).check_point == "20"
    assert isinstance(world.consume(tenure, "20", "21", 2), Changed)


def test_an_accepted_gap_never_grows(world: World, tenure: Tenure) -> None:
    record(world, tenure, "9", skip=False)
    assert accept(world, "5", "9") == Changed((X,))
    record(world, tenure, "12", skip=False)
    assert spans(world) == [("5", "9", True, False)], "the next look skips what was accepted"
    record(world, tenure, "9", skip=True)
    world.store.record_gap(tenure, start="9", end="12", reason="trimmed", skip=False)
    assert spans(world) == [("5", "9", True, True), ("9", "12", False, False)]
    assert world.shard(X).check_point == "9"


def test_an_operator_accepts_exactly_the_listed_range(world: World, tenure: Tenure) -> None:
    """1. an operator sees [5, 9); 2. retention continues to 12; 3. the operator accepts."""
    record(world, tenure, "9", skip=False)
    record(world, tenure, "12", skip=False)
    assert accept(world, "5", "9") == Stale()
    assert spans(world) == [("5", "12", False, False)]
    assert accept(world, "5", "12") == Changed((X,))
    assert accept(world, "5", "12") == Stale()
    entries = [entry for entry in world.journal(X) if entry.kind == "ack"]
    assert [(entry.reason, entry.observer) for entry in entries] == [("accepted [5, 12)", "ops")]


def test_a_skipped_gap_can_be_accepted_later(world: World, tenure: Tenure) -> None:
    record(world, tenure, "9", skip=True)
    assert accept(world, "5", "9") == Changed((X,))
    assert spans(world) == [("5", "9", True, True)]


def test_a_gap_before_the_first_batch_is_recorded(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    world.store.record_gap(tenure, start="0", end="3", reason="trimmed", skip=False)
    assert world.shard(X).check_point is None
    world.store.record_gap(tenure, start="0", end="3", reason="trimmed")
    assert world.shard(X).check_point == "3"


def test_gaps_are_fenced_and_begin_at_the_checkpoint(world: World, tenure: Tenure) -> None:
    for skip in (False, True):
        with pytest.raises(CheckpointRefused, match="'5'"):
            world.store.record_gap(tenure, start="4", end="9", reason="r", skip=skip)
        with pytest.raises(LeaseLost):
            record(world, replace(tenure, epoch=tenure.epoch + 1), "9", skip=skip)
    assert spans(world) == []
    with pytest.raises(UnknownShard):
        world.store.acknowledge_gap(world.key, Gap(Z, "5", "9", "", NOON), observer="ops")


def test_the_policy_is_a_setting_of_the_group(world: World) -> None:
    group = world.group()
    assert group.gap_policy is GapPolicy.HOLD
    world.store.update_group(replace(group, gap_policy=GapPolicy.END), observer="ops")
    assert world.store.pulse(world.key).group.gap_policy is GapPolicy.END
    assert world.store.snapshot(world.key).group.gap_policy is GapPolicy.END
