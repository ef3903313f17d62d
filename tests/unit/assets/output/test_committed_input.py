"""The IO manager: downstream assets get committed output by the type and partition they have."""

# Dagster reads the annotations of an asset's inputs when it is defined.
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd  # noqa: TID253 - an annotation that Dagster reads
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from dagster_leasehold.assets.deployment import LEASEHOLD, Deployment
from dagster_leasehold.assets.output.committed_input import TIME_COLUMN_KEY, committed_input
from dagster_leasehold.assets.partitions import output_key, shard_partitions
from dagster_leasehold.assets.shard_asset import build_shard_asset
from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.pruning import OutputExpiry, expire
from tests.unit.assets.consumption_world import NODE, World
from tests.unit.assets.output.test_committed_output import NOON, append

HOURLY = dg.HourlyPartitionsDefinition(start_date=NOON - timedelta(hours=2))
ALL = dg.AllPartitionMapping()


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, records=0)
    for shard in world.ids:
        append(world, shard, 90)
    world.consume()
    return world


def load(world: World, asset: Any, partition: str | None = None) -> Any:
    """Return the input and output of the asset, materialized alone."""
    deployment = Deployment(
        lambda: world.store, (NODE,), Timing(), output_folder=lambda _: world.place
    )
    resources = {
        LEASEHOLD: deployment,
        output_key(world.stream): committed_input(world.stream),
        "io_manager": dg.mem_io_manager,
    }
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(world.stream.name, list(world.ids))
        result = dg.materialize(
            [build_shard_asset(world.stream, deployment), asset],
            selection=[asset],
            resources=resources,
            instance=instance,
            partition_key=partition,
            raise_on_error=False,
        )
        if not result.success:
            (failed,) = [event for event in result.all_events if event.is_step_failure]
            error: Any = failed.step_failure_data.error
            return " ".join(each.message for each in (error, error.cause) if each)
        return result.output_for_node(asset.key.path[-1])


def test_the_whole_stream_as_arrow_pandas_or_polars(world: World) -> None:
    @dg.asset
    def as_table(orders: pa.Table) -> int:
        return orders.num_rows

    @dg.asset
    def as_dataset(orders: ds.Dataset) -> int:
        return orders.count_rows()

    @dg.asset
    def as_pandas(orders: pd.DataFrame) -> int:
        return len(orders)

    @dg.asset
    def as_polars(orders: pl.DataFrame) -> int:
        return orders.height

    @dg.asset
    def as_lazy_frame(orders: pl.LazyFrame) -> int:
        return orders.select("value").collect().height

    for asset in (as_table, as_dataset, as_pandas, as_polars, as_lazy_frame):
        assert load(world, asset) == 180


def test_an_asset_with_the_streams_partitions_gets_its_shard(world: World) -> None:
    @dg.asset(partitions_def=shard_partitions(world.stream))
    def per_shard(orders: pa.Table) -> set[str]:
        return set(orders.column("shard_id").to_pylist())

    assert load(world, per_shard, "1") == {"1"}


def test_a_time_partition_gets_its_window_of_all_shards(world: World) -> None:
    @dg.asset(partitions_def=HOURLY, ins={"orders": dg.AssetIn("orders", partition_mapping=ALL)})
    def hourly(orders: pa.Table) -> list[int]:
        return [orders.num_rows, len(set(orders.column("shard_id").to_pylist()))]

    assert load(world, hourly, "2026-03-01-12:00") == [120, 2]
    assert load(world, hourly, "2026-03-01-13:00") == [60, 2]
    assert load(world, hourly, "2026-03-01-11:00") == [0, 0]


def test_a_window_that_needs_expired_output_is_one_sentence(world: World) -> None:
    @dg.asset(partitions_def=HOURLY, ins={"orders": dg.AssetIn("orders", partition_mapping=ALL)})
    def hourly(orders: pa.Table) -> int:
        return orders.num_rows

    world.deliver()
    expire(world.store, world.key, OutputExpiry(timedelta(days=-1), list))
    assert "cannot be read completely" in load(world, hourly, "2026-03-01-12:00")
    assert load(world, hourly, "2026-03-01-11:00") == 0, "it lies before all that has expired"


def no_type(orders) -> int:  # type: ignore[no-untyped-def]
    return len(orders)


def a_list(orders: list) -> int:  # type: ignore[type-arg]
    return len(orders)


@pytest.mark.parametrize("compute", [no_type, a_list])
def test_an_input_of_an_unknown_type_is_one_sentence(
    world: World, compute: Callable[..., int]
) -> None:
    assert "use pyspark.sql.DataFrame, pyarrow.dataset.Dataset" in load(world, dg.asset(compute))


def test_an_unknown_time_column_is_one_sentence(world: World) -> None:
    upstream = dg.AssetIn("orders", partition_mapping=ALL, metadata={TIME_COLUMN_KEY: "at"})

    @dg.asset(partitions_def=HOURLY, ins={"orders": upstream})
    def hourly(orders: pa.Table) -> int:
        return orders.num_rows

    assert "no time column 'at'" in load(world, hourly, "2026-03-01-12:00")


def test_a_value_is_not_stored(world: World) -> None:
    @dg.asset(io_manager_key=output_key(world.stream))
    def numbers() -> list[int]:
        return [1]

    assert "stores no values" in load(world, numbers)
