from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import dagster as dg
import pytest

from dagster_leasehold.assets.materialization import (
    CommittedRange,
    committed_ranges,
    materialization_of,
    range_metadata,
)
from dagster_leasehold.assets.partitions import asset_key
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import StoreUnavailable
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchCommit, BatchStatistics, Intent
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Changed, Opened
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.sensors.outbox import outbox_step, without_materialization
from tests.unit.sensors.streams import MirroringSource, memory_deployment, run_step, scripted_stream

LOCAL, ZERO = NodeName("local"), ShardId("0")
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def commit_batches(
    store: MemoryStore, stream: ShardStream, run: str, count: int, *, address: str = ""
) -> None:
    """Commit `count` batches of 10 records to shard 0 under `run`, and leave it open."""
    key = stream.key
    store.create_group(stream.new_group(20.0))
    store.sync_shards(key, [ShardListing(ZERO)], observer="test")
    store.register(key, Node(LOCAL, 0, "i", address=address), observer="test")
    store.claim(key, {ZERO: (LOCAL, 0)}, observer="test", reason="test")
    opened = store.open_tenure(key, ZERO, LOCAL, run)
    assert isinstance(opened, Opened)
    for sequence in range(opened.next_sequence, opened.next_sequence + count):
        start, end = str(10 * sequence), str(10 * (sequence + 1))
        tenure = opened.tenure
        store.record_intents([Intent(tenure, sequence, start, end)])
        statistics = BatchStatistics(10, 100, 9, 1, AT, AT)
        commit = BatchCommit(tenure, sequence, start, end, f"at-{sequence}", (), statistics)
        assert isinstance(store.commit([commit])[ZERO], Changed)


def commit_one(store: MemoryStore, stream: ShardStream, run: str, shard: ShardId) -> None:
    """Add a shard to the group, and commit a batch of 5 records to it."""
    key = stream.key
    store.sync_shards(key, [ShardListing(ZERO), ShardListing(shard)], observer="test")
    store.claim(key, {shard: (LOCAL, 0)}, observer="test", reason="test")
    opened = store.open_tenure(key, shard, LOCAL, run)
    assert isinstance(opened, Opened)
    store.record_intents([Intent(opened.tenure, 0, "0", "5")])
    commit = BatchCommit(opened.tenure, 0, "0", "5", "at", (), BatchStatistics(5, 50, 5, 0))
    assert isinstance(store.commit([commit])[shard], Changed)


def materialized(
    instance: dg.DagsterInstance, stream: ShardStream
) -> list[dg.AssetMaterialization]:
    """Return the materializations in Dagster, the newest first."""
    records = instance.fetch_materializations(asset_key(stream), limit=100).records
    return [record.asset_materialization for record in records]


def test_batches_of_a_dead_run_become_one_materialization_and_are_flagged(instance):
    stream, _ = scripted_stream(1)
    deployment, store = memory_deployment()
    commit_batches(store, stream, "dead", 3)
    outcome = run_step(outbox_step(stream, deployment), instance)
    assert "reported 3 commits as 1 materializations" in outcome.line
    (event,) = materialized(instance, stream)
    assert event.partition == "0"
    assert event.metadata["records"].value == 30
    assert event.metadata["batches"].value == 3
    assert event.metadata["quarantined"].value == 3
    assert event.metadata["end_cursor"].value == str(int(event.metadata["start_cursor"].value) + 30)
    assert event.metadata["last_event_time"].value == AT.timestamp()
    assert store.pending_events(stream.key) == []


def test_reported_rows_without_a_flag_are_flagged_and_not_reported_again(instance, monkeypatch):
    stream, _ = scripted_stream(1)
    deployment, store = memory_deployment()
    commit_batches(store, stream, "dead", 3)
    with monkeypatch.context() as patched:

        def away(*_: object) -> None:
            raise StoreUnavailable("The lease store does not answer.")

        patched.setattr(store, "mark_delivered", away)
        assert "does not answer" in run_step(outbox_step(stream, deployment), instance).line
    assert len(store.pending_events(stream.key)) == 3
    again = run_step(outbox_step(stream, deployment), instance)
    assert "reported 3 commits as 0 materializations" in again.line
    assert len(materialized(instance, stream)) == 1
    assert store.pending_events(stream.key) == []


def test_batches_that_a_dead_run_reported_are_not_reported_again(instance):
    """The run's own materialization covers the first two of three batches."""
    stream, _ = scripted_stream(1)
    _, store = memory_deployment()
    commit_batches(store, stream, "dead", 2)
    (reported,) = committed_ranges(store.pending_events(stream.key))

    @dg.asset(key=asset_key(stream), partitions_def=dg.StaticPartitionsDefinition(["0"]))
    def consumed():
        return dg.MaterializeResult(metadata=range_metadata(reported))

    done = dg.materialize([consumed], instance=instance, partition_key="0")
    events = store.pending_events(stream.key)
    third = replace(events[-1], sequence=9, batch_id="0.2")
    events = [replace(event, run=done.run_id) for event in (*events, third)]
    assert without_materialization(instance, stream, events) == [events[-1]]
    others = [replace(event, run="another") for event in events]
    assert without_materialization(instance, stream, others) == others, (
        "a run answers for its own batches"
    )


def test_batches_of_another_deployments_run_are_left_to_it_while_its_node_is_there(instance):
    stream, _ = scripted_stream(1)
    deployment, store = memory_deployment("here")
    commit_batches(store, stream, "unknown", 1, address="dagster-elsewhere")
    step = outbox_step(stream, deployment)
    assert "1 left to active runs" in run_step(step, instance).line
    assert materialized(instance, stream) == []
    store.leave(stream.key, LOCAL, "i")
    run_step(step, instance)
    assert len(materialized(instance, stream)) == 1


def test_batches_of_a_live_run_are_left_to_it(instance):
    stream, _ = scripted_stream(1)
    deployment, store = memory_deployment()
    run = dg.DagsterRun(job_name="consume_orders_eu", status=dg.DagsterRunStatus.STARTED)
    instance.add_run(run)
    commit_batches(store, stream, run.run_id, 2)
    assert "2 left to active runs" in run_step(outbox_step(stream, deployment), instance).line
    assert materialized(instance, stream) == []


@pytest.mark.parametrize("refuses", ["", "Kafka does not answer."])
def test_checkpoints_of_a_dead_run_are_mirrored_to_the_service(instance, refuses):
    source = MirroringSource()
    stream = replace(scripted_stream(1)[0], source=source)
    deployment, store = memory_deployment()
    commit_batches(store, stream, "dead", 3)
    step = outbox_step(stream, deployment)
    source.refuses = refuses
    assert run_step(step, instance).line.endswith(f"1 materializations. {refuses}".rstrip())
    assert len(materialized(instance, stream)) == 1
    place = store.snapshot(stream.key).shards[0].check_point
    assert source.mirrored == ([] if refuses else [{ZERO: place}])


def test_a_group_that_does_not_exist_yet_is_one_sentence(instance):
    stream, _ = scripted_stream(1)
    deployment, _ = memory_deployment()
    outcome = run_step(outbox_step(stream, deployment), instance)
    assert outcome.trouble
    assert outcome.line.endswith(".")


def test_an_unreadable_row_does_not_delay_other_shards(instance, monkeypatch):
    """Method: the payload of one shard's rows has an unexpected form."""
    stream, _ = scripted_stream(2)
    deployment, store = memory_deployment()
    commit_batches(store, stream, "dead", 2)
    commit_one(store, stream, "dead", ShardId("1"))
    now_s = [0.0]
    step = outbox_step(stream, deployment, lambda: now_s[0])

    def broken(stream: ShardStream, committed: CommittedRange):
        if committed.shard == ZERO:
            raise ZeroDivisionError("unforeseen")
        return materialization_of(stream, committed)

    with monkeypatch.context() as patched:
        patched.setattr("dagster_leasehold.sensors.outbox.materialization_of", broken)
        first = run_step(step, instance)
        assert [event.partition for event in materialized(instance, stream)] == ["1"]
        assert "reporting shard 0 failed (ZeroDivisionError: unforeseen)" in first.line
        run_step(step, instance)
        assert len(store.pending_events(stream.key)) == 2, "what was not reported is not flagged"
    now_s[0] += 5
    run_step(step, instance)
    assert [event.partition for event in materialized(instance, stream)] == ["0", "1"]


def test_a_shard_that_cannot_be_reported_does_not_delay_others(instance, monkeypatch):
    """Goal: more of its rows than a tick reports, and older ones, come first in the outbox."""
    monkeypatch.setattr("dagster_leasehold.sensors.outbox.EVENTS_PER_TICK_MAX", 2)
    stream, _ = scripted_stream(2)
    deployment, store = memory_deployment()
    commit_batches(store, stream, "dead", 3)
    commit_one(store, stream, "dead", ShardId("1"))
    step = outbox_step(stream, deployment, lambda: 0.0)

    def broken(stream: ShardStream, committed: CommittedRange):
        if committed.shard == ZERO:
            raise ZeroDivisionError("unforeseen")
        return materialization_of(stream, committed)

    monkeypatch.setattr("dagster_leasehold.sensors.outbox.materialization_of", broken)
    run_step(step, instance)
    assert materialized(instance, stream) == []
    run_step(step, instance)
    assert [event.partition for event in materialized(instance, stream)] == ["1"]
