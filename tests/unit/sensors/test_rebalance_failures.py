"""Rounds of launching in which a shard, a source or Dagster raises an error."""

from __future__ import annotations

import dagster as dg
from dagster import DagsterRunStatus

from dagster_leasehold.assets.partitions import NODE_TAG, asset_key
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.sensors.launch_choice import next_work
from dagster_leasehold.shard_sources.source import ShardBounds
from tests.unit.sensors.streams import ScriptedSource
from tests.unit.sensors.test_rebalance import A, Scene, served


def test_an_unexpected_error_of_one_shard_does_not_stop_others(instance, monkeypatch):
    scene = Scene(instance, nodes="a")
    scene.sync()
    scene.source.ends = dict.fromkeys("0123", 5)
    bounds = ScriptedSource.bounds

    def broken(self: ScriptedSource, shards: list[ShardId]):
        if ShardId("2") in shards:
            raise ZeroDivisionError("unforeseen")
        return bounds(self, shards)

    monkeypatch.setattr(ScriptedSource, "bounds", broken)
    (request,) = scene.tick().run_requests
    assert served(request) == ("a", {"0", "1", "3"})
    scene.add_run(request, DagsterRunStatus.STARTED)
    assert "shard 2 is tried again" in scene.tick().line


def test_a_shard_with_unknown_work_does_not_stop_others(instance, monkeypatch):
    scene = Scene(instance, nodes="a")
    scene.sync()
    scene.source.ends = {"0": 5, "1": 6, "2": 7, "3": 8}

    def broken(check_point: str | None, bounds: ShardBounds, *args: object, **given: object):
        if bounds.end == "7":
            raise KeyError("unforeseen")
        return next_work(check_point, bounds, "begin")

    monkeypatch.setattr("dagster_leasehold.sensors.launch_round.next_work", broken)
    (request,) = scene.tick().run_requests
    assert served(request) == ("a", {"0", "1", "3"})


def test_a_failed_launch_keeps_leases_and_memory(instance, monkeypatch):
    """Goal: Dagster's storage is unavailable only for runs; the nodes beat, and none is
    forgotten.
    """
    scene = Scene(instance, nodes="a")
    scene.sync()

    def broken(*_: object) -> None:
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr("dagster_leasehold.sensors.active_runs.ActiveRuns.of", broken)
    explanation = scene.tick().line
    assert "nothing is launched: ZeroDivisionError: unforeseen" in explanation
    assert scene.row("0").consumer_owner == A
    assert scene.cursor


def test_a_shard_of_a_queued_manual_run_is_left_to_it(instance):
    scene = Scene(instance, nodes="a")
    scene.sync()
    scene.source.ends = dict.fromkeys("0123", 5)
    instance.add_run(
        dg.DagsterRun(
            job_name="__ASSET_JOB",
            status=DagsterRunStatus.NOT_STARTED,
            asset_selection=frozenset([asset_key(scene.stream)]),
            tags={"dagster/partition": "1"},
        )
    )
    (request,) = scene.tick().run_requests
    assert served(request) == ("a", {"0", "2", "3"})


def test_a_manual_run_with_an_invalid_node_does_not_fail_a_tick(instance):
    scene = Scene(instance, nodes="a")
    scene.sync()
    scene.source.ends = {"0": 5}
    stray = dg.RunRequest(tags={NODE_TAG: "../not a node"})
    scene.add_run(stray, DagsterRunStatus.STARTED)
    (request,) = scene.tick().run_requests
    assert served(request) == ("a", {"0"})
