from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.assets.job.asset_job import (
    IMPLICIT_ASSET_JOB_NAME,
    is_reserved_asset_job_name,
)
from dagster._core.remote_representation.external_data import RepositorySnap

from dagster_leasehold.assets.checks import LAG, NO_GAP, QUARANTINE_RATE
from dagster_leasehold.assets.lease_asset import JOURNAL_VERIFIED
from dagster_leasehold.assets.progress_check import PROGRESS
from dagster_leasehold.assets.shard_stream import Retention
from dagster_leasehold.assets.table_check import TABLE
from dagster_leasehold.assets.windows.hourly_asset import HourlyAsset
from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.resources import LeaseholdResource
from tests.ticks import tick
from tests.unit.sensors.streams import scripted_stream


@pytest.fixture
def leasehold(tmp_path) -> LeaseholdResource:
    return LeaseholdResource(home=str(tmp_path / "home"), nodes=["a", "b"])


def test_a_stream_becomes_an_asset_its_jobs_two_sensors_and_a_stopped_schedule(leasehold):
    stream, _ = scripted_stream(name="orders.eu")
    repository = build_definitions([stream], leasehold).get_repository_def()
    key = dg.AssetKey(["orders.eu"])
    asset = repository.assets_defs_by_key[key]
    assert isinstance(asset.partitions_def, dg.DynamicPartitionsDefinition)
    assert asset.partitions_def.name == "orders.eu"
    assert asset.backfill_policy == dg.BackfillPolicy.single_run()
    assert {check.name for check in asset.check_keys} == {NO_GAP, LAG, QUARANTINE_RATE}
    of_all_partitions = {dg.AssetCheckKey(key, name) for name in (PROGRESS, TABLE)}
    assert of_all_partitions <= repository.asset_graph.asset_check_keys
    leases = repository.assets_defs_by_key[dg.AssetKey(["leases", "orders.eu_leases"])]
    assert {check.name for check in leases.check_keys} == {JOURNAL_VERIFIED}
    log = dg.AssetKey(["logs", "orders.eu_log"])
    assert repository.asset_graph.get(log).is_external
    assert repository.asset_graph.get(log).child_keys == {key, leases.key}
    assert "dagster/column_schema" in repository.asset_graph.get(log).metadata
    assert repository.asset_graph.get(leases.key).metadata == {
        "dagster/table_name": "loghub_client_shard_lease"
    }
    assert repository.has_job("consume_orders_eu")
    sensors = {sensor.name: sensor.default_status for sensor in repository.sensor_defs}
    running = dg.DefaultSensorStatus.RUNNING
    names = ("orders_eu_rebalance", "orders_eu_housekeeping")
    assert sensors == dict.fromkeys(names, running)
    (schedule,) = repository.schedule_defs
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
    resources = {"leasehold", "leasehold_output__orders_eu"}
    assert repository.get_top_level_resources().keys() == resources


def test_an_asset_of_the_user_can_have_the_name_of_the_table(leasehold):
    stream, _ = scripted_stream(name="orders.eu")
    theirs = dg.Definitions(assets=[dg.asset(name="orders_eu_table")(lambda: None)])
    merged = dg.Definitions.merge(build_definitions([stream], leasehold), theirs)
    job = merged.resolve_implicit_global_asset_job_def()
    assert {"orders_eu_table", "table__orders_eu"} <= {node.name for node in job.graph.nodes}


def test_the_asset_names_the_sensors_that_work_on_it(leasehold):
    """Method: the query of Dagster's asset page, on the data that a code server sends."""
    stream, _ = scripted_stream(name="orders.eu")
    repository = build_definitions([stream], leasehold).get_repository_def()
    snap = RepositorySnap.from_def(repository)
    key = dg.AssetKey(["orders.eu"])
    (node,) = [each for each in snap.asset_nodes if each.asset_key == key]
    jobs = {name for name in node.job_names if name != IMPLICIT_ASSET_JOB_NAME}
    by_job = {each.name for each in snap.sensors if jobs & set(each.target_dict)}
    by_asset = {
        each.name
        for each in snap.sensors
        if each.asset_selection and key in each.asset_selection.resolve(repository.asset_graph)
    }
    assert by_job == {"orders_eu_rebalance"}
    assert by_asset == {"orders_eu_housekeeping"}
    assert all(is_reserved_asset_job_name(name) for name in jobs), "no page lists such a job"
    assert {*node.tags} >= {f"dagster/kind/{kind}" for kind in ("pyspark", "iceberg", "parquet")}


class Session(dg.ConfigurableResource):
    """A user's own Spark session."""

    name: str


def of_the_user() -> dg.Definitions:
    """A project's definitions, with names that a library is likely to take."""

    @dg.op
    def count(spark: Session) -> str:
        return spark.name

    @dg.job
    def nightly() -> None:
        count()

    @dg.sensor(job=nightly)
    def rebalance() -> dg.SkipReason:
        return dg.SkipReason("nothing to do")

    @dg.asset(name="publish", deps=["orders.eu", "visits"])
    def publish(spark: Session) -> dg.MaterializeResult[None]:
        return dg.MaterializeResult(metadata={"session": spark.name})

    return dg.Definitions(
        assets=[publish],
        jobs=[nightly],
        sensors=[rebalance],
        schedules=[
            dg.ScheduleDefinition(name="every_5_minutes", job=nightly, cron_schedule="@daily")
        ],
        resources={"spark": Session(name="theirs"), "committed_output": dg.mem_io_manager},
        executor=dg.multiprocess_executor,
        loggers={"console": dg.colored_console_logger},
    )


def test_two_builds_merge_with_each_other_and_with_a_users_definitions(leasehold):
    first, second = (scripted_stream(name=name)[0] for name in ("orders.eu", "visits"))
    hours = HourlyAsset("hours", second, lambda rows: rows, since=datetime(2026, 3, 1, tzinfo=UTC))
    merged = dg.Definitions.merge(
        build_definitions([first], leasehold),
        of_the_user(),
        build_definitions([second], leasehold, hourly=[hours]),
    )
    repository = merged.get_repository_def()
    resources: dict[str, Any] = dict(merged.resources or {})
    assert isinstance(resources["spark"], Session)
    assert resources["leasehold"] is leasehold
    assert merged.executor is dg.multiprocess_executor
    for name in ("orders_eu", "visits"):
        assert repository.get_job(f"consume_{name}").executor_def is dg.in_process_executor
    keys = repository.asset_graph.get_all_asset_keys()
    assert len({key.path[-1] for key in keys}) == len(keys) == 8, "the lineage shows the last part"
    below = repository.asset_graph.get(dg.AssetKey("visits")).child_keys
    assert below == {hours.key, dg.AssetKey("publish")}, "windows and the user's assets"
    names = [sensor.name for sensor in repository.sensor_defs]
    assert len(set(names)) == len(names) == 6
    assert "rebalance" in names
    done = merged.resolve_job_def("nightly").execute_in_process()
    assert done.output_for_node("count") == "theirs"


def test_a_function_can_change_specs_of_assets_except_keys(leasehold):
    """Goal: a stream's assets can have every feature of a Dagster asset."""
    condition = dg.AutomationCondition.eager()

    def change(spec: dg.AssetSpec) -> dg.AssetSpec:
        return spec.replace_attributes(
            key="another",
            group_name="web",
            owners=["team:web"],
            tags={"tier": "gold"},
            kinds={"kafka"},
            description="Ours.",
            metadata=spec.metadata | {"ours": 1},
            automation_condition=condition,
        )

    stream = replace(scripted_stream(name="visits")[0], asset_spec=change)
    since = datetime(2026, 3, 1, tzinfo=UTC)
    hours = HourlyAsset("hours", stream, lambda rows: rows, since=since, asset_spec=change)
    definitions = build_definitions([stream], leasehold, hourly=[hours])
    specs = {spec.key.to_user_string(): spec for spec in definitions.resolve_all_asset_specs()}
    assert {*specs} == {"visits", "logs/visits_log", "leases/visits_leases", "hours"}
    for spec in specs.values():
        assert (spec.group_name, spec.owners, spec.kinds) == ("web", ["team:web"], {"kafka"})
        assert (spec.tags["tier"], spec.description) == ("gold", "Ours.")
        assert spec.metadata["ours"] == 1
        assert spec.automation_condition == condition
    assert specs["visits"].partitions_def is not None


def ticked(definitions: dg.Definitions, name: str) -> set[str]:
    """Return the steps that the first tick of a sensor does."""
    with dg.DagsterInstance.ephemeral() as instance:
        data = tick(definitions, name, instance)
    return {line.partition(":")[0] for line in (data.skip_message or "").splitlines()}


def test_two_sensors_carry_out_the_steps_of_all_streams(leasehold):
    first, second = (scripted_stream(name=name)[0] for name in ("orders.eu", "visits"))
    second = replace(second, retention=Retention(compact=False), on_commit=lambda batch: None)
    definitions = build_definitions([first, second], leasehold)
    repository = definitions.get_repository_def()
    assert {sensor.name for sensor in repository.sensor_defs} == {
        "orders_eu_rebalance",
        "orders_eu_housekeeping",
    }
    assert ticked(definitions, "orders_eu_rebalance") == {
        "orders.eu rebalance",
        "orders.eu compaction",
        "visits rebalance",
    }
    often = {"publish", "shard_list", "janitor", "outbox"}
    assert ticked(definitions, "orders_eu_housekeeping") == {
        *(f"orders.eu {step}" for step in often),
        *(f"visits {step}" for step in often | {"on_commit"}),
    }
    assert repository.has_job("compact_visits"), "by hand it still is"


def test_building_opens_nothing_and_creates_nothing(leasehold):
    stream, source = scripted_stream()
    source.down = "building must not ask the source"
    build_definitions([stream], leasehold)
    assert not Path(leasehold.home).exists()


def test_streams_that_dagster_cannot_tell_apart_are_refused(leasehold):
    streams = [scripted_stream(name=name)[0] for name in ("orders.eu", "orders-eu")]
    with pytest.raises(InvalidSetting, match=r"'orders\.eu' and 'orders-eu'"):
        build_definitions(streams, leasehold)


def test_a_materialization_without_a_partition_is_one_sentence(leasehold):
    stream, _ = scripted_stream()
    job = build_definitions([stream], leasehold).resolve_implicit_global_asset_job_def()
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


def test_the_code_location_loads_without_spark_or_a_database_driver(leasehold):
    code = (
        "import sys, orchestration.build\n"
        "heavy = {'pyspark', 'dagster_pyspark', 'pymysql', 'pandas', 'matplotlib', 'alembic'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
