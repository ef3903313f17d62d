"""The cost of reading Kinesis, next to the plain boto3 client on the same server, in one run.

python -m benchmarks.kinesis_source [--records 40000] [--shards 4] [--repeats 3] [--json]

A stream of a local server (kinesalite) is read from its beginning to its end:

* `boto3`: GetRecords, page after page, shard by shard; the values are put into lists;
* `plan`: the source finds the ends of all batches, which reads their pages and keeps them;
* `plan + read`: then the ranges are read in this process, from what was kept;
* `plan + read, other host`: then they are read from the service, as a worker elsewhere would;
* `plan + Spark`: then they go through Spark into committed form, one Parquet file a shard.

The server is one process of Node on the same machine. The pace that the real service asks for
(five reads and two megabytes a second and shard) is off.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.figures import print_rows
from benchmarks.figures.source_reading import (
    Way,
    arguments_of,
    in_process,
    in_spark,
    plan_and_read,
    planned,
    rows_of,
    scratch_folder,
    spark_session,
)
from dagster_leasehold.assets.spark.spark_session import cores
from dagster_leasehold.shard_sources.kinesis import KinesisOptions, KinesisReader, KinesisStream
from tests import kinesis_servers

VALUE_BYTES = 200
RECORDS_PER_CALL = 500
STREAM = "benchmark"


class FilledStream:
    """A stream with records of one size, spread evenly, and the ways to read it."""

    def __init__(self, folder: Path, shards: int, records: int) -> None:
        kinesis_servers.write_credentials()
        url = f"http://127.0.0.1:{kinesis_servers.kinesalite().port}"
        self._client = kinesis_servers.client(url)
        self._folder = folder
        self._options = KinesisOptions(
            region=kinesis_servers.REGION,
            endpoint_url=url,
            shard_calls_per_s=10_000,
            shard_bytes_per_s=1 << 40,
        )
        self._fill(shards, records)

    def _fill(self, shards: int, records: int) -> None:
        self._client.create_stream(StreamName=STREAM, ShardCount=shards)
        self._client.get_waiter("stream_exists").wait(
            StreamName=STREAM, WaiterConfig={"Delay": 1, "MaxAttempts": 30}
        )
        for shard in self._shards():
            hash_key = shard["HashKeyRange"]["StartingHashKey"]
            data = b"v" * VALUE_BYTES
            entry = {"Data": data, "PartitionKey": "k", "ExplicitHashKey": hash_key}
            for _ in range(records // shards // RECORDS_PER_CALL):
                self._client.put_records(StreamName=STREAM, Records=[entry] * RECORDS_PER_CALL)

    def _shards(self) -> list[dict[str, Any]]:
        return self._client.list_shards(StreamName=STREAM)["Shards"]

    def plainly(self) -> int:
        values: list[bytes] = []
        for shard in self._shards():
            iterator = self._client.get_shard_iterator(
                StreamName=STREAM, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            while (answer := self._client.get_records(ShardIterator=iterator))["Records"]:
                values += [record["Data"] for record in answer["Records"]]
                iterator = answer["NextShardIterator"]
        return len(values)

    def source(self) -> KinesisStream:
        return KinesisStream(self._options, STREAM, self._folder / "host")

    def reader(self, host: str) -> KinesisReader:
        return KinesisReader(self._options, STREAM, self._folder / host)

    def ways(self, session: Any) -> dict[str, Way]:
        here, elsewhere = (in_process(self.reader(name)) for name in ("host", "other-host"))
        spark = in_spark(session, self.source(), self._folder / "output")
        return {
            "boto3": self.plainly,
            "plan": lambda: plan_and_read(self.source(), planned),
            "plan + read": lambda: plan_and_read(self.source(), here),
            "plan + read, other host": lambda: plan_and_read(self.source(), elsewhere),
            "plan + Spark": lambda: plan_and_read(self.source(), spark),
        }


def main() -> None:
    """Measure and print."""
    arguments = arguments_of(__doc__ or "", records=40_000)
    per_turn = arguments.shards * RECORDS_PER_CALL
    records = max(1, arguments.records // per_turn) * per_turn
    try:
        kinesis_servers.npm_folder(kinesis_servers.KINESALITE)
    except kinesis_servers.ServerMissing as missing:
        sys.exit(f"There is no server to read from: {missing}.")
    with scratch_folder() as folder, spark_session(folder / "spark") as session:
        ways = FilledStream(folder, arguments.shards, records).ways(session)
        rows = rows_of(ways, records=records, value_bytes=VALUE_BYTES, repeats=arguments.repeats)
    note = f"{records:,} records of {VALUE_BYTES} bytes, {arguments.shards} shards, {cores()} cores"
    print_rows(rows, as_json=arguments.json, note=note)


if __name__ == "__main__":
    main()
