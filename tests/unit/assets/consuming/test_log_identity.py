"""A log that was deleted and recreated under its name is not consumed from the old checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import identity_of_log
from tests.unit.assets.consumption_world import World

ZERO = ShardId("0")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def made_anew(world: World, records: int) -> None:
    """Delete the folder of the log, and make another one with so many records in its place."""
    shutil.rmtree(world.log.root)
    LocalLog.create(world.log.root, world.shards)
    for shard in world.ids:
        world.log.append(shard, [b"%s:%d" % (shard.encode(), n) for n in range(records)])


@pytest.mark.parametrize("records", [11, 100])
def test_a_recreated_log_is_not_consumed(world: World, records: int) -> None:
    """Goal: with more records than were consumed, those before the checkpoint are not skipped."""
    world.consume("run-1")
    made_anew(world, records)
    for report in world.consume("run-2").values():
        assert report.stopped is StopReason.FAILED
        assert "was deleted and recreated" in report.error
        assert "leasehold group accept-log" in report.error
    assert world.committed(ZERO) == world.expected(ZERO, 10)
    assert world.lease(ZERO).check_point == "10"


def test_a_log_recreated_during_a_batch_is_not_committed(world: World) -> None:
    world.consume("run-1")
    for shard in world.ids:
        world.append(shard, 4)
    world.sweeper.before = lambda: made_anew(world, 100)
    assert world.consume("run-2")[ZERO].stopped is StopReason.FAILED
    assert world.lease(ZERO).check_point == "10"


def test_accept_log_accepts_the_current_log(world: World) -> None:
    world.consume("run-1")
    made_anew(world, 11)
    identity = identity_of_log(world.log)
    assert identity is not None
    assert world.store.log_of_group(world.key, identity, instead=True) == identity
    report = world.consume("run-2")[ZERO]
    assert (report.stopped, report.end) == (StopReason.CAUGHT_UP, "11")


def test_a_log_of_an_earlier_version_is_consumed_as_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalLog, "log_identity", lambda _: None)
    assert world.consume("run-1")[ZERO].stopped is StopReason.CAUGHT_UP


def test_changes_of_a_log_keep_its_identity(world: World) -> None:
    before = world.log.log_identity()
    assert before
    world.log.split("0")
    world.append(ZERO.__class__("2"), 1)
    assert world.log.log_identity() == before == LocalLog(world.log.root).log_identity()
