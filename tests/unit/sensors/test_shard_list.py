from __future__ import annotations

import dagster as dg

from dagster_leasehold.assets.log_asset import log_asset_key
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.sensors.shard_list import TICKS_BETWEEN_REPEATS, shard_list_step
from tests.unit.sensors.streams import memory_deployment, run_step, scripted_stream


def partitions(instance: dg.DagsterInstance) -> list[str]:
    return list(instance.get_dynamic_partitions("orders.eu"))


def observations(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[dg.AssetObservation]:
    """Return the observations of the log in Dagster, the newest first."""
    records = instance.fetch_observations(key, limit=100).records
    return [record.asset_observation for record in records]


def test_the_first_tick_creates_the_group_its_shards_and_their_partitions(instance):
    stream, _ = scripted_stream(2)
    deployment, store = memory_deployment()
    step = shard_list_step(stream, deployment)
    outcome = run_step(step, instance)
    assert partitions(instance) == ["0", "1"]
    assert "created the consumer group orders.eu/default" in outcome.line
    assert [row.shard for row in store.snapshot(stream.key).shards] == ["0", "1"]


def test_a_split_adds_children_that_wait_and_removes_nothing(instance):
    stream, source = scripted_stream(1)
    deployment, store = memory_deployment()
    step = shard_list_step(stream, deployment)
    run_step(step, instance)
    parent = ShardId("0")
    source.shards = [ShardListing(parent, read_only=True)] + [
        ShardListing(ShardId(child), parents=(parent,)) for child in ("1", "2")
    ]
    run_step(step, instance)
    assert partitions(instance) == ["0", "1", "2"]
    # Retention may take the parent out of the source's list; its history stays.
    source.shards = source.shards[1:]
    run_step(step, instance)
    assert instance.get_dynamic_partitions(stream.name) == ["0", "1", "2"]
    states = {row.shard: row.state for row in store.snapshot(stream.key).shards}
    assert states["1"] is states["2"] is ShardState.WAIT


def test_an_unchanged_list_costs_no_statement_and_is_stored_again_regularly(instance):
    stream, _ = scripted_stream(3)
    deployment, store = memory_deployment()
    step = shard_list_step(stream, deployment)
    run_step(step, instance)
    before = store.statements.total()
    for _ in range(TICKS_BETWEEN_REPEATS - 1):
        assert "unchanged" in run_step(step, instance).line
    assert store.statements.total() == before
    run_step(step, instance)
    assert store.statements.total() > before


def test_a_source_that_does_not_answer_is_one_sentence_and_no_failed_tick(instance):
    stream, source = scripted_stream(2)
    deployment, _ = memory_deployment()
    step = shard_list_step(stream, deployment)
    source.down = "There is no local log at 'x': create it."
    assert run_step(step, instance).line == source.down
    source.down = ""
    run_step(step, instance)
    assert partitions(instance) == ["0", "1"]


def test_an_error_of_the_lease_tables_does_not_prevent_new_partitions(instance, monkeypatch):
    stream, _ = scripted_stream(2)
    deployment, store = memory_deployment()
    step = shard_list_step(stream, deployment)

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("unforeseen")

    with monkeypatch.context() as patched:
        patched.setattr(type(store), "sync_shards", broken)
        outcome = run_step(step, instance)
    assert partitions(instance) == ["0", "1"]
    assert "writing the lease tables failed (ZeroDivisionError: unforeseen)" in outcome.line
    run_step(step, instance)
    assert [row.shard for row in store.snapshot(stream.key).shards] == ["0", "1"]


def test_a_changed_log_is_observed_regularly(instance):
    stream, source = scripted_stream(3)
    source.ends = {"0": 5, "1": 70, "2": 0}
    deployment, _ = memory_deployment()
    now = [0.0]
    step = shard_list_step(stream, deployment, lambda: now[0])

    def observed() -> list[dg.AssetObservation]:
        now[0] += 15.0
        before = len(observations(instance, log_asset_key(stream)))
        run_step(step, instance)
        seen = observations(instance, log_asset_key(stream))
        return seen[: len(seen) - before]

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
    run_step(shard_list_step(stream, deployment), instance)
    (seen,) = observations(instance, log_asset_key(stream))
    for name in ("lag", "lag_seconds"):
        assert seen.metadata[f"{name}_known"].value is False
        assert name not in seen.metadata, "the other shard, which has caught up, speaks for itself"
