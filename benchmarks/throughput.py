"""Records a second from a log to committed Parquet, next to Spark's own readers and plain Python.

`python -m benchmarks.throughput [--records 10000000] [--shards 16] [--cores 2] [--json]` makes one
log of JSON records of about 190 bytes and the same records as Parquet and as lines of text, and
turns each into Parquet (zstd):

* `leasehold`: the batch loop of a run, with leases, intents and commits in a SQLite store;
* `parquet`: Spark reads Parquet and writes it;
* `text`, `json`: Spark reads lines, or parses them, and writes them;
* `python`: one Python process reads the same log and writes one file per shard, with neither
  leases nor a ledger.

Give several numbers of shards or cores to see how it grows. Each number of cores has a process,
and a Spark, of its own that may use no more of them. The memory is the highest sum of the
proportional sizes of that process and of Spark with its Python workers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figures import print_rows
from benchmarks.local_log import values
from dagster_leasehold.assets.consuming.consumption import Consumer
from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.consuming.spark_sweeper import SparkSweeper
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark import connect_server
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.assets.spark.spark_session import cores as usable_cores
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.group_rows import Node, Timing
from dagster_leasehold.lease_store.heartbeat import Heartbeat
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import ReadRange, record_schema

NODE = NodeName("a")
PORTION = 50_000
SAMPLE_S = 0.5
MEBIBYTE = 2**20


def make_input(folder: Path, records: int, shards: int) -> int:
    """Write the same records to a log, as lines and as Parquet; return the bytes of values."""
    log = LocalLog.create(folder / "log", shards)
    lines, columns = folder / "lines", folder / "parquet"
    lines.mkdir()
    columns.mkdir()
    size = 0
    for shard in range(shards):
        count = records // shards
        with (lines / f"{shard}.txt").open("wb") as file:
            for start in range(0, count, PORTION):
                portion = values(min(PORTION, count - start))
                size += sum(map(len, portion))
                log.append(str(shard), portion)
                file.write(b"\n".join(portion) + b"\n")
    plain_python(log, columns)
    return size


def plain_python(log: LocalLog, output: Path) -> None:
    """Do the least that a consumer does: read every shard to its end, and write a file of it."""
    shards = [listing.shard for listing in log.list_shards()]
    for shard, bounds in log.bounds(shards).items():
        path = output / f"{shard}.parquet"
        with pq.ParquetWriter(path, record_schema(), compression="zstd") as file:
            for batch in log.read(ReadRange(shard, bounds.begin, bounds.end)):
                file.write_table(pa.Table.from_batches([batch]))


def consume(folder: Path, spark: SparkResource, output: Path) -> int:
    """Consume the whole log in one run, as a Dagster run does; return the number of batches."""
    log = LocalLog.open(folder / "log")
    stream = ShardStream(name="bench", source=log)
    store = open_store(f"sqlite:///{output / 'leases.db'}")
    store.create_group(stream.new_group(20.0))
    store.register(stream.key, Node(NODE, 0, "a-1"), observer="benchmark")
    store.sync_shards(stream.key, log.list_shards(), observer="benchmark")
    claims = {lease.shard: (NODE, lease.lease_id) for lease in store.snapshot(stream.key).shards}
    store.claim(stream.key, claims, observer="benchmark", reason="set up")
    with Heartbeat(store, stream.key, NODE, "a-1", Timing()) as heartbeat:
        consumer = Consumer(
            stream=stream,
            store=store,
            node=NODE,
            run="benchmark",
            sweeper=SparkSweeper(
                stream=stream,
                session=lambda: spark.spark_session,
                output_root=output,
                run="benchmark",
            ),
            heartbeat=heartbeat,
            clock=time.monotonic,
            budget_s=24 * 3600.0,
        )
        reports = consumer.consume([ShardId(shard) for shard in claims])
    store.close()
    for report in reports.values():
        if report.stopped is not StopReason.CAUGHT_UP:
            raise RuntimeError(f"shard {report.shard} stopped: {report.stopped}, {report.error}")
    return sum(report.batches for report in reports.values())


@contextmanager
def peak_memory(spark_folder: Path) -> Generator[list[float]]:
    """Sample this process and Spark; the highest sum, in bytes, is in the list afterwards."""
    peak = [0.0]
    done = threading.Event()

    def sizes() -> Iterator[int]:
        server = connect_server.running(spark_folder)
        for pid in filter(None, [os.getpid(), server and server.pid]):
            root = psutil.Process(pid)
            for process in [root, *root.children(recursive=True)]:
                try:
                    memory = process.memory_full_info()
                except psutil.Error:
                    continue
                yield getattr(memory, "pss", memory.rss)

    def sample() -> None:
        while not done.wait(SAMPLE_S):
            peak[0] = max(peak[0], sum(sizes()))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def ways(folder: Path, spark: SparkResource) -> dict[str, Callable[[Path], object]]:
    """Return each way from the input to a folder of Parquet, by name."""
    session: Any = spark.spark_session

    def rewritten(read: Callable[[str], Any], name: str) -> Callable[[Path], None]:
        return lambda output: read(str(folder / name)).write.parquet(str(output / "rows"))

    return {
        "leasehold": lambda output: consume(folder, spark, output),
        "parquet": rewritten(session.read.parquet, "parquet"),
        "text": rewritten(session.read.text, "lines"),
        "json": rewritten(session.read.json, "lines"),
        "python": lambda output: plain_python(LocalLog.open(folder / "log"), output),
    }


def measure(folder: Path, shards: int, cores: int, records: int, size: int) -> list[dict[str, Any]]:
    """Return the figures of every way, in a process that uses this number of cores."""
    os.sched_setaffinity(0, range(cores))
    assert usable_cores() == cores
    spark_folder = folder / f"spark-{cores}"
    spark = SparkResource(mode="connect", folder=str(spark_folder))
    rows: list[dict[str, Any]] = []
    try:
        # The first job of a new Spark waits for its compilers and Python workers.
        warm = folder / f"warm-{cores}"
        make_input(warm, PORTION, 2)
        for name, way in ways(warm, spark).items():
            run_once(warm / f"output-{name}", way)
        for name, way in ways(folder, spark).items():
            with peak_memory(spark_folder) as peak:
                seconds = run_once(folder / f"output-{name}", way)
            rows.append(
                {
                    "shards": shards,
                    "cores": cores,
                    "way": name,
                    "seconds": round(seconds, 1),
                    "records/s": round(records / seconds),
                    "MB/s": round(size / seconds / 1e6, 1),
                    "memory MiB": round(peak[0] / MEBIBYTE),
                }
            )
    finally:
        connect_server.stop(spark_folder)
    mine = rows[0]["records/s"]
    return [{**row, "ratio": round(row["records/s"] / mine, 2)} for row in rows]


def run_once(output: Path, way: Callable[[Path], object]) -> float:
    """Return the seconds that a way takes into a new folder, which is removed afterwards."""
    output.mkdir()
    began = time.perf_counter()
    way(output)
    seconds = time.perf_counter() - began
    shutil.rmtree(output)
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--shards", type=int, nargs="+", default=[16])
    parser.add_argument("--cores", type=int, nargs="+", default=[usable_cores()])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for shards in arguments.shards:
        records = arguments.records // shards * shards
        folder = Path(tempfile.mkdtemp(prefix="leasehold-throughput-"))
        try:
            size = make_input(folder, records, shards)
            for cores in arguments.cores:
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                    task = process.submit(measure, folder, shards, cores, records, size)
                    rows += task.result()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    note = f"{arguments.records:,} records of about 190 bytes; ratio: to leasehold"
    print_rows(rows, as_json=arguments.json, note=note)


if __name__ == "__main__":
    main()
