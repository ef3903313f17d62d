from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import dagster as dg
import pytest

from dagster_leasehold.assets.checks import LAG, NO_GAP, QUARANTINE_RATE
from dagster_leasehold.assets.lease_asset import JOURNAL_VERIFIED
from dagster_leasehold.assets.table_check import TABLE
from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.settings import Settings
from tests.unit.sensors.streams import scripted_stream


@pytest.fixture
def settings(tmp_path) -> Settings:
    return Settings(home=tmp_path / "home", nodes=("a", "b"))


def test_a_stream_becomes_an_asset_a_job_six_sensors_and_a_stopped_schedule(settings):
    stream, _ = scripted_stream(name="orders.eu")
    repository = build_definitions([stream], settings).get_repository_def()
    key = dg.AssetKey(["orders.eu"])
    asset = repository.assets_defs_by_key[key]
    assert isinstance(asset.partitions_def, dg.DynamicPartitionsDefinition)
    assert asset.partitions_def.name == "orders.eu"
    assert asset.backfill_policy is None
    assert {check.name for check in asset.check_keys} == {NO_GAP, LAG, QUARANTINE_RATE}
    assert dg.AssetCheckKey(key, TABLE) in repository.asset_graph.asset_check_keys
    leases = repository.assets_defs_by_key[dg.AssetKey(["leases", "orders.eu_leases"])]
    assert {check.name for check in leases.check_keys} == {JOURNAL_VERIFIED}
    log = dg.AssetKey(["logs", "orders.eu_log"])
    assert repository.asset_graph.get(log).is_external
    assert repository.asset_graph.get(log).child_keys == {key, leases.key}
    assert repository.has_job("consume_orders_eu")
    sensors = {sensor.name: sensor.default_status for sensor in repository.sensor_defs}
    running = dg.DefaultSensorStatus.RUNNING
    what = ("shard_list", "rebalance", "janitor", "outbox", "publish", "compaction")
    assert sensors == dict.fromkeys((f"orders_eu_{each}" for each in what), running)
    (schedule,) = repository.schedule_defs
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
    assert repository.get_top_level_resources().keys() == {"spark", "committed_output"}


def test_an_asset_of_the_user_may_be_called_as_the_table(settings):
    stream, _ = scripted_stream(name="orders.eu")
    theirs = dg.Definitions(assets=[dg.asset(name="orders_eu_table")(lambda: None)])
    merged = dg.Definitions.merge(build_definitions([stream], settings), theirs)
    job = merged.resolve_implicit_global_asset_job_def()
    assert {"orders_eu_table", "table__orders_eu"} <= {node.name for node in job.graph.nodes}


def test_a_stream_that_shall_not_be_compacted_has_no_sensor_for_it(settings):
    stream, _ = scripted_stream(name="orders.eu")
    repository = build_definitions([replace(stream, compact=False)], settings).get_repository_def()
    assert not repository.has_sensor_def("orders_eu_compaction")
    assert repository.has_job("compact_orders_eu"), "by hand it still is"


def test_building_opens_nothing_and_creates_nothing(settings):
    stream, source = scripted_stream()
    source.down = "building must not ask the source"
    build_definitions([stream], settings)
    assert not settings.home.exists()


def test_streams_that_dagster_cannot_tell_apart_are_refused(settings):
    streams = [scripted_stream(name=name)[0] for name in ("orders.eu", "orders-eu")]
    with pytest.raises(InvalidSetting, match=r"'orders\.eu' and 'orders-eu'"):
        build_definitions(streams, settings)


def test_a_materialization_without_a_partition_is_one_sentence(settings):
    stream, _ = scripted_stream()
    job = build_definitions([stream], settings).resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(
            instance=instance, raise_on_error=False, asset_selection=[dg.AssetKey(["orders.eu"])]
        )
    assert not result.success
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert failure.step_failure_data.error is not None
    assert (
        "Choose a partition: orders.eu has one per shard" in failure.step_failure_data.error.message
    )


def test_the_code_location_loads_without_spark_or_a_database_driver(settings):
    code = (
        "import sys, orchestration.build\n"
        "heavy = {'pyspark', 'dagster_pyspark', 'pymysql', 'pandas', 'matplotlib', 'alembic'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
