"""Leases of KCL, from the rows of DynamoDB."""

from typing import Any

import pytest

from dagster_leasehold.lease_store.errors import CheckpointRefused, UnknownGroup
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.shard_sources.kinesis.kcl import KclLease, finished_shards, leases_of

NUMBER = "49647651890145783464903104513441812347286219475838410754"
ROW_OF_2: dict[str, Any] = {
    "leaseKey": {"S": "shardId-000000000001"},
    "leaseCounter": {"N": "41"},
    "leaseOwner": {"S": "10.0.0.7:5a1c"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
    "checkpoint": {"S": NUMBER},
    "checkpointSubSequenceNumber": {"N": "3"},
    "parentShardId": {"SS": ["shardId-000000000000"]},
    "startingHashKey": {"S": "170141183460469231731687303715884105728"},
    "endingHashKey": {"S": "340282366920938463463374607431768211455"},
}
ROW_OF_3 = ROW_OF_2 | {
    "throughputKBps": {"N": "12.5"},
    "checkpointOwner": {"S": "10.0.0.6:77aa"},
    "entityType": {"S": "LEASE"},
}


def lease(row: dict[str, Any], **columns: Any) -> KclLease:
    parsed = KclLease.from_row(row | columns)
    assert parsed is not None
    return parsed


def leases(*rows: KclLease) -> dict[ShardId, KclLease]:
    return {row.shard: row for row in rows}


def of_stream(stream: str, shard: str = "shardId-000000000001") -> KclLease:
    return lease(ROW_OF_3, leaseKey={"S": f"{stream}:{shard}"}, streamName={"S": stream})


@pytest.mark.parametrize("row", [ROW_OF_2, ROW_OF_3])
def test_a_row_of_either_version_is_the_same_lease(row: dict[str, Any]) -> None:
    assert lease(row) == KclLease(
        shard=ShardId("shardId-000000000001"),
        stream="",
        owner="10.0.0.7:5a1c",
        counter=41,
        checkpoint=NUMBER,
        part=3,
        pending=False,
        parents=(ShardId("shardId-000000000000"),),
        hash_begin=2**127,
    )


def test_a_row_without_owner_parents_and_hashes_is_a_lease() -> None:
    bare = {
        "leaseKey": {"S": "shardId-000000000000"},
        "leaseCounter": {"N": "0"},
        "checkpoint": {"S": "TRIM_HORIZON"},
        "checkpointSubSequenceNumber": {"N": "0"},
    }
    assert lease(bare).owner == ""
    assert lease(bare).parents == ()
    assert lease(bare).hash_begin is None
    assert lease(bare, pendingCheckpoint={"S": NUMBER}).pending


@pytest.mark.parametrize("kind", ["WORKER_METRIC_STATS", "LEADER", "CLIENT_VERSION_MIGRATION"])
def test_rows_of_other_kinds_are_skipped(kind: str) -> None:
    assert KclLease.from_row({"leaseKey": {"S": "x"}, "entityType": {"S": kind}}) is None


@pytest.mark.parametrize(
    "row", [{}, {"wid": {"S": "worker"}}, ROW_OF_2 | {"checkpoint": {"S": ""}}]
)
def test_a_row_of_another_table_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(CheckpointRefused, match="name the application's own table"):
        KclLease.from_row(row)


def test_a_table_of_several_streams_gives_the_leases_of_one() -> None:
    rows = [of_stream("111:orders:1700"), of_stream("111:visits:1701")]
    (only,) = leases_of(rows, "app", "visits").values()
    assert only.stream == "111:visits:1701"
    assert only.shard == "shardId-000000000001"
    with pytest.raises(UnknownGroup, match=r"leases of: 111:orders:1700, 111:visits:1701\."):
        leases_of(rows, "app", "clicks")
    with pytest.raises(UnknownGroup, match="no lease"):
        leases_of([], "app", "clicks")


def test_the_arn_selects_between_streams_of_one_name() -> None:
    rows = [of_stream("111:orders:1700"), of_stream("222:orders:1701")]
    with pytest.raises(CheckpointRefused, match="by its ARN"):
        leases_of(rows, "app", "orders")
    arn = "arn:aws:kinesis:us-east-1:222:stream/orders"
    assert [row.stream for row in leases_of(rows, "app", arn).values()] == ["222:orders:1701"]


def test_ancestors_whose_leases_kcl_has_deleted_are_finished() -> None:
    # 0 was split into 1 and 2, 1 into 3 and 4; 5 is new and has no lease yet.
    parents = {"1": "0", "2": "0", "3": "1", "4": "1", "5": "2"}
    listed = {
        ShardId(name): ShardListing(
            ShardId(name), parents=(ShardId(parents[name]),) if name in parents else ()
        )
        for name in "012345"
    }
    rows = leases(
        lease(ROW_OF_2, leaseKey={"S": "2"}, parentShardId={"SS": ["0"]}),
        lease(ROW_OF_2, leaseKey={"S": "3"}, parentShardId={"SS": ["1"]}),
    )
    assert finished_shards(rows, listed) == {"0", "1"}
    row = ROW_OF_2 | {"leaseKey": {"S": "2"}, "parentShardId": {"SS": ["0"]}}
    ended = leases(lease(row, checkpoint={"S": "SHARD_END"}))
    assert finished_shards(ended, listed) == {"0", "2"}
    assert finished_shards({}, listed) == set()
