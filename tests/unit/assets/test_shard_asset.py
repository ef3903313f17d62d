"""Runs of many partitions: each has its own events, and one that fails leaves the others alone."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterRunStatus
from dagster._core.remote_origin import (
    GrpcServerCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster_shared.record import copy

from dagster_leasehold.assets import shard_asset, shard_replay
from dagster_leasehold.assets.backfill_siblings import BACKFILL_TAG, TAKEN_OVER_TAG, Siblings
from dagster_leasehold.assets.checks import LAG, NO_GAP, QUARANTINE_RATE
from dagster_leasehold.assets.consuming.consumption_report import ConsumptionReport, StopReason
from dagster_leasehold.assets.deployment import LEASEHOLD, ensure_instance_address
from dagster_leasehold.assets.output.committed_input import committed_input
from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.partitions import (
    RANGE_END_TAG,
    RANGE_START_TAG,
    asset_key,
    asset_op_name,
    output_key,
    shard_partitions,
)
from dagster_leasehold.assets.rewriting.replay import ReplayReport
from dagster_leasehold.assets.shard_asset import build_shard_asset
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.sensors.shard_list import sync_listing
from tests.unit.sensors.streams import memory_deployment, scripted_stream

SHARDS, BACKFILL = 8, "the-backfill"
ALL = [str(number) for number in range(SHARDS)]
QUEUED = {
    "run_coordinator": {"module": "dagster.core.run_coordinator", "class": "QueuedRunCoordinator"}
}

ORIGIN = RemoteJobOrigin(
    RemoteRepositoryOrigin(GrpcServerCodeLocationOrigin("127.0.0.1", 1), "__repository__"),
    "__ASSET_JOB",
)


class Scene:
    """A stream of eight shards that two nodes share, and runs that consume without Spark."""

    def __init__(self, instance: dg.DagsterInstance, patch: pytest.MonkeyPatch) -> None:
        self.instance = instance
        self.stream, source = scripted_stream(SHARDS)
        deployment, self.store = memory_deployment("a", "b")
        unused = SparkResource(mode="connect", folder="unused")
        self.deployment = replace(deployment, spark=unused)
        sync_listing(self.store, self.stream, source.shards, timeout_s=20.0)
        for name in ("a", "b"):
            node = Node(NodeName(name), 0, name, address=ensure_instance_address(instance))
            self.store.register(self.stream.key, node, observer="test")
        instance.add_dynamic_partitions(self.stream.name, ALL)
        self.asset = build_shard_asset(self.stream, self.deployment)
        self.others: list[dg.AssetsDefinition] = []
        self.failing: set[str] = set()
        self.consumed: list[tuple[str, list[str]]] = []
        self.replayed: list[str] = []
        patch.setattr(shard_asset, "consume_shards", self._consume)
        patch.setattr(shard_replay, "replay_on_spark", self._replay)
        patch.setattr(shard_replay, "owned", lambda _store, folder: folder)

    def _consume(
        self, *_: object, node: str, shards: Sequence[ShardId], **__: object
    ) -> tuple[list[ConsumptionReport], float]:
        self.consumed.append((node, list(shards)))
        return [
            ConsumptionReport(shard, StopReason.FAILED, error="an unexpected unit.")
            if shard in self.failing
            else ConsumptionReport(shard, StopReason.CAUGHT_UP, lag_after=0)
            for shard in shards
        ], 1.0

    def _replay(
        self, _: object, __: object, shards: Sequence[ShardId], *___: object, **____: object
    ) -> dict[ShardId, ReplayReport]:
        self.replayed += shards
        return {
            shard: ReplayReport(shard, error="it is broken." * (shard in self.failing))
            for shard in shards
        }

    @property
    def selection(self) -> list[dg.AssetKey]:
        """The assets that each run makes."""
        return [asset_key(self.stream), *(other.key for other in self.others)]

    def run(self, first: str, last: str, **config: Any) -> dg.ExecuteInProcessResult:
        """A run of a range of partitions, as the backfill daemon launches it."""
        tags = {RANGE_START_TAG: first, RANGE_END_TAG: last, BACKFILL_TAG: BACKFILL}
        ops = {asset_op_name(self.stream): {"config": config}}
        return self.job().execute_in_process(
            instance=self.instance,
            asset_selection=self.selection,
            tags=tags,
            run_config={"ops": ops} if config else None,
            raise_on_error=False,
        )

    def job(self) -> dg.JobDefinition:
        defs = dg.Definitions(
            assets=[self.asset, *self.others],
            resources={
                LEASEHOLD: self.deployment,
                output_key(self.stream): committed_input(self.stream),
            },
        )
        return defs.resolve_implicit_global_asset_job_def()

    def queue(self, *partitions: str, **config: Any) -> list[str]:
        """Add a queued run for each of these partitions; return their ids."""
        ops = {asset_op_name(self.stream): {"config": config}}
        ids = [str(uuid.uuid4()) for _ in partitions]
        for run_id, partition in zip(ids, partitions, strict=True):
            run = dg.DagsterRun(
                job_name="__ASSET_JOB",
                run_id=run_id,
                asset_selection=frozenset(self.selection),
                status=DagsterRunStatus.QUEUED,
                remote_job_origin=ORIGIN,
                run_config={"ops": ops} if config else {},
                tags={RANGE_START_TAG: partition, RANGE_END_TAG: partition, BACKFILL_TAG: BACKFILL},
            )
            self.instance.add_run(run)
        return ids

    def stored(self, run_id: str) -> dg.DagsterRun:
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        return run

    def materialized(self) -> list[str]:
        records = self.instance.fetch_materializations(asset_key(self.stream), limit=100).records
        return sorted(str(record.partition_key) for record in records)

    def observed(self) -> list[str]:
        records = self.instance.fetch_observations(asset_key(self.stream), limit=100).records
        return sorted(str(record.partition_key) for record in records)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Scene(instance, monkeypatch)


def sentence(result: dg.ExecuteInProcessResult) -> str:
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    error: Any = failure.step_failure_data.error
    return error.message


def test_a_range_is_one_run_that_reports_each_partition_once(scene: Scene) -> None:
    result = scene.run("0", "7")
    assert result.success
    assert scene.materialized() == ALL
    assert {node: len(shards) for node, shards in scene.consumed} == {"a": 4, "b": 4}
    outcomes = [
        (check.check_name, check.partition)
        for check in result.get_asset_check_evaluations()
        if check.partition
    ]
    assert sorted(outcomes) == sorted(
        (name, shard) for name in (NO_GAP, LAG, QUARANTINE_RATE) for shard in ALL
    )


def test_a_range_of_one_partition_has_its_checks(scene: Scene) -> None:
    result = scene.run("3", "3")
    assert scene.materialized() == ["3"]
    checks = {check.check_name: check.partition for check in result.get_asset_check_evaluations()}
    assert checks.keys() == {NO_GAP, LAG, QUARANTINE_RATE}
    stored = scene.instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(asset_key(scene.stream), NO_GAP), limit=9
    )
    assert "3" in {record.partition for record in stored}


def test_code_of_the_user_wraps_the_work_of_a_run(scene: Scene) -> None:
    steps: list[str] = []

    def execute(
        context: dg.AssetExecutionContext, work: Callable[[], Iterator[Any]]
    ) -> Iterator[Any]:
        steps.append(f"before {context.partition_key}")
        yield from work()
        steps.append(f"after {scene.materialized()}")

    scene.stream = replace(scene.stream, execute=execute)
    scene.asset = build_shard_asset(scene.stream, scene.deployment)
    assert scene.run("3", "3").success
    assert steps == ["before 3", "after ['3']"]
    assert scene.materialized() == ["3"]


def test_a_shard_that_fails_leaves_the_others_materialized_and_is_named(scene: Scene) -> None:
    scene.failing = {"2", "5"}
    result = scene.run("0", "7")
    assert not result.success
    assert scene.materialized() == [shard for shard in ALL if shard not in scene.failing]
    assert sentence(result).endswith(
        "2 of 8 shards of orders.eu/default were not consumed to their ends. "
        "Shards 2, 5: an unexpected unit.\n"
    )


def test_a_shard_that_cannot_be_consumed_is_refused_alone(scene: Scene) -> None:
    scene.instance.add_dynamic_partitions(scene.stream.name, ["gone"])
    result = scene.run("7", "gone")
    assert not result.success
    assert scene.materialized() == ["7"]
    assert "has no shard 'gone'" in sentence(result)


def test_more_shards_than_one_session_serves_are_consumed_in_portions_of_a_node(
    scene: Scene,
) -> None:
    assert scene.run("0", "7").success
    scene.consumed.clear()
    object.__setattr__(scene.stream, "pace", Pace(shards_per_run=2))
    assert scene.run("0", "7").success
    assert [(node, len(shards)) for node, shards in scene.consumed] == [("a", 2)] * 2 + [
        ("b", 2)
    ] * 2


def test_a_failing_partition_of_a_replay_keeps_its_output_and_the_others_are_replayed(
    scene: Scene,
) -> None:
    scene.failing = {"1"}
    result = scene.run("0", "3", **{"from": "begin"})
    assert scene.replayed == ["0", "1", "2", "3"]
    assert scene.materialized() == ["0", "2", "3"]
    assert "1 of 4 shards of orders.eu/default were not replayed. Shard 1: it is broken." in (
        sentence(result)
    )


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with dg.instance_for_test(overrides=QUEUED) as instance:
        yield Scene(instance, monkeypatch)


def test_the_first_run_of_a_selection_with_holes_takes_over_queued_runs(queued: Scene) -> None:
    scene, foreign = queued, {"from": "begin"}
    waiting, other = scene.queue("2", "4", "6"), scene.queue("7", **foreign)
    assert scene.run("0", "0").success
    assert scene.materialized() == ["0", "2", "4", "6"]
    left = {run.run_id: run.status for run in scene.instance.get_runs()}
    assert not left.keys() & set(waiting), "what never began is no run of the backfill"
    assert left[other[0]] is DagsterRunStatus.QUEUED, "another config is another piece of work"

    scene.failing = {"4"}
    waiting = scene.queue("2", "4")
    assert not scene.run("0", "0").success
    left = {run.run_id: run for run in scene.instance.get_runs()}
    assert waiting[0] not in left
    failed = left[waiting[1]]
    assert failed.status is DagsterRunStatus.CANCELED, "its partition is shown as not materialized"
    assert TAKEN_OVER_TAG in failed.tags
    assert scene.materialized() == ["0", "0", "2", "2", "4", "6"]


def test_a_run_with_an_asset_of_the_project_takes_over_no_run(queued: Scene) -> None:
    """Or that asset would never be made for the partitions that were taken over."""
    scene = queued
    shards = shard_partitions(scene.stream)
    scene.others = [
        dg.asset(name="labels", deps=[scene.stream.name], partitions_def=shards)(labels)
    ]
    (waiting,) = scene.queue("2")
    assert scene.run("0", "0").success
    assert scene.materialized() == ["0"]
    left = scene.instance.get_run_by_id(waiting)
    assert left is not None
    assert left.status is DagsterRunStatus.QUEUED


def labels() -> None:
    """An asset below the stream."""


def test_a_run_beside_an_older_one_of_its_backfill_takes_over_no_run(queued: Scene) -> None:
    scene = queued
    (older,) = scene.queue("1")
    run = scene.instance.get_run_by_id(older)
    assert run is not None
    scene.instance.report_run_canceling(run)
    (waiting,) = scene.queue("5")
    assert scene.run("0", "0").success
    assert scene.materialized() == ["0"]
    left = scene.instance.get_run_by_id(waiting)
    assert left is not None
    assert left.status is DagsterRunStatus.QUEUED


def test_a_run_takes_over_queued_runs_of_its_node(queued: Scene) -> None:
    scene = queued
    assert scene.run("0", "7").success
    holders = {
        row.shard: row.consumer_owner for row in scene.store.snapshot(scene.stream.key).shards
    }
    node = holders[ShardId("0")]
    scene.deployment = replace(scene.deployment, agents=True)
    scene.asset = build_shard_asset(scene.stream, scene.deployment)
    policy = scene.asset.backfill_policy
    assert policy is not None
    assert policy.max_partitions_per_run == 1
    runs = dict(zip(scene.queue(*ALL[1:]), ALL[1:], strict=True))
    scene.consumed.clear()
    assert scene.run("0", "0").success
    own = [shard for shard in ALL if holders[ShardId(shard)] == node]
    assert [(each, sorted(shards)) for each, shards in scene.consumed] == [(node, own)]
    waiting = {run.run_id for run in scene.instance.get_runs() if run.run_id in runs}
    assert sorted(runs[run] for run in waiting) == [shard for shard in ALL if shard not in own]


def test_a_run_that_is_launched_while_it_is_canceled_still_consumes_its_partition(
    queued: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process finds it canceled and ends, which Dagster calls a failure a moment later."""
    scene = queued

    def cancel(coordinator: object, run_id: str) -> bool:
        del coordinator
        scene.instance.report_run_canceling(scene.stored(run_id))
        return False

    monkeypatch.setattr(dg.QueuedRunCoordinator, "cancel_run", cancel)
    (launched,) = scene.queue("2")
    assert scene.run("0", "0").success
    assert scene.materialized() == ["0", "2"]
    assert scene.stored(launched).status is DagsterRunStatus.CANCELING, "it is not deleted so soon"


def test_a_repeated_run_consumes_the_partitions_that_the_first_one_took_over(queued: Scene) -> None:
    scene = queued
    (first,) = scene.queue("0")
    dead = scene.stored(first)
    scene.instance.report_run_canceling(dead)
    waiting = scene.queue("2", "4")
    shards = next(Siblings(scene.instance, dead, scene.stream, dict).rounds([ShardId("0")]))
    assert shards == ["0", "2", "4"]
    scene.instance.report_run_failed(scene.stored(first), "it was killed")
    (again,) = scene.queue("0")
    repeated = copy(scene.stored(again), parent_run_id=first, root_run_id=first)
    siblings = Siblings(scene.instance, repeated, scene.stream, dict)
    assert sorted(next(siblings.rounds([ShardId("0")]))) == shards
    siblings.remove([ShardId("4")])
    left = {each.run_id: each.tags for each in scene.instance.get_runs()}
    assert waiting[1] not in left
    assert left[waiting[0]][TAKEN_OVER_TAG] == again
