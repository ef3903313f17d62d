"""The cost of reading a logstore, next to the service's own SDK on the same server, in one run.

python -m benchmarks.loghub_source [--records 200000] [--shards 4] [--repeats 3] [--json]

A logstore of the tests' server of the wire protocol is read from its beginning to its end:

* `SDK`: PullLogs, page after page, shard by shard; each log's fields are put into a dictionary;
* `plan`: the source finds the ends of all batches, which reads their LogGroups;
* `read`: ranges that were planned before are read in this process, into Arrow batches;
* `plan + read`: they are planned, and read in this process;
* `plan + Spark`: then they go through Spark into committed form, one Parquet file a shard.

The server is one process of Python on the same machine. Answers are compressed by LZ4, which is the
SDK's default and the source's.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing.connection import Connection
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
    read_alone,
    rows_of,
    scratch_folder,
    spark_session,
)
from dagster_leasehold.assets.spark.spark_session import cores
from dagster_leasehold.shard_sources.loghub.credentials import KEY_ID, KEY_SECRET
from dagster_leasehold.shard_sources.loghub.options import LogHubOptions
from dagster_leasehold.shard_sources.loghub.source import LogHub
from tests.sls_server.server import SlsServer
from tests.sources.worlds.loghub import LOGSTORE, PROJECT, plain_client, written_with_sdk

VALUE_BYTES = 200
LOGS_PER_GROUP = 100
GROUPS_PER_PULL = 1000
AT = datetime(2026, 1, 1, tzinfo=UTC)


def serve(shards: int, pipe: Connection) -> None:
    """Send endpoint, key and hashes; then serve until the other end sends or closes anything."""
    server = SlsServer(PROJECT)
    created = server.create(LOGSTORE, shards).shards.values()
    ((key, (secret, _)),) = server.keys.items()
    pipe.send((server.endpoint, key, secret, [shard.begin for shard in created]))
    pipe.poll(None)
    server.close()


@contextmanager
def filled_logstore(shards: int, records: int) -> Generator[str]:
    """Start a server in a process of its own, with records spread evenly; gives its endpoint."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(shards, there), daemon=True)
    process.start()
    try:
        endpoint, key, secret, hashes = here.recv()
        os.environ[KEY_ID], os.environ[KEY_SECRET] = key, secret
        client = plain_client(endpoint)
        logs = [(AT, [("content", b"v" * VALUE_BYTES)])] * LOGS_PER_GROUP
        for hash_ in hashes:
            for _ in range(records // shards // LOGS_PER_GROUP):
                written_with_sdk(client, hash_, logs)
        yield endpoint
    finally:
        here.close()
        there.close()
        process.terminate()
        process.join()


def plainly(client: Any) -> int:
    """Read all with the SDK alone, as its own consumers do."""
    logs: list[dict[str, str]] = []
    for shard in client.list_shards(PROJECT, LOGSTORE).get_shards_info():
        number = shard["shardID"]
        cursor = client.get_begin_cursor(PROJECT, LOGSTORE, number).get_cursor()
        while True:
            answer = client.pull_logs(PROJECT, LOGSTORE, number, cursor, GROUPS_PER_PULL)
            if not answer.get_loggroup_count():
                break
            for group in answer.get_loggroup_list().LogGroups:
                logs += [{field.Key: field.Value for field in log.Contents} for log in group.Logs]
            cursor = answer.get_next_cursor()
    return len(logs)


def ways(endpoint: str, folder: Path, session: Any) -> dict[str, Way]:
    """Return each way to read everything once."""
    options = LogHubOptions(endpoint=endpoint, project=PROJECT, logstore=LOGSTORE)
    client, source = plain_client(endpoint), LogHub(options)
    here, spark = in_process(source), in_spark(session, source, folder / "output")
    return {
        "SDK": lambda: plainly(client),
        "plan": lambda: plan_and_read(source, planned),
        "read": read_alone(source, source),
        "plan + read": lambda: plan_and_read(source, here),
        "plan + Spark": lambda: plan_and_read(source, spark),
    }


def main() -> None:
    """Measure and print."""
    arguments = arguments_of(__doc__ or "", records=200_000)
    per_turn = arguments.shards * LOGS_PER_GROUP
    records = max(1, arguments.records // per_turn) * per_turn
    with (
        filled_logstore(arguments.shards, records) as endpoint,
        scratch_folder() as folder,
        spark_session(folder / "spark") as session,
    ):
        rows = rows_of(
            ways(endpoint, folder, session),
            records=records,
            value_bytes=VALUE_BYTES,
            repeats=arguments.repeats,
        )
    note = f"{records:,} records of {VALUE_BYTES} bytes, {arguments.shards} shards, {cores()} cores"
    print_rows(rows, as_json=arguments.json, note=note)


if __name__ == "__main__":
    main()
