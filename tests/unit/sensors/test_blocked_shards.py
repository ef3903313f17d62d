"""Shards at which runs hang or crash, as the launcher serves them."""

from __future__ import annotations

import dagster as dg
from dagster import DagsterRunStatus

from dagster_leasehold.assets.consuming.run_requests import FINISH_TAG, TAKE_TAG
from dagster_leasehold.lease_store.ledger_rows import Intent
from tests.unit.sensors.test_following_runs import A, FollowingScene
from tests.unit.sensors.test_rebalance import served


def begun(instance: dg.DagsterInstance) -> FollowingScene:
    """A node that has claimed its shards, which have no unread records."""
    scene = FollowingScene(instance)
    assert not scene.tick().run_requests
    return scene


def give_up(scene: FollowingScene, shard: str, times: int = 1) -> None:
    """Let runs give a shard up in the middle of its first batch."""
    for _ in range(times):
        tenure = scene.open(shard, A, "gone").tenure
        scene.store.record_intents([Intent(tenure, 0, "0", "5")])
        scene.store.close_tenure(tenure, reason="It hangs.", attempt_failed=True)


def test_a_shard_that_was_given_up_twice_gets_a_separate_run(instance: dg.DagsterInstance) -> None:
    scene = begun(instance)
    scene.source.ends = dict.fromkeys("0123", 5)
    give_up(scene, "1")
    (once,) = scene.later(20.0).run_requests
    assert served(once) == ("a", {"0", "1", "2", "3"})
    scene.restart()
    give_up(scene, "1")
    requests = scene.later().run_requests
    assert sorted(map(served, requests)) == [("a", {"0", "2", "3"}), ("a", {"1"})]


def test_no_shard_joins_the_run_of_a_blocked_one(instance: dg.DagsterInstance) -> None:
    scene = begun(instance)
    scene.source.ends = {"1": 5}
    give_up(scene, "1", times=2)
    (alone,) = scene.later(20.0).run_requests
    run_id = scene.add_run(alone, DagsterRunStatus.STARTED)
    scene.open("1", A, run_id)
    scene.later()
    scene.source.ends |= {"0": 5, "2": 5}
    (others,) = scene.later(20.0).run_requests
    assert served(others) == ("a", {"0", "2"})
    assert not {TAKE_TAG, FINISH_TAG} & scene.tags(run_id).keys()


def test_a_blocked_shard_joins_no_other_run(instance: dg.DagsterInstance) -> None:
    scene = begun(instance)
    scene.source.ends = {"0": 5}
    (request,) = scene.later(20.0).run_requests
    run_id = scene.start(request)
    give_up(scene, "1", times=2)
    scene.source.ends["1"] = 5
    (alone,) = scene.later(20.0).run_requests
    assert served(alone) == ("a", {"1"})
    assert TAKE_TAG not in scene.tags(run_id)
