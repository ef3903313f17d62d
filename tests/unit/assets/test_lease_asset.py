from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest

from dagster_leasehold.assets.deployment import LEASEHOLD
from dagster_leasehold.assets.lease_asset import (
    JOURNAL_VERIFIED,
    build_lease_asset,
    lease_asset_key,
)
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardListing
from tests.unit.sensors.streams import memory_deployment, scripted_stream

BEGIN = datetime(2026, 1, 2, tzinfo=UTC)
A, B = NodeName("a"), NodeName("b")
HELD, MOVING, FREE = ShardState.ALREADY_ALLOC, ShardState.TRANSFER, ShardState.NOT_ALLOC
PNG = b"\x89PNG\r\n\x1a\n"


def materialized(stream: Any, deployment: Any) -> Any:
    with dg.DagsterInstance.ephemeral() as instance:
        return dg.materialize(
            [build_lease_asset(stream)],
            resources={LEASEHOLD: deployment},
            instance=instance,
            raise_on_error=False,
        )


def test_the_table_shows_shards_nodes_and_lag_and_proves_the_history() -> None:
    stream, source = scripted_stream()
    deployment, store = memory_deployment("a")
    store.create_group(stream.new_group(20.0))
    source.shards = [ShardListing(ShardId("0")), ShardListing(ShardId("1"))]
    source.ends = {"0": 7, "1": 5}
    store.sync_shards(stream.key, source.shards, observer="test")
    store.register(stream.key, Node(A, 0, "i"), observer="test")
    store.claim(stream.key, {ShardId("0"): (A, 0)}, observer="test", reason="free")
    result = materialized(stream, deployment)
    assert result.success
    (event,) = result.asset_materializations_for_node(f"leases__{stream.name.replace('.', '_')}")
    rows = [record.data for record in event.metadata["shards"].records]
    assert [(row["shard"], row["owner"], row["lag"]) for row in rows] == [
        ("0", "a", "7"),
        ("1", "", "5"),
    ]
    assert event.metadata["lag"].value == 12
    assert event.metadata["lag_known"].value is True
    (evaluation,) = result.get_asset_check_evaluations()
    assert (evaluation.check_name, evaluation.passed) == (JOURNAL_VERIFIED, True)


def test_an_unknown_lag_has_no_number() -> None:
    stream, source = scripted_stream(2)
    source.damaged = {"0"}
    deployment, store = memory_deployment("a")
    store.create_group(stream.new_group(20.0))
    store.sync_shards(stream.key, source.list_shards(), observer="test")
    result = materialized(stream, deployment)
    (event,) = result.asset_materializations_for_node(f"leases__{stream.name.replace('.', '_')}")
    rows = [record.data for record in event.metadata["shards"].records]
    assert [row["lag"] for row in rows] == ["unknown", "0"]
    assert event.metadata["lag_known"].value is False
    assert "lag" not in event.metadata, "what is known of others is not the lag of the stream"


def test_the_table_shows_transfers_and_parents() -> None:
    stream, source = scripted_stream()
    deployment, store = memory_deployment("a", "b")
    store.create_group(stream.new_group(20.0))
    zero, one = ShardId("0"), ShardId("1")
    source.shards = [ShardListing(zero), ShardListing(one, (zero,))]
    source.ends = {"0": 7, "1": 5}
    store.sync_shards(stream.key, source.shards, observer="test")
    for node in (A, B):
        store.register(stream.key, Node(node, 0, "i"), observer="test")
    store.claim(stream.key, {zero: (A, 0)}, observer="test", reason="free")
    store.open_tenure(stream.key, zero, A, "run-1")
    seen = store.snapshot(stream.key).shards[0].lease_id
    store.begin_transfer(stream.key, {zero: (B, seen, "balance")}, observer="test")[zero]
    result = materialized(stream, deployment)
    (event,) = result.asset_materializations_for_node(f"leases__{stream.name.replace('.', '_')}")
    rows = [record.data for record in event.metadata["shards"].records]
    assert [(row["shard"], row["owner"]) for row in rows] == [("0", "a → b"), ("1 ← 0", "")]


def test_a_broken_history_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, _ = scripted_stream()
    deployment, store = memory_deployment("a")
    store.create_group(stream.new_group(20.0))
    store.sync_shards(stream.key, [ShardListing(ShardId("0"))], observer="test")
    store.register(stream.key, Node(A, 0, "i"), observer="test")
    store.claim(stream.key, {ShardId("0"): (A, 0)}, observer="test", reason="free")
    store.open_tenure(stream.key, ShardId("0"), A, "run-1")
    true_journal = store.journal(stream.key)
    twice = [*true_journal, replace(true_journal[-1], run="run-2")]
    monkeypatch.setattr(store, "each_entry", lambda *_, **__: iter(twice))
    (evaluation,) = materialized(stream, deployment).get_asset_check_evaluations()
    assert not evaluation.passed
    assert evaluation.metadata["violations"].value > 0


def test_a_group_that_does_not_exist_is_one_sentence() -> None:
    stream, _ = scripted_stream()
    result = materialized(stream, memory_deployment("a")[0])
    assert not result.success
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert "has no consumer group 'default'" in failure.step_failure_data.error.message
    assert lease_asset_key(stream) == dg.AssetKey(["leases", f"{stream.name}_leases"])
