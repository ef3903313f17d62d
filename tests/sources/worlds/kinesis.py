"""Kinesis streams on kinesalite, and on moto's server."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.kinesis import KinesisOptions, KinesisStream
from dagster_leasehold.shard_sources.kinesis.user_records import Part
from tests import kinesis_servers
from tests.kinesis_servers import ACCESS_KEY, REGION, SECRET_KEY, FaultProxy, ServerMissing
from tests.sources.world import NewRecord, Notion, SourceWorld
from tests.unit.shard_sources.kinesis.packing import pack
from tests.waiting import wait_for

_numbers = count(1)
DAY_S = 24 * 3600
FAST = {"shard_calls_per_s": 1000.0, "shard_bytes_per_s": 1 << 40}
"""Neither server limits requests; the pace has its own tests."""
_SAME_FOR_BOTH: dict[Notion, str] = {
    Notion.KEY: "every record has a partition key",
    Notion.GIVEN_TIME: "the service gives records their time",
    Notion.NO_VALUE: "a record is bytes, an empty one included",
    Notion.COUNTED_LAG: "the service does not count records",
    Notion.GROWTH: "a new shard always has parents",
    Notion.DAMAGE: "what the service stores is out of reach",
    Notion.REMOVAL: "the stand-ins list shards for ever; `test_kinesis` leaves one out",
}


class KinesaliteWorld(SourceWorld):
    lacks: ClassVar[Mapping[Notion, str]] = _SAME_FOR_BOTH
    source: KinesisStream

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        kinesis_servers.write_credentials()
        self.proxy = FaultProxy(self._port())
        self.client = kinesis_servers.client(self.proxy.url)
        self.name = f"stream-{next(_numbers)}"
        self.client.create_stream(StreamName=self.name, ShardCount=2)
        self._until_active()
        self.source = self.open(self.proxy.url)
        self._hashes: dict[str, str] = {}

    def _port(self) -> int:
        try:
            return kinesis_servers.kinesalite().port
        except ServerMissing as missing:
            pytest.skip(f"kinesalite is not here: {missing}")

    def open(self, url: str) -> KinesisStream:
        options = KinesisOptions(region=REGION, endpoint_url=url, **FAST)
        return KinesisStream(options, self.name, self.folder / "host")

    def close(self) -> None:
        self.proxy.refusals, self.proxy.accepted_key = 0, None
        self.client.delete_stream(StreamName=self.name)
        self.client.close()
        self.proxy.close()
        kinesis_servers.write_credentials()

    def _until_active(self) -> None:
        def status() -> str:
            summary = self.client.describe_stream_summary(StreamName=self.name)
            return summary["StreamDescriptionSummary"]["StreamStatus"]

        wait_for("an active stream", lambda: status() == "ACTIVE", 30)

    def shards(self) -> dict[str, dict[str, Any]]:
        return {s["ShardId"]: s for s in self.client.list_shards(StreamName=self.name)["Shards"]}

    def hash_of(self, shard: str) -> str:
        if shard not in self._hashes:
            ranges = {name: entry["HashKeyRange"] for name, entry in self.shards().items()}
            self._hashes = {name: range_["StartingHashKey"] for name, range_ in ranges.items()}
        return self._hashes[shard]

    def put(self, shard: ShardId, records: Sequence[NewRecord]) -> None:
        hash_key = self.hash_of(shard)
        entries = [self._entry(record, hash_key) for record in records]
        for group in _groups(entries):
            answer = self.client.put_records(StreamName=self.name, Records=group)
            assert answer["FailedRecordCount"] == 0, answer
        # Records of one call have the same time, and cases search between times.
        time.sleep(0.005)

    def _entry(self, record: NewRecord, hash_key: str) -> dict[str, Any]:
        assert record.value is not None
        key = (record.key or b"key").decode()
        data = record.value
        if record.attributes:
            # Attributes are known of records that a producer's library packed.
            data = pack([Part(key, data, hash_key, dict(record.attributes))])
        return {"Data": data, "PartitionKey": key, "ExplicitHashKey": hash_key}

    def fill(self, shard: ShardId, values: Any = None) -> None:
        from tests.sources.world import VALUES

        self.put(shard, [NewRecord(value) for value in (VALUES if values is None else values)])

    def split(self, shard: ShardId) -> tuple[ShardId, ShardId]:
        range_ = self.shards()[shard]["HashKeyRange"]
        middle = (int(range_["StartingHashKey"]) + int(range_["EndingHashKey"])) // 2
        self.client.split_shard(
            StreamName=self.name, ShardToSplit=shard, NewStartingHashKey=str(middle)
        )
        self._until_active()
        first, second = sorted(
            name for name, entry in self.shards().items() if entry.get("ParentShardId") == shard
        )
        return ShardId(first), ShardId(second)

    def merge(self, first: ShardId, second: ShardId) -> ShardId:
        self.client.merge_shards(
            StreamName=self.name, ShardToMerge=first, AdjacentShardToMerge=second
        )
        self._until_active()
        return ShardId(max(self.shards()))

    def trim(self, shard: ShardId) -> None:
        self.fill(shard)
        kinesis_servers.kinesalite().advance(DAY_S + 3600)
        # Kinesalite removes old records when they are read, and answers once as if all were
        # removed.
        self.read_plainly(shard)
        self.fill(shard)

    def read_plainly(self, shard: str) -> list[bytes]:
        """All records of a shard, by the plain client."""
        answer = self.client.get_shard_iterator(
            StreamName=self.name, ShardId=shard, ShardIteratorType="TRIM_HORIZON"
        )
        iterator, stored = answer["ShardIterator"], []
        while iterator:
            page = self.client.get_records(ShardIterator=iterator)
            stored += [record["Data"] for record in page["Records"]]
            iterator = page.get("NextShardIterator") if page["Records"] else None
        return stored

    def unreachable(self) -> KinesisStream:
        return self.open("http://127.0.0.1:9")

    def throttle(self, requests: int | None) -> None:
        self.proxy.refusals = requests

    def wrong_credentials(self) -> KinesisStream:
        self.proxy.accepted_key = "AKIDOFSOMEBODYELSE00"
        return self.open(self.proxy.url)

    def change_credentials(self) -> None:
        self.proxy.accepted_key = "AKIDROTATEDNOTREAL00"

    def learn_credentials(self) -> None:
        kinesis_servers.write_credentials("AKIDROTATEDNOTREAL00")

    def secrets(self) -> Sequence[str]:
        return (SECRET_KEY, ACCESS_KEY)


class MotoWorld(KinesaliteWorld):
    lacks: ClassVar[Mapping[Notion, str]] = _SAME_FOR_BOTH | {
        Notion.LINEAGE: "moto never ends a closed shard; kinesalite does",
        Notion.RETENTION: "moto removes nothing; kinesalite does",
    }

    def _port(self) -> int:
        return kinesis_servers.moto_port()


def _groups(entries: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """At most 5 MiB and 500 records a call, as the service allows."""
    group: list[dict[str, Any]] = []
    size = 0
    for entry in entries:
        if group and (len(group) == 500 or size + len(entry["Data"]) > 4_000_000):
            yield group
            group, size = [], 0
        group.append(entry)
        size += len(entry["Data"])
    if group:
        yield group
