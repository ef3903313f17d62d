from __future__ import annotations

import dagster as dg

from dagster_leasehold.assets.consume_job import build_consume_job
from dagster_leasehold.assets.deployment import LEASEHOLD
from dagster_leasehold.assets.partitions import PARTITION_TAG, asset_key
from dagster_leasehold.lease_store.group_rows import Group, Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.orchestration.schedules import build_schedule, due_launches
from dagster_leasehold.sensors.rebalance import rebalance_step
from dagster_leasehold.sensors.shard_list import sync_listing
from tests.unit.sensors.streams import memory_deployment, run_step, scripted_stream

A, B, C = NodeName("a"), NodeName("b"), NodeName("c")


def held(shard: int, node: NodeName, run: str = "") -> ShardLease:
    state = ShardState.ALREADY_ALLOC
    return ShardLease(
        ShardId(str(shard)), state, lease_owner=node, consumer_owner=node, consumer_run=run
    )


def test_each_idle_shard_is_in_one_run_of_its_node():
    stream, _ = scripted_stream()
    rows = [held(n, A) for n in range(5)] + [held(5, B), held(6, C), held(7, B, run="open")]
    snapshot = Snapshot(Group(stream.key), (), tuple(rows))
    launches = due_launches(snapshot, (A, B), {"4"}, 3)
    assert [(launch.node, launch.shards) for launch in launches] == [
        (A, ("0", "1", "2")),
        (A, ("3",)),
        (B, ("5",)),
    ]


def test_a_tick_requests_runs_that_the_job_accepts(tmp_path):
    stream, source = scripted_stream(3)
    deployment, store = memory_deployment("a")
    job = build_consume_job(stream)
    schedule = build_schedule(stream, job)
    served = {LEASEHOLD: deployment}
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        with dg.build_schedule_context(instance=instance, resources=served) as context:
            assert "no consumer group" in str(schedule.evaluate_tick(context).skip_message).lower()
        sync_listing(store, stream, source.shards, timeout_s=20.0)
        run_step(rebalance_step(stream, deployment), instance)
        with dg.build_schedule_context(instance=instance, resources=served) as context:
            (request,) = schedule.evaluate_tick(context).run_requests or ()
        assert dg.validate_run_config(job, request.run_config)
        config = request.run_config["ops"]["consume__orders_eu"]["config"]
        assert config["shards"] == ["0", "1", "2"]
        (node,) = store.snapshot(stream.key).nodes
        assert config["incarnation"] == node.incarnation
        instance.add_run(
            dg.DagsterRun(
                job_name="__ASSET_JOB",
                status=dg.DagsterRunStatus.NOT_STARTED,
                asset_selection=frozenset([asset_key(stream)]),
                tags={PARTITION_TAG: "1"},
            )
        )
        with dg.build_schedule_context(instance=instance, resources=served) as context:
            (request,) = schedule.evaluate_tick(context).run_requests or ()
        config = request.run_config["ops"]["consume__orders_eu"]["config"]
        assert config["shards"] == ["0", "2"], "a person's run is going to serve shard 1"
