"""A stream is taken over from an application of KCL's, to the record."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.shard_sources.kinesis import KinesisOptions, KinesisStream
from dagster_leasehold.shard_sources.kinesis.user_records import Part
from tests import kinesis_servers
from tests.command_output import output_of
from tests.integration.shard_sources.consuming_home import (
    ConsumingHome,
    assert_each_once,
    committed,
    do_as_the_page_says,
)
from tests.kcl_worker import APPLICATION, KclWorker
from tests.kinesis_servers import REGION
from tests.own_environments import PackagesMissing
from tests.sources.worlds.kinesis import FAST, KinesaliteWorld
from tests.unit.shard_sources.kinesis.packing import pack
from tests.waiting import wait_for

STREAM = "orders"


class Stream(ConsumingHome):
    """A home with a Kinesis stream, and the values that were put into it."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, source: KinesisStream, dynamodb: str
    ) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb)
        options = source.options.model_dump(exclude_none=True)
        super().__init__(folder, monkeypatch, source.stream, "kinesis", source, options)
        self.log: list[str] = []
        self.client = kinesis_servers.client(str(source.options.endpoint_url))
        self.dynamodb = kinesis_servers.client(dynamodb, "dynamodb")

    @property
    def importing(self) -> tuple[str, ...]:
        """Return the command that imports the application's checkpoints."""
        words = ("checkpoint", "import", self.key.stream)
        return (*words, "--consumer-group", APPLICATION, "--failover", "0.1")

    def shards(self) -> dict[str, Any]:
        """Return the open shards by id."""
        listed = self.client.list_shards(StreamName=self.key.stream)["Shards"]
        return {
            each["ShardId"]: each
            for each in listed
            if "EndingSequenceNumber" not in each["SequenceNumberRange"]
        }

    def put(self, count: int) -> dict[str, list[str]]:
        """Put records into each open shard, and three packed records at the end.

        Returns:
            The sequence numbers of each shard, in order.
        """
        numbers: dict[str, list[str]] = {}
        for shard, entry in self.shards().items():
            hash_key = entry["HashKeyRange"]["StartingHashKey"]
            values = [f"{shard[-1]}:{len(self.log) + n}" for n in range(count + 3)]
            self.log += values
            parts = [Part("key", value.encode(), hash_key) for value in values[count:]]
            datas = [value.encode() for value in values[:count]] + [pack(parts)]
            numbers[shard] = [
                self.client.put_record(
                    StreamName=self.key.stream,
                    Data=data,
                    PartitionKey="key",
                    ExplicitHashKey=hash_key,
                )["SequenceNumber"]
                for data in datas
            ]
        return numbers

    def make_table(self) -> None:
        self.dynamodb.create_table(
            TableName=APPLICATION,
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )

    def put_lease(
        self, shard: str, checkpoint: str, part: int = 0, parents: Sequence[str] = (), **texts: str
    ) -> None:
        """Write a row as KCL does."""
        row: dict[str, Any] = {
            "leaseKey": {"S": shard},
            "leaseCounter": {"N": "7"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "checkpoint": {"S": checkpoint},
            "checkpointSubSequenceNumber": {"N": str(part)},
        }
        row |= {name: {"S": text} for name, text in texts.items()}
        if parents:
            row["parentShardId"] = {"SS": list(parents)}
        self.dynamodb.put_item(TableName=APPLICATION, Item=row)


@pytest.fixture
def split_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Stream]:
    """A stream of two shards whose first one was split, and an empty lease table."""
    world = KinesaliteWorld(tmp_path)
    made = Stream(
        tmp_path, monkeypatch, world.source, f"http://127.0.0.1:{kinesis_servers.moto_port()}"
    )
    made.make_table()
    yield made
    made.dynamodb.delete_table(TableName=APPLICATION)
    world.close()


def test_finished_shards_and_packed_records_are_not_read_again(
    split_stream: Stream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The leases are written by the test, in the form of KCL's table."""
    stream = split_stream
    first, second = sorted(stream.shards())
    before = stream.put(2)
    old = [*stream.log[:5], *stream.log[5:9]]
    entry = stream.shards()[first]["HashKeyRange"]
    middle = (int(entry["StartingHashKey"]) + int(entry["EndingHashKey"])) // 2
    stream.client.split_shard(
        StreamName=stream.key.stream, ShardToSplit=first, NewStartingHashKey=str(middle)
    )
    while len(stream.shards()) < 3:
        time.sleep(0.01)
    after = stream.put(1)
    low, high = sorted(set(stream.shards()) - {second})
    begun = next(number for number in after[low])
    old.append(next(value for value in stream.log[10:] if value.startswith(f"{low[-1]}:")))
    # The lease of the first shard was deleted: its children are read. Of the three records that
    # are packed into the last one of the second shard, two were read; of `high` nothing was.
    stream.put_lease(second, before[second][2], part=1)
    stream.put_lease(low, begun, parents=[first])
    stream.put_lease(high, "TRIM_HORIZON", parents=[first])
    output_of(capsys, "group", "create", stream.key.stream)
    printed = output_of(capsys, *stream.importing)
    assert "Imported 4 checkpoints" in printed
    stream.consume("run-1")
    assert_each_once(old, committed(capsys, stream.key.stream), stream.log)
    assert "no violations" in output_of(capsys, "verify")


def test_leases_without_a_position_are_listed_or_refused(
    split_stream: Stream, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = split_stream
    first, second = sorted(stream.shards())
    numbers = stream.put(1)
    output_of(capsys, "group", "create", stream.key.stream)
    for columns, reason in (
        ({"pendingCheckpoint": numbers[first][1]}, "did not store"),
        ({"startingHashKey": "5"}, "belongs to another stream"),
    ):
        stream.put_lease(first, numbers[first][0], **columns)
        assert reason in output_of(capsys, *stream.importing, code=2)
    stream.put_lease(first, "SHARD_END")
    assert "but the shard is open" in output_of(capsys, *stream.importing, code=2)
    stream.put_lease(first, "LATEST")
    stream.put_lease(second, numbers[second][0], leaseOwner="dead-worker")
    printed = output_of(capsys, *stream.importing)
    assert "Imported 1 checkpoint of" in printed
    assert "Shards without a checkpoint in " in printed
    assert f": {first}." in printed
    missing = (*stream.importing[:3], "--consumer-group", "no-such-app")
    assert "DynamoDB table 'no-such-app'" in output_of(capsys, *missing, code=2)
    assert "does not write the lease table of a KCL application" in output_of(
        capsys, "checkpoint", "export", stream.key.stream, code=2
    )


eventually = partial(wait_for, "the worker")


@pytest.mark.long
@pytest.mark.parametrize(
    "version", ["3X", pytest.param("COMPATIBLE_WITH_2X", marks=pytest.mark.release)]
)
def test_an_import_waits_until_a_kcl_worker_is_stopped(
    version: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A real worker reads 4 of 5 records of each shard; the fourth is the second of three packed.

    `COMPATIBLE_WITH_2X` is how KCL 3 keeps the table for workers of version 2 beside it.
    """
    kinesis_servers.write_credentials()
    try:
        worker = KclWorker(tmp_path, f"CLIENT_VERSION_CONFIG_{version}", records=4)
    except PackagesMissing as missing:
        pytest.skip(f"KCL is not here: {missing}")
    with worker:
        options = KinesisOptions(region=REGION, endpoint_url=worker.url, **FAST)
        source = KinesisStream(options, STREAM, tmp_path / "host")
        stream = Stream(tmp_path, monkeypatch, source, worker.url)
        stream.client.create_stream(StreamName=STREAM, ShardCount=2)
        eventually(lambda: len(stream.shards()) == 2)
        stream.put(2)
        worker.start(STREAM)
        eventually(lambda: len(worker.read()) == 8)
        do_as_the_page_says(capsys, "The steps")
        running = (
            "checkpoint",
            "import",
            "orders",
            "--consumer-group",
            APPLICATION,
            "--failover",
            "2",
        )
        assert "are being renewed by" in output_of(capsys, *running, code=2)
        worker.stop()
        stream.put(3)
        do_as_the_page_says(capsys, "An application of the Kinesis Client Library")
        stream.consume("run-1")
        assert len(worker.read()) == 8
        assert_each_once(worker.read(), committed(capsys, STREAM), stream.log)
        assert "no violations" in output_of(capsys, "verify")
