"""Runs of the job and of the asset in Dagster, on real Spark and a local log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from dagster_leasehold.assets.consume_job import build_consume_job
from dagster_leasehold.assets.deployment import LEASEHOLD, Deployment, ensure_instance_address
from dagster_leasehold.assets.output.committed_input import committed_input
from dagster_leasehold.assets.partitions import (
    asset_key,
    consume_job_name,
    consume_op_name,
    output_key,
)
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.shard_asset import build_shard_asset
from dagster_leasehold.assets.shard_stream import ShardStream, Transform
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.lease_store.group_rows import Node, Timing
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.integration.assets.runs import NODE, RECORDS, store_of, stream_of
from tests.ledger_output import ledger_records

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark


class Scene:
    """Definitions of the small deployment, an instance, and what the runs left in it."""

    def __init__(
        self,
        home: Path,
        spark_folder: Path,
        instance: dg.DagsterInstance,
        transform: Transform | None = None,
    ) -> None:
        self.home = home
        self.instance = instance
        self.stream: ShardStream = stream_of(home, transform)
        self.store: LeaseStore = store_of(home)
        node = Node(NODE, 0, "a-1", address=ensure_instance_address(instance))
        self.store.register(self.stream.key, node, observer="test")
        deployment = Deployment(
            lambda: self.store,
            (NodeName(NODE),),
            Timing(),
            lambda key: local_place(home / "output"),
            spark=SparkResource(mode="connect", folder=str(spark_folder)),
        )
        self.defs = dg.Definitions(
            assets=[build_shard_asset(self.stream, deployment)],
            jobs=[build_consume_job(self.stream)],
            resources={
                LEASEHOLD: deployment,
                output_key(self.stream): committed_input(self.stream),
            },
            executor=dg.in_process_executor,
        )
        listed = [row.shard for row in self.stream.source.list_shards()]
        instance.add_dynamic_partitions(self.stream.name, list(listed))

    def consume(self, *shards: str) -> dg.ExecuteInProcessResult:
        """A run as the rebalance sensor launches it."""
        config = {"node": NODE, "incarnation": "a-1", "shards": list(shards)}
        job = self.defs.resolve_job_def(consume_job_name(self.stream))
        return job.execute_in_process(
            instance=self.instance,
            run_config={"ops": {consume_op_name(self.stream): {"config": config}}},
            raise_on_error=False,
        )

    def materialize(self, **tags: str) -> dg.ExecuteInProcessResult:
        """A run as the web page launches it."""
        job = self.defs.resolve_implicit_global_asset_job_def()
        renamed = {f"dagster/{name}": value for name, value in tags.items()}
        return job.execute_in_process(
            instance=self.instance,
            tags=renamed,
            partition_key=renamed.get("dagster/partition"),
            raise_on_error=False,
        )

    def materialized(self) -> list[tuple[str, int]]:
        """Partition and records of every materialization, in order of partition."""
        records = self.instance.fetch_materializations(asset_key(self.stream), limit=100).records
        events = [record.asset_materialization for record in records]
        return sorted(
            (str(e.partition), int(str(e.metadata["records"].value))) for e in events if e
        )

    def reported(self) -> dict[str, int]:
        """The records of all materializations of each partition."""
        records_by_partition: dict[str, int] = {}
        for partition, records in self.materialized():
            records_by_partition[partition] = records_by_partition.get(partition, 0) + records
        return records_by_partition

    def committed(self, shard: str) -> list[bytes]:
        batches = ledger_records(self.store, self.stream.key, self.home / "output", ShardId(shard))
        return [value for batch in batches for value in batch.column("value").to_pylist()]

    def sentence(self, result: dg.ExecuteInProcessResult) -> str:
        (failure,) = [event for event in result.all_events if event.is_step_failure]
        error: Any = failure.step_failure_data.error
        return error.message.removeprefix("dagster._core.definitions.events.Failure: ").strip()


NewScene = Callable[..., Scene]


@pytest.fixture
def new_scene(home: Path, spark_folder: Path, connect_session: object) -> Iterator[NewScene]:
    del connect_session  # requested so that the server is warm
    with dg.DagsterInstance.ephemeral() as instance:
        yield lambda transform=None: Scene(home, spark_folder, instance, transform)


def expected(shard: str) -> list[bytes]:
    return [b"%s:%d" % (shard.encode(), number) for number in range(RECORDS)]


def test_code_of_the_user_wraps_a_run_of_a_node(new_scene: NewScene) -> None:
    scene, steps = new_scene(), list[str]()

    def execute(context: dg.OpExecutionContext, work: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        steps.append(f"before {context.job_name}")
        yield from work()
        steps.append(f"after {scene.committed('0')}")

    job = build_consume_job(replace(scene.stream, execute=execute))
    scene.defs = dg.Definitions(jobs=[job], resources=scene.defs.resources)
    assert scene.consume("0").success
    assert steps == ["before consume_orders", f"after {expected('0')}"]


def test_a_run_over_several_shards_reports_each_partition_once(new_scene: NewScene) -> None:
    scene = new_scene()
    assert scene.consume("0", "1", "2").success
    assert scene.reported() == dict.fromkeys("012", RECORDS)
    assert all(scene.committed(shard) == expected(shard) for shard in "012")
    assert scene.store.pending_events(scene.stream.key) == []
    # Nothing is new: a second run reports nothing, and a click is green all the same.
    before = scene.materialized()
    assert scene.consume("0", "1", "2").success
    assert scene.materialized() == before
    assert scene.materialize(partition="1").success
    assert scene.materialized() == sorted([*before, ("1", 0)])
    assert verify(scene.store, scene.stream.key) == []


def test_a_materialized_partition_has_metadata_and_checks(new_scene: NewScene) -> None:
    scene = new_scene()
    result = scene.materialize(partition="1")
    assert result.success
    (record,) = scene.instance.fetch_materializations(asset_key(scene.stream), limit=9).records
    event = record.asset_materialization
    assert event is not None
    metadata = {name: value.value for name, value in event.metadata.items()}
    assert metadata["records"] == metadata["written"] == metadata["lag_before"] == RECORDS
    assert metadata["lag_after"] == metadata["quarantined"] == 0
    assert (metadata["start_cursor"], metadata["end_cursor"]) == ("0", str(RECORDS))
    assert metadata["batches"] == 3
    assert metadata["records_per_second"] > 0
    assert isinstance(event.metadata["first_event_time"], dg.TimestampMetadataValue)
    checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
    assert {name: check.passed for name, check in checks.items()} == {
        "no_gap": True,
        "lag": True,
        "quarantine_rate": True,
    }
    assert scene.committed("0") == []


def test_a_range_of_partitions_is_one_run_with_metadata_for_each(new_scene: NewScene) -> None:
    scene = new_scene()
    tags = {"asset_partition_range_start": "0", "asset_partition_range_end": "1"}
    assert scene.materialize(**tags).success
    assert scene.reported() == dict.fromkeys("01", RECORDS)


def test_a_split_shard_is_finished_and_its_children_are_consumed(new_scene: NewScene) -> None:
    scene = new_scene()
    log = LocalLog.open(scene.home / "log")
    children = log.split("0")
    scene.instance.add_dynamic_partitions(scene.stream.name, list(children))
    scene.store.sync_shards(scene.stream.key, log.list_shards(), observer="test")
    early = scene.materialize(partition=children[0])
    assert not early.success
    assert "waits for its parents (0)" in scene.sentence(early)
    assert scene.materialize(partition="0").success
    states = {row.shard: row.state for row in scene.store.snapshot(scene.stream.key).shards}
    assert states["0"] is ShardState.OVER
    assert scene.materialize(partition="0").success
    assert scene.materialize(partition=children[0]).success
    assert scene.reported()["0"] == RECORDS
    assert scene.materialized()[0] == ("0", 0)


class FailsFor:
    """A transform that raises as soon as it meets a record of one shard."""

    def __init__(self, shard: str) -> None:
        self.shard = shard

    def __call__(self, records: DataFrame) -> DataFrame:
        shard = self.shard

        def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if shard in batch.column("shard_id").to_pylist():
                    raise ValueError("an unexpected unit")
                yield batch

        return records.mapInArrow(check, records.schema)


def test_a_failing_shard_is_named_and_the_others_are_committed_and_reported(
    new_scene: NewScene,
) -> None:
    scene = new_scene(FailsFor("1"))
    result = scene.consume("0", "1", "2")
    assert not result.success
    sentence = scene.sentence(result)
    assert sentence.startswith("1 of 3 shards of orders failed. Shard 1: ")
    assert "an unexpected unit" in sentence
    assert scene.reported() == dict.fromkeys("02", RECORDS)
    assert scene.committed("1") == []
    clicked = scene.materialize(partition="1")
    assert not clicked.success
    assert "an unexpected unit" in scene.sentence(clicked)


def test_a_paused_group_is_one_sentence(new_scene: NewScene) -> None:
    scene = new_scene()
    group = scene.store.snapshot(scene.stream.key).group
    scene.store.update_group(replace(group, paused=True), observer="test")
    result = scene.materialize(partition="0")
    assert not result.success
    assert "is paused" in scene.sentence(result)
    assert scene.committed("0") == []
