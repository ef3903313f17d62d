from __future__ import annotations

from dagster_leasehold.assets.partitions import WORK_MAX_TAG
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.sensors.launch_choice import Launch
from dagster_leasehold.sensors.launch_round import OVERTIME_S, run_request
from tests.unit.sensors.streams import scripted_stream


def test_tags_of_a_run_are_few_and_short_for_any_number_of_shards() -> None:
    stream, _ = scripted_stream()
    shards = tuple(ShardId(f"shard-{number}") for number in range(1_000))
    request = run_request(stream, Launch(NodeName("node-a"), shards), "incarnation")
    assert request.tags == {
        "leasehold/node": "node-a",
        "leasehold/stream": stream.name,
        "leasehold/shards": "shard-0, shard-1, shard-2, shard-3 and 996 more",
        WORK_MAX_TAG: str(round(stream.pace.run_budget_s + stream.pace.stall_limit_s) + OVERTIME_S),
        "dagster/max_retries": "0",
    }
