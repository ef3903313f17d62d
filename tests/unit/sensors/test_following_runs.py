"""The launcher starts a run when a record is due, or has the shard join one that follows."""

from __future__ import annotations

from dataclasses import replace

import dagster as dg
from dagster import DagsterRunStatus

from dagster_leasehold.assets.consuming.run_requests import (
    FINISH_TAG,
    RELEASE_TAG,
    STOP_TAG,
    offered,
)
from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.shard_stream import Checks
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.sensors.following_runs import BUDGET_OVER, OFFER_S, START_S
from tests.unit.sensors.test_rebalance import Scene, served

A = NodeName("a")
TICK_S = 5.0


class FollowingScene(Scene):
    """A scene with a separate clock and one node."""

    def __init__(self, instance: dg.DagsterInstance, shards: int = 4, **settings: float) -> None:
        self.now_s = 0.0
        self.opened: dict[str, Opened] = {}
        super().__init__(instance, shards=shards, nodes="a", clock=lambda: self.now_s)
        pace = Pace(**settings)  # pyright: ignore[reportArgumentType]
        self.stream = replace(self.stream, pace=pace)
        self.restart()
        self.sync()

    def later(self, seconds: float = TICK_S) -> dg.SensorResult:
        self.now_s += seconds
        return self.tick()

    def start(self, request: dg.RunRequest) -> str:
        """Let a run start and open its shards, and the next tick see it."""
        run_id = self.add_run(request, DagsterRunStatus.STARTED)
        for shard in sorted(served(request)[1]):
            self.opened[shard] = self.open(shard, A, run_id)
        self.later()
        return run_id

    def tags(self, run_id: str) -> dict[str, str]:
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        return dict(run.tags)


def test_a_shard_that_was_never_seen_without_unread_records_is_launched_at_once(
    instance: dg.DagsterInstance,
) -> None:
    scene = FollowingScene(instance)
    scene.source.ends = {"0": 5}
    (request,) = scene.tick().run_requests
    config = request.run_config["ops"]["consume__orders_eu"]["config"]
    assert config["follow"]
    assert config["definition"]


def test_a_run_is_launched_when_the_oldest_record_is_due_with_all_unread_shards(
    instance: dg.DagsterInstance,
) -> None:
    scene = FollowingScene(instance, commit_interval_s=20.0)
    scene.tick()
    scene.source.ends = {"0": 5}
    launched: list[float] = []
    for _ in range(6):
        result = scene.later()
        if result.run_requests:
            launched.append(scene.now_s)
            assert served(result.run_requests[0])[1] == {"0", "1"}
            break
        assert "waiting until a record is due" in result.line
        scene.source.ends["1"] = 5
    assert launched == [20.0]


def test_an_interval_that_ends_between_two_ticks_is_not_exceeded_by_waiting(
    instance: dg.DagsterInstance,
) -> None:
    scene = FollowingScene(instance, commit_interval_s=8.0)
    scene.tick()
    scene.source.ends = {"0": 5}
    assert scene.later().run_requests


def test_many_unread_records_are_launched_at_once(instance: dg.DagsterInstance) -> None:
    scene = FollowingScene(instance, commit_interval_s=1_000.0)
    scene.tick()
    scene.source.ends = {"0": scene.stream.limits.records_max}
    assert scene.later().run_requests


def test_a_shard_with_new_records_joins_the_run_of_its_node(instance: dg.DagsterInstance) -> None:
    scene = FollowingScene(instance)
    scene.source.ends = {"0": 5}
    (request,) = scene.tick().run_requests
    run_id = scene.start(request)
    scene.source.ends |= {"1": 5, "2": 5}
    result = scene.later(20.0)
    assert not result.run_requests
    assert f"2 shards of a joined run {run_id}" in result.line
    assert offered(scene.tags(run_id)) == ("1", "2")
    first = scene.tags(run_id)
    scene.later()
    assert scene.tags(run_id) == first, "an offer stands for a while"


def test_a_run_that_has_opened_its_shards_takes_others_at_once(
    instance: dg.DagsterInstance,
) -> None:
    """Goal: a record waits for no further tick of the daemon."""
    scene = FollowingScene(instance)
    scene.source.ends = {"0": 5}
    (request,) = scene.tick().run_requests
    run_id = scene.add_run(request, DagsterRunStatus.STARTED)
    scene.open("0", A, run_id)
    scene.source.ends["1"] = 5
    scene.later(20.0)
    assert offered(scene.tags(run_id)) == ("1",)


def test_a_shard_whose_run_ended_before_the_offer_gets_a_run_at_once(
    instance: dg.DagsterInstance,
) -> None:
    """Goal: a run that ended before it read the offer has not failed with the shard."""
    scene = FollowingScene(instance)
    scene.source.ends = {"0": 5}
    (request,) = scene.tick().run_requests
    run_id = scene.start(request)
    scene.source.ends["1"] = 5
    scene.later(20.0)
    assert offered(scene.tags(run_id)) == ("1",)
    tenure = scene.opened["0"].tenure
    scene.store.save_checkpoint(tenure, "5")
    scene.store.close_tenure(tenure, reason="caught up")
    instance.report_run_canceled(instance.get_run_by_id(run_id))
    (second,) = scene.later().run_requests
    assert served(second) == ("a", {"1"})


def test_a_shard_that_no_run_opens_gets_a_separate_run(instance: dg.DagsterInstance) -> None:
    scene = FollowingScene(instance)
    scene.source.ends = {"0": 5}
    (request,) = scene.tick().run_requests
    scene.start(request)
    scene.source.ends["1"] = 5
    scene.later(20.0)
    (second,) = scene.later(OFFER_S + 10.0).run_requests
    assert served(second) == ("a", {"1"})


def test_a_shard_waits_for_a_starting_run_for_a_limited_time(instance: dg.DagsterInstance) -> None:
    scene = FollowingScene(instance)
    scene.source.ends = {"0": 5}
    (request,) = scene.tick().run_requests
    scene.add_run(request, DagsterRunStatus.STARTED)
    scene.later()
    scene.source.ends["1"] = 5
    result = scene.later(20.0)
    assert not result.run_requests
    assert "1 shard waiting for a run that is starting" in result.line
    (second,) = scene.later(START_S).run_requests
    assert served(second) == ("a", {"1"})


def test_a_run_that_is_full_gets_no_more_shards(instance: dg.DagsterInstance) -> None:
    scene = FollowingScene(instance, shards_per_run=2)
    scene.source.ends = {"0": 5, "1": 5}
    (request,) = scene.tick().run_requests
    scene.start(request)
    scene.source.ends["2"] = 5
    (second,) = scene.later(20.0).run_requests
    assert served(second) == ("a", {"2"})


def test_an_idle_run_ends_if_shards_wait_for_a_run(instance: dg.DagsterInstance) -> None:
    """Method: two runs of one shard each take both places of the node; a third shard has news."""
    scene = FollowingScene(instance, shards_per_run=1)
    scene.source.ends = {"0": 5, "1": 5}
    runs = [scene.start(request) for request in scene.tick().run_requests]
    assert len(runs) == 2
    assert not any(FINISH_TAG in scene.tags(run) for run in runs)
    scene.source.ends["2"] = 5
    result = scene.later(20.0)
    assert "1 shard waiting for a run of the node to end" in result.line
    assert [FINISH_TAG in scene.tags(run) for run in runs].count(True) == 1


def test_a_shard_released_by_a_long_run_can_join_another(instance: dg.DagsterInstance) -> None:
    scene = FollowingScene(instance)
    scene.source.ends = {"0": 5, "1": 5}
    (request,) = scene.tick().run_requests
    run_id = scene.start(request)
    tenure = scene.opened["0"].tenure
    scene.store.save_checkpoint(tenure, "3")
    scene.store.close_tenure(tenure, reason="let go")
    scene.later()
    assert offered(scene.tags(run_id)) == ("0",)


def test_runs_of_an_older_definition_are_asked_to_end(instance: dg.DagsterInstance) -> None:
    scene = FollowingScene(instance)
    scene.source.ends = {"0": 5}
    (request,) = scene.tick().run_requests
    run_id = scene.start(request)
    assert STOP_TAG not in scene.tags(run_id)
    scene.restart()
    scene.later()
    assert STOP_TAG not in scene.tags(run_id), "a code server may load the same one again"
    scene.stream = replace(scene.stream, checks=Checks(quarantined_max=7))
    scene.restart()
    result = scene.later()
    assert STOP_TAG in scene.tags(run_id)
    because = "because the stream's definition has changed"
    assert f"run {run_id} was requested to end, {because}" in result.line
    assert "requested to end" not in scene.later().line, "once is enough"


def test_a_run_is_asked_to_end_when_its_budget_is_over(instance: dg.DagsterInstance) -> None:
    scene = FollowingScene(instance, run_budget_s=600.0)
    scene.source.ends = {"0": 5}
    (request,) = scene.tick().run_requests
    run_id = scene.start(request)
    scene.later(590.0)
    assert STOP_TAG not in scene.tags(run_id)
    result = scene.later(10.0)
    assert scene.tags(run_id)[STOP_TAG] == BUDGET_OVER
    assert f"run {run_id} was requested to end, because {BUDGET_OVER}" in result.line
    assert "requested to end" not in scene.later().line, "once is enough"


def test_a_shard_that_is_materialized_by_hand_joins_no_run(instance: dg.DagsterInstance) -> None:
    scene = FollowingScene(instance)
    scene.source.ends = {"0": 5}
    (request,) = scene.tick().run_requests
    run_id = scene.start(request)
    instance.add_run(
        dg.DagsterRun(
            job_name="__ASSET_JOB",
            status=DagsterRunStatus.NOT_STARTED,
            asset_selection={dg.AssetKey(["orders.eu"])},
            tags={"dagster/partition": "1"},
        )
    )
    scene.source.ends |= {"1": 5}
    scene.later(20.0)
    assert offered(scene.tags(run_id)) == ()
    assert not any(key.startswith(RELEASE_TAG) for key in scene.tags(run_id))
