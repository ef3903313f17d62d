"""A stream, its hours, and assets of a project that declarative automation makes below them."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from dagster_leasehold.assets.partitions import shard_partitions
from dagster_leasehold.assets.windows.hourly_asset import HourlyAsset
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.settings import load_settings
from tests.acceptance.merged_definitions import stream_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

When = dg.AutomationCondition
HELD_MAX_S = 120.0
NEWS = (
    When.any_deps_updated().since(When.newly_requested() | When.initial_evaluation())
    & ~When.in_progress()
)

_settings = load_settings()
home: Path = _settings.home
orders = stream_of(_settings, "orders")


def unchanged(records: DataFrame) -> DataFrame:
    return records


since = utc_now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=6)
per_hour = HourlyAsset("orders_per_hour", orders, unchanged, since=since, idle_after_s=0.0)


@dg.asset(
    deps=["orders"],
    partitions_def=shard_partitions(orders),
    automation_condition=NEWS,
    backfill_policy=dg.BackfillPolicy.single_run(),
)
def per_shard() -> None:
    """Made for the shards that have news."""


@dg.asset(deps=["orders"], automation_condition=When.eager())
def complete() -> None:
    """Made once every shard has a materialization."""


def wait_for_the_test() -> None:
    (home / "began").touch()
    deadline = time.monotonic() + HELD_MAX_S
    while not (home / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


@dg.asset(deps=["orders"], automation_condition=When.eager().without(~When.any_deps_missing()))
def forgetful() -> None:
    """Not made again for the news that arrives while its run works."""
    wait_for_the_test()


@dg.asset(deps=["orders"], automation_condition=NEWS)
def mindful() -> None:
    """Made again for such news."""
    wait_for_the_test()


@dg.asset(deps=["orders_per_hour"], partitions_def=per_hour.partitions, automation_condition=NEWS)
def each_hour() -> None:
    """Made for each hour that is made, old ones as well."""


def kept_fresh(spec: dg.AssetSpec) -> dg.AssetSpec:
    policy = dg.FreshnessPolicy.time_window(fail_window=timedelta(minutes=15))
    return spec.replace_attributes(freshness_policy=policy) if spec.key.path == ["orders"] else spec


defs = dg.Definitions.merge(
    build_definitions([orders], hourly=[per_hour]),
    dg.Definitions(
        assets=[per_shard, complete, forgetful, mindful, each_hour],
        sensors=[
            dg.AutomationConditionSensorDefinition(
                "automation",
                target="*",
                default_status=dg.DefaultSensorStatus.RUNNING,
                minimum_interval_seconds=5,
            )
        ],
        executor=dg.in_process_executor,
    ),
).map_asset_specs(func=kept_fresh)
