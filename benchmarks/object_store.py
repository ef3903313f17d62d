"""Records a second from a log to committed Parquet: into a folder and into an object store.

`python -m benchmarks.object_store [--records 2000000] [--shards 16] [--rounds 5] [--json]
[--output s3://BUCKET/FOLDER]` consumes the same log of JSON records of about 190 bytes, round by
round, into a folder of this disk and into the store. Without `--output` that is moto's server in a
process of its own, which shares the cores: the last column leaves its processor time out, as if all
cores had been busy. `cpu` is that of Leasehold and Spark.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.figures import print_rows
from benchmarks.figures.parquet_input import make_input
from benchmarks.figures.parquet_ways import consume
from benchmarks.figures.process_tree import adopt_orphans, cpu_below
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.spark import connect_server
from dagster_leasehold.assets.spark.spark_resource import SparkResource

START_S = 30.0
BUCKET = "benchmark"


@contextmanager
def own_object_store() -> Generator[tuple[str, psutil.Process]]:
    """Run moto's server, and name it in the environment; give the URI of a bucket there."""
    import boto3

    program = (
        "from moto.server import ThreadedMotoServer as S\n"
        "s = S(ip_address='127.0.0.1', port=0, verbose=False)\n"
        "s.start()\nprint(s.get_host_and_port()[1], flush=True)\ninput()\n"
    )
    command = [sys.executable, "-c", program]
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=quiet, text=True
    )
    assert server.stdout is not None
    try:
        address = f"http://127.0.0.1:{int(server.stdout.readline())}"
        os.environ |= {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "benchmark",
            "AWS_SECRET_ACCESS_KEY": "benchmark",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        boto3.client("s3", endpoint_url=address).create_bucket(Bucket=BUCKET)
        yield f"s3://{BUCKET}", psutil.Process(server.pid)
    finally:
        server.terminate()
        server.wait(START_S)


def measure(
    folder: Path,
    store: str,
    server: psutil.Process | None,
    *,
    records: int,
    shards: int,
    rounds: int,
) -> list[dict[str, Any]]:
    """Return the figures of both places; the first round of each warms up."""
    source = folder / "input"
    source.mkdir()
    make_input(source, records, shards, lines=False)
    spark = SparkResource(mode="connect", folder=str(folder / "spark"))
    took: dict[str, list[tuple[float, float, float]]] = {"disk": [], "object store": []}

    def used() -> tuple[float, float, float]:
        times = server.cpu_times() if server is not None else None
        served = times.user + times.system if times is not None else 0.0
        return time.monotonic(), time.process_time() + cpu_below() - served, served

    try:
        for turn in range(rounds + 1):
            for name, times in took.items():
                scratch = folder / uuid.uuid4().hex
                scratch.mkdir()
                there = output_place(store) / scratch.name
                place: OutputPlace = local_place(scratch) if name == "disk" else there
                begin = used()
                consume(source, spark, scratch, place=place)
                if turn:
                    seconds, cpu, served = (b - a for a, b in zip(begin, used(), strict=True))
                    times.append((seconds, cpu, served))
                    print(f"round {turn}: {name}: {seconds:.2f} s", file=sys.stderr)
                shutil.rmtree(scratch)
                there.remove_folder()
    finally:
        connect_server.stop(folder / "spark")
    rows: list[dict[str, Any]] = []
    for name, times in took.items():
        seconds, cpu, served = (statistics.median(each) for each in zip(*times, strict=True))
        best = rows[0]["seconds"] if rows else seconds
        rows.append(
            {
                "place": name,
                "seconds": seconds,
                "records a second": records / seconds,
                "of disk": best / seconds,
                "cpu": cpu,
                "server's cpu": served,
                "of disk without the server": best / (seconds - served / (os.cpu_count() or 1)),
            }
        )
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    adopt_orphans()
    sizes = {"records": arguments.records, "shards": arguments.shards, "rounds": arguments.rounds}
    with tempfile.TemporaryDirectory(prefix="leasehold-store-") as name:
        if arguments.output:
            rows = measure(Path(name), arguments.output, None, **sizes)
        else:
            with own_object_store() as (store, server):
                rows = measure(Path(name), store, server, **sizes)
    note = f"{arguments.records:,} records of about 190 bytes in {arguments.shards} shards"
    print_rows(rows, as_json=arguments.json, note=note)


if __name__ == "__main__":
    main()
