from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest

from dagster_leasehold.assets.log_asset import log_asset_key
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.sensors.shard_list import (
    PARTITIONS_OF_TICK_MAX,
    TICKS_BETWEEN_REPEATS,
    build_shard_list_sensor,
)
from tests.unit.sensors.streams import memory_deployment, scripted_stream


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as dagster_instance:
        yield dagster_instance


def tick(sensor: dg.SensorDefinition, instance: dg.DagsterInstance):
    with dg.build_sensor_context(instance=instance) as context:
        return sensor(context)


def apply(result: dg.SensorResult, instance: dg.DagsterInstance) -> list[str]:
    added: list[str] = []
    for request in result.dynamic_partitions_requests or ():
        instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        added.extend(request.partition_keys)
    return added


def test_the_first_tick_creates_the_group_its_shards_and_their_partitions(instance):
    stream, _ = scripted_stream(2)
    deployment, store = memory_deployment()
    sensor = build_shard_list_sensor(stream, deployment)
    assert sensor.name == "orders_eu_shard_list"
    result = tick(sensor, instance)
    assert apply(result, instance) == ["0", "1"]
    assert "created the consumer group orders.eu/default" in result.skip_reason.skip_message
    assert [row.shard for row in store.snapshot(stream.key).shards] == ["0", "1"]


def test_a_split_adds_children_that_wait_and_removes_nothing(instance):
    stream, source = scripted_stream(1)
    deployment, store = memory_deployment()
    sensor = build_shard_list_sensor(stream, deployment)
    apply(tick(sensor, instance), instance)
    parent = ShardId("0")
    source.shards = [ShardListing(parent, read_only=True)] + [
        ShardListing(ShardId(child), parents=(parent,)) for child in ("1", "2")
    ]
    assert apply(tick(sensor, instance), instance) == ["1", "2"]
    # Retention may take the parent out of the source's list; its history stays.
    source.shards = source.shards[1:]
    tick(sensor, instance)
    assert instance.get_dynamic_partitions(stream.name) == ["0", "1", "2"]
    states = {row.shard: row.state for row in store.snapshot(stream.key).shards}
    assert states["1"] is states["2"] is ShardState.WAIT


def test_an_unchanged_list_costs_no_statement_but_is_repeated_now_and_then(instance):
    stream, _ = scripted_stream(3)
    deployment, store = memory_deployment()
    sensor = build_shard_list_sensor(stream, deployment)
    apply(tick(sensor, instance), instance)
    before = store.statements.total()
    for _ in range(TICKS_BETWEEN_REPEATS - 1):
        assert "as before" in tick(sensor, instance).skip_reason.skip_message
    assert store.statements.total() == before
    tick(sensor, instance)
    assert store.statements.total() > before


def test_more_partitions_than_a_tick_has_room_for_are_added_at_once_and_counted(instance):
    shards = PARTITIONS_OF_TICK_MAX + 3
    stream, _ = scripted_stream(shards)
    deployment, _ = memory_deployment()
    sensor = build_shard_list_sensor(stream, deployment)
    result = tick(sensor, instance)
    assert not result.dynamic_partitions_requests
    assert f"{shards} missing partitions added" in result.skip_reason.skip_message
    assert len(instance.get_dynamic_partitions(stream.name)) == shards


def test_a_source_that_does_not_answer_is_one_sentence_and_no_failed_tick(instance):
    stream, source = scripted_stream(2)
    deployment, _ = memory_deployment()
    sensor = build_shard_list_sensor(stream, deployment)
    source.down = "There is no local log at 'x': create it."
    result = tick(sensor, instance)
    assert isinstance(result, dg.SkipReason)
    assert result.skip_message == source.down
    source.down = ""
    assert apply(tick(sensor, instance), instance) == ["0", "1"]


def test_lease_tables_that_raise_keep_no_partition_from_being_added(instance, monkeypatch):
    stream, _ = scripted_stream(2)
    deployment, store = memory_deployment()
    sensor = build_shard_list_sensor(stream, deployment)

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("unforeseen")

    with monkeypatch.context() as patched:
        patched.setattr(type(store), "sync_shards", broken)
        result = tick(sensor, instance)
    assert apply(result, instance) == ["0", "1"]
    assert "writing the lease tables failed (ZeroDivisionError: unforeseen)" in str(
        result.skip_reason
    )
    tick(sensor, instance)
    assert [row.shard for row in store.snapshot(stream.key).shards] == ["0", "1"]


def test_the_log_is_observed_now_and_then_if_something_has_changed(instance):
    stream, source = scripted_stream(3)
    source.ends = {"0": 5, "1": 70, "2": 0}
    deployment, _ = memory_deployment()
    now = [0.0]
    sensor = build_shard_list_sensor(stream, deployment, lambda: now[0])

    def observed() -> list[dg.AssetObservation]:
        now[0] += 15.0
        result = tick(sensor, instance)
        apply(result, instance)
        return list(result.asset_events)

    (first,) = observed()
    assert first.asset_key == log_asset_key(stream)
    assert first.metadata["lag"].value == 75
    assert first.metadata["shards_behind"].value == 2
    rows = first.metadata["bounds"].records
    assert [(row.data["shard"], row.data["end"], row.data["lag"]) for row in rows] == [
        ("1", "70", "70"),
        ("0", "5", "5"),
        ("2", "0", "0"),
    ]
    assert [each for _ in range(60) for each in observed()] == [], "nothing has changed"
    source.ends["0"] = 6
    (later,) = [each for _ in range(20) for each in observed()]
    assert later.metadata["lag"].value == 76


def test_a_source_that_does_not_answer_is_observed_as_unknown(instance):
    stream, source = scripted_stream(2)
    source.damaged = {"0"}
    deployment, _ = memory_deployment()
    (seen,) = tick(build_shard_list_sensor(stream, deployment), instance).asset_events
    for name in ("lag", "lag_seconds"):
        assert seen.metadata[f"{name}_known"].value is False
        assert name not in seen.metadata, "the other shard, which has caught up, speaks for itself"
