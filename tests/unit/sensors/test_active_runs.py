from __future__ import annotations

import uuid
from typing import Any

import dagster as dg
import pytest

from dagster_leasehold.assets.partitions import (
    PARTITION_TAG,
    STREAM_TAG,
    asset_key,
    asset_op_name,
    consume_job_name,
)
from dagster_leasehold.assets.run_process import part_of_run, process_note
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.sensors.active_runs import ActiveRuns, active_partitions, queued_shards
from tests.unit.sensors.streams import scripted_stream


@pytest.mark.parametrize(
    ("config", "served"),
    [({}, {"0"}), ({"wait_s": 1.0}, {"0"}), ({"from": "begin"}, set()), ({"to": "5"}, set())],
)
def test_a_replay_does_not_count_as_serving_a_shard(
    config: dict[str, Any], served: set[str]
) -> None:
    stream, _ = scripted_stream(1)
    with dg.DagsterInstance.ephemeral() as instance:
        run_config = {"ops": {asset_op_name(stream): {"config": config}}} if config else {}
        instance.add_run(
            dg.DagsterRun(
                job_name="__ASSET_JOB",
                run_id="00000000-0000-0000-0000-000000000001",
                run_config=run_config,
                asset_selection=frozenset([asset_key(stream)]),
                status=dg.DagsterRunStatus.STARTED,
                tags={PARTITION_TAG: "0", STREAM_TAG: stream.name},
            )
        )
        (active,) = ActiveRuns(instance).of(stream)
    assert active.shards == served


def test_a_run_that_continues_with_assets_of_the_project_serves_no_shard() -> None:
    """Or the janitor would end it, and its shard be served by no other run until it ends."""
    stream, _ = scripted_stream(1)
    shards = [ShardId("0")]
    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.add_run(
            dg.DagsterRun(
                job_name="__ASSET_JOB",
                asset_selection=frozenset([asset_key(stream), dg.AssetKey("after")]),
                status=dg.DagsterRunStatus.STARTED,
                tags={PARTITION_TAG: "0"},
            )
        )
        with part_of_run(instance, run.run_id, stream):
            assert [each.process for each in ActiveRuns(instance).of(stream)] == [process_note()]
            assert queued_shards(instance, stream, shards) == {"0"}
        assert ActiveRuns(instance).of(stream) == []
        assert queued_shards(instance, stream, shards) == set()


def many_runs(instance: dg.DagsterInstance, count: int, **fields: Any) -> None:
    for number in range(count):
        tags = {PARTITION_TAG: str(number), **fields.get("tags", {})}
        instance.add_run(
            dg.DagsterRun(
                job_name="__ASSET_JOB",
                run_id=str(uuid.UUID(int=number + 1)),
                status=dg.DagsterRunStatus.NOT_STARTED,
                **{**fields, "tags": tags},
            )
        )


def test_a_large_backfill_of_another_asset_hides_no_run_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Method: the backfill is newer than our run, and larger than a page of the runs read."""
    monkeypatch.setattr("dagster_leasehold.sensors.active_runs.RUNS_OF_ALL_MAX", 4)
    monkeypatch.setattr("dagster_leasehold.sensors.active_runs.RUNS_PER_READ", 4)
    stream, _ = scripted_stream(1)
    with dg.DagsterInstance.ephemeral() as instance:
        for run_id in ("1", "2", "3"):
            instance.add_run(
                dg.DagsterRun(
                    job_name=consume_job_name(stream),
                    run_id=f"ffffffff-0000-0000-0000-00000000000{run_id}",
                    status=dg.DagsterRunStatus.STARTED,
                    tags={STREAM_TAG: stream.name} if run_id == "1" else {},
                )
            )
        many_runs(instance, 9, asset_selection=frozenset([dg.AssetKey("another")]))
        assert len(ActiveRuns(instance).of(stream)) == 3
        shards = [ShardId(str(number)) for number in range(9)]
        assert queued_shards(instance, stream, shards) == set()


def test_shards_of_queued_backfill_runs_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of the UI names its stream only when it works; its partition is known before."""
    monkeypatch.setattr("dagster_leasehold.sensors.active_runs.RUNS_PER_READ", 4)
    monkeypatch.setattr("dagster_leasehold.sensors.active_runs.SHARDS_PER_READ", 5)
    stream, _ = scripted_stream(1)
    with dg.DagsterInstance.ephemeral() as instance:
        many_runs(instance, 11, asset_selection=frozenset([asset_key(stream)]))
        assert ActiveRuns(instance).of(stream) == []
        shards = [ShardId(str(number)) for number in range(20)]
        assert queued_shards(instance, stream, shards) == set(shards[:11])


def test_active_hours_are_those_of_the_asset() -> None:
    stream, _ = scripted_stream(1)
    with dg.DagsterInstance.ephemeral() as instance:
        many_runs(instance, 2, asset_selection=frozenset([dg.AssetKey("hourly")]))
        assert active_partitions(instance, dg.AssetKey("hourly"), ["0", "1", "2"]) == {"0", "1"}
        assert active_partitions(instance, asset_key(stream), ["0"]) == set()
