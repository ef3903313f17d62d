"""Shards that make no progress, as their check shows them in Dagster within a minute."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import dagster as dg
import pytest

from dagster_leasehold.assets.checks import ShardCheck
from dagster_leasehold.assets.partitions import asset_key
from dagster_leasehold.assets.progress_check import PROGRESS
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchCommit, BatchStatistics, Intent
from dagster_leasehold.lease_store.rules.isolation import Suspicion
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.sensors.obstacle_reports import PATIENCE_S, ObstacleReports, obstacles_of
from tests.unit.sensors.test_following_runs import TICK_S, A, FollowingScene

HELD = replace(Suspicion(failure="It hangs.").within(1, alone=True), holds_shard=True)
ONE = ShardId("1")
REFUSED = "The transform of orders.eu raised ValueError: no price."


def begun(instance: dg.DagsterInstance) -> FollowingScene:
    """A node that has claimed its shards, which have no unread records."""
    scene = FollowingScene(instance)
    assert not scene.tick().run_requests
    return scene


def fail(
    scene: FollowingScene, error: str, *, attempt_failed: bool = False, shard: str = ONE
) -> None:
    """Let a run fail with a shard."""
    tenure = scene.open(shard, A, "gone").tenure
    scene.store.close_tenure(
        tenure, reason=error, attempt_failed=attempt_failed, failed_at=utc_now()
    )


def commit(scene: FollowingScene) -> None:
    """Let a run commit all of shard 1."""
    tenure, end = scene.open(ONE, A, "next").tenure, str(scene.source.ends[ONE])
    scene.store.record_intents([Intent(tenure, 0, "0", end)])
    scene.store.commit([BatchCommit(tenure, 0, "0", end, "try", (), BatchStatistics(5, 50, 5))])
    scene.store.close_tenure(tenure, reason="caught up")


def outcomes(instance: dg.DagsterInstance, scene: FollowingScene) -> list[tuple[bool, str]]:
    """The outcomes of the check as Dagster has stored them, in order."""
    key = dg.AssetCheckKey(asset_key(scene.stream), PROGRESS)
    records = instance.event_log_storage.get_asset_check_execution_history(key, limit=100)
    evaluations = [each.evaluation for each in reversed(records)]
    assert all(isinstance(each, dg.AssetCheckEvaluation) for each in evaluations)
    return [(each.passed, str(each.description)) for each in evaluations if each is not None]


def later_outcomes(
    instance: dg.DagsterInstance, scene: FollowingScene, ticks: int
) -> list[tuple[bool, str]]:
    """The outcomes that are stored in the next ticks."""
    before = len(outcomes(instance, scene))
    for _ in range(ticks):
        scene.later()
    return outcomes(instance, scene)[before:]


@pytest.mark.parametrize(
    "attempt_failed", [True, False], ids=["a transform raised", "a gap is held"]
)
def test_a_failed_run_is_shown_at_the_next_tick_until_records_are_committed(
    instance: dg.DagsterInstance, *, attempt_failed: bool
) -> None:
    scene = begun(instance)
    assert [passed for passed, _ in outcomes(instance, scene)] == [True]
    scene.source.ends[ONE] = 5
    fail(scene, REFUSED, attempt_failed=attempt_failed)
    assert later_outcomes(instance, scene, 3) == [
        (
            False,
            "The last run of shard 1 of orders.eu/default failed, and the next one retries: "
            f"{REFUSED}",
        )
    ]
    commit(scene)
    assert [passed for passed, _ in later_outcomes(instance, scene, 2)] == [True]


def test_only_a_changed_reason_is_reported(instance: dg.DagsterInstance) -> None:
    scene = begun(instance)
    scene.source.ends[ONE] = 5
    reasons: list[str] = []
    for error in (REFUSED, REFUSED, "It is away.", "It is away."):
        fail(scene, error)
        reasons += [why for _, why in later_outcomes(instance, scene, 1)]
    assert [why.partition(" retries: ")[2] for why in reasons] == [REFUSED, "It is away."]


def test_several_shards_are_counted_and_listed(instance: dg.DagsterInstance) -> None:
    scene = begun(instance)
    scene.source.ends |= {"1": 5, "2": 5}
    for shard in "12":
        fail(scene, REFUSED, shard=shard)
    ((passed, why),) = later_outcomes(instance, scene, 1)
    assert not passed
    assert why.startswith("2 of 4 shards make no progress. The last run of shard 1 of ")


def test_a_failed_shard_that_caught_up_is_green(instance: dg.DagsterInstance) -> None:
    scene = begun(instance)
    fail(scene, "Run 7 ended without closing it.")
    assert later_outcomes(instance, scene, 1) == []


def test_a_held_record_is_shown_without_a_report_of_a_run(instance: dg.DagsterInstance) -> None:
    scene = begun(instance)
    tenure = scene.open(ONE, A, "gone").tenure
    scene.store.suspect(tenure, HELD, abandon=False)
    ((passed, why),) = later_outcomes(instance, scene, 3)
    assert not passed
    assert "is held at its beginning, because the record there stops every run (It hangs)" in why


def test_a_refusing_source_is_shown_within_a_minute_until_it_answers(
    instance: dg.DagsterInstance,
) -> None:
    scene = begun(instance)
    scene.source.down = "The source of orders.eu refuses the credentials: renew them."
    assert later_outcomes(instance, scene, int(PATIENCE_S / TICK_S)) == [], "it may be a moment"
    ((passed, why),) = later_outcomes(instance, scene, 2)
    assert not passed
    assert why.startswith("4 of 4 shards make no progress. Shard 0 of orders.eu/default cannot be ")
    assert scene.source.down in why
    scene.source.down = ""
    assert [passed for passed, _ in later_outcomes(instance, scene, 1)] == [True]


def test_only_the_shard_that_its_source_cannot_read_is_shown(instance: dg.DagsterInstance) -> None:
    scene = begun(instance)
    scene.source.damaged = {ONE}
    ((passed, why),) = later_outcomes(instance, scene, 11)
    assert not passed
    assert why.startswith("Shard 1 of orders.eu/default cannot be read")
    assert "shard 1 is damaged: restore it." in why
    scene.source.damaged = set()
    assert [passed for passed, _ in later_outcomes(instance, scene, 61)] == [True]


def test_a_group_without_a_node_is_shown_within_a_minute_until_one_joins(
    instance: dg.DagsterInstance,
) -> None:
    scene = begun(instance)
    report = SimpleNamespace(
        snapshot=scene.store.snapshot(scene.stream.key), live=frozenset[str](), progress={}
    )
    reports = ObstacleReports(scene.stream, lambda: scene.now_s)
    seen: list[bool] = []
    for live in (*12 * [frozenset[str]()], frozenset({"a"})):
        report.live = live
        scene.now_s += TICK_S
        obstacles = obstacles_of(report, quiet=(), source_errors={})  # type: ignore[arg-type]
        reports.report(instance, obstacles)
        seen.append(outcomes(instance, scene)[-1][0])
    assert seen[:4] == 4 * [True]
    assert seen[4:] == [*8 * [False], True]
    why = outcomes(instance, scene)[-2][1]
    assert "Shard 0 of orders.eu/default is not read, because no node of the group is alive" in why


def test_a_restarted_code_server_finds_failed_checks(instance: dg.DagsterInstance) -> None:
    scene = begun(instance)
    scene.source.ends[ONE] = 5
    fail(scene, REFUSED)
    scene.later()
    commit(scene)
    scene.restart()
    assert [passed for passed, _ in later_outcomes(instance, scene, 1)] == [True]


def test_an_outdated_check_of_a_run_is_corrected(instance: dg.DagsterInstance) -> None:
    """Goal: an outcome made on demand that is outdated when it is stored does not stay."""
    scene = begun(instance)
    outdated = ShardCheck(PROGRESS, False, "It failed.", {}).evaluation(scene.stream, None)
    instance.report_runless_asset_event(outdated)
    assert [passed for passed, _ in later_outcomes(instance, scene, 7)] == [True]


def test_a_paused_group_is_not_judged(instance: dg.DagsterInstance) -> None:
    scene = begun(instance)
    scene.source.ends[ONE] = 5
    fail(scene, REFUSED)
    group = replace(scene.store.pulse(scene.stream.key).group, paused=True)
    scene.store.update_group(group, observer="test")
    assert later_outcomes(instance, scene, 2) == []
