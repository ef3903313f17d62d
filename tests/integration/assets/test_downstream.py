"""Downstream of a stream, on real Spark: a DataFrame as input, and windows of it."""

import os
import threading
import time
from _thread import interrupt_main
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame  # noqa: TID253 - an annotation that Dagster reads

from dagster_leasehold.assets.deployment import LEASEHOLD, Deployment
from dagster_leasehold.assets.errors import TransformError, WindowIncomplete
from dagster_leasehold.assets.guarding.run_on_spark import run_tag
from dagster_leasehold.assets.output.committed_input import committed_input
from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.partitions import output_key
from dagster_leasehold.assets.rewriting.vacuum import vacuum
from dagster_leasehold.assets.shard_asset import build_shard_asset
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.assets.windows.window_run import build_window, window_paths
from dagster_leasehold.lease_store.errors import RunStalled
from dagster_leasehold.lease_store.group_rows import Timing
from tests.unit.assets.consumption_world import NODE, World
from tests.unit.assets.output.test_committed_output import NOON, append
from tests.unit.assets.spark_doubles import SparkDouble

pytestmark = pytest.mark.spark
HOUR = timedelta(hours=1)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two shards with a record a minute from noon to half past one."""
    world = World(tmp_path, records=0)
    for shard in world.ids:
        append(world, shard, 90)
    world.consume()
    return world


@pytest.fixture
def deployment(world: World) -> Deployment:
    return Deployment(lambda: world.store, (NODE,), Timing(), output_folder=lambda _: world.place)


def test_a_downstream_asset_receives_a_spark_frame(
    world: World, deployment: Deployment, spark_folder: Path, connect_session: Any
) -> None:
    del connect_session  # requested so that the server is warm

    @dg.asset(
        partitions_def=dg.HourlyPartitionsDefinition(start_date=NOON),
        ins={"orders": dg.AssetIn("orders", partition_mapping=dg.AllPartitionMapping())},
    )
    def per_hour(orders: DataFrame) -> int:
        return orders.count()

    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("orders", list(world.ids))
        result = dg.materialize(
            [build_shard_asset(world.stream, deployment), per_hour],
            selection=[per_hour],
            resources={
                LEASEHOLD: replace(
                    deployment, spark=SparkResource(mode="connect", folder=str(spark_folder))
                ),
                output_key(world.stream): committed_input(world.stream),
                "io_manager": dg.mem_io_manager,
            },
            instance=instance,
            partition_key="2026-03-01-13:00",
        )
    assert result.output_for_node("per_hour") == 60


def make(world: World, deployment: Deployment, session: Any, hour: int, **more: Any) -> Any:
    def per_shard(records: DataFrame) -> DataFrame:
        return records.groupBy("shard_id").count()

    given: dict[str, Any] = {"transform": per_shard, "run": "run-1"} | more
    start = NOON + hour * HOUR
    return build_window(
        deployment,
        world.stream,
        asset="per_shard",
        start=start,
        end=start + HOUR,
        spark=cast(Any, SparkDouble(session)),
        **given,
    )


def test_a_window_is_written_and_replaced_as_a_whole_and_kept_by_vacuum(
    world: World, deployment: Deployment, connect_session: Any
) -> None:
    made = make(world, deployment, connect_session, 0)
    assert made.window.covered == {"0": 23, "1": 23}
    paths = window_paths(world.store, world.stream, world.place, "per_shard")
    assert pq.read_table(paths).sort_by("shard_id").to_pydict() == {
        "shard_id": ["0", "1"],
        "count": [60, 60],
    }
    again = make(world, deployment, connect_session, 0, run="run-2")
    assert (again.window.version, again.window.generation, again.window.run) == (2, 2, "run-2")
    newer = window_paths(world.store, world.stream, world.place, "per_shard")
    assert not set(paths) & set(newer)
    report = vacuum(world.store, world.key, world.place, older_than=HOUR)
    assert all(Path(path).exists() for path in paths), "a reader may have listed them"
    for path in (*paths, *newer):
        os.utime(path, (0, 0))
    report = vacuum(world.store, world.key, world.place, older_than=HOUR)
    assert not any(Path(path).exists() for path in paths), report
    assert all(Path(path).exists() for path in newer), report


def test_a_run_that_was_overtaken_computes_the_window_again(
    world: World, deployment: Deployment, connect_session: Any
) -> None:
    """Method: while the first run calls the transform, a second run of the hour is faster."""
    runs: list[str] = []

    def slow(records: DataFrame) -> DataFrame:
        if not runs:
            runs.append("overtaken")
            append(world, world.ids[0], 1, begin=7)
            world.consume("run-late")
            make(world, deployment, connect_session, 0, run="fast")
        return records.groupBy("shard_id").count()

    made = make(world, deployment, connect_session, 0, run="slow", transform=slow)
    assert (made.window.run, made.window.generation) == ("slow", 2)
    assert made.window.covered == {"0": 24, "1": 23}
    (path,) = window_paths(world.store, world.stream, world.place, "per_shard")
    assert sum(pq.read_table(path).column("count").to_pylist()) == 121


def test_an_incomplete_hour_is_refused_unless_the_config_allows_it(
    world: World, deployment: Deployment, connect_session: Any
) -> None:
    with pytest.raises(WindowIncomplete, match="is not complete"):
        make(world, deployment, connect_session, 1)
    made = make(world, deployment, connect_session, 1, even_if_incomplete=True)
    assert made.window.records == 2
    assert made.window.start == datetime(2026, 3, 1, 13, tzinfo=UTC)


def test_a_failing_transform_is_one_sentence_and_leaves_no_file(
    world: World, deployment: Deployment, connect_session: Any
) -> None:
    before = {*world.output.rglob("*.parquet")}

    def wrong(records: DataFrame) -> DataFrame:
        return records.select("no_such_column")

    with pytest.raises(TransformError) as caught:
        make(world, deployment, connect_session, 0, transform=wrong)
    assert "\n" not in str(caught.value)
    with pytest.raises(TransformError, match="returned int: return a DataFrame"):
        make(world, deployment, connect_session, 0, transform=lambda _: 7)
    assert {*world.output.rglob("*.parquet")} == before
    assert world.store.windows(world.key) == []


@pytest.mark.parametrize("way", ["given up", "terminated"])
def test_an_hour_that_ends_early_leaves_no_job_running(
    world: World, deployment: Deployment, connect_session: Any, tmp_path: Path, way: str
) -> None:
    """Method: its task holds until the test is over, and its run does not."""
    held, let_go = tmp_path / "held", tmp_path / "let-go"

    def hold(batches: Any) -> Any:
        while not let_go.exists():
            with held.open("a") as file:
                file.write(".")
            time.sleep(0.05)
        yield from batches

    def at_work() -> bool:
        size = held.stat().st_size
        time.sleep(1.0)
        return held.stat().st_size > size

    def terminate() -> None:
        # A Python worker that has only begun outlives the task that Spark ends.
        while not held.exists() or held.stat().st_size < 60:
            time.sleep(0.05)
        interrupt_main()

    world.stream = replace(
        world.stream, pace=Pace(stall_limit_s=20.0 if way == "given up" else 600.0)
    )
    kind = RunStalled if way == "given up" else KeyboardInterrupt
    if way == "terminated":
        threading.Thread(target=terminate, daemon=True).start()
    try:
        with pytest.raises(kind) as caught:
            make(
                *(world, deployment, connect_session, 0),
                transform=lambda records: records.mapInArrow(hold, records.schema),
            )
        assert any(not at_work() for _ in range(60))
        assert connect_session.interruptTag(run_tag("run-1")) == []
        if way == "given up":
            assert "no progress for 20 s while it waited for Spark, so it abandoned the" in str(
                caught.value
            )
        assert world.store.windows(world.key) == []
        assert world.store.window_attempts(world.key) == []
        assert make(world, deployment, connect_session, 0, run="run-2").window.generation == 1
    finally:
        let_go.touch()
