"""The cost of a sweep: one file per shard by our own writer, or Spark's own Parquet writer.

`python -m benchmarks.sweep [--json]` writes the same records, read by the same function, four ways
in one Spark session:

* `per shard`: without a transform, one file per shard and task;
* `DataFrame`: the same with a transform of DataFrames that changes nothing;
* `partitionBy`: Spark's writer, a folder per shard, which sorts each task's rows first;
* `mixed`: Spark's writer, a file per task with the shards mixed: what a floor costs, since
  files that belong to several shards cannot be fenced, replayed or merged shard by shard.

Durability is part of the first two ways alone: they sync every file before the job ends.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dagster_leasehold.assets.consuming.frame_tasks import IS_RECORD, RangesRead
from dagster_leasehold.assets.consuming.spark_sweeper import run_sweep
from dagster_leasehold.assets.consuming.spark_work import SweepJob
from dagster_leasehold.assets.consuming.sweep import SweepOutcome
from dagster_leasehold.assets.consuming.task_packing import pack
from dagster_leasehold.assets.guarding.job_watch import JobWatch
from dagster_leasehold.assets.output.output_file import RECORD_DDL
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.spark import connect_server
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.assets.spark.spark_session import cores
from dagster_leasehold.lease_store.identifiers import StreamName
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import ReadRange

TOTAL_RECORDS = 256_000
VALUE_BYTES = 150


def make_ranges(folder: Path, shards: int, records: int) -> tuple[LocalLog, list[ReadRange]]:
    """Fill a log with `records` in all its shards; return it, and the range of each shard."""
    log = LocalLog.create(folder, shards)
    generator = random.Random(shards)
    words = [generator.randbytes(8).hex() for _ in range(500)]
    each = records // shards
    ranges: list[ReadRange] = []
    for listing in log.list_shards():
        values: list[bytes] = []
        for _ in range(each):
            text = " ".join(generator.choices(words, k=9))
            values.append(text.encode()[:VALUE_BYTES])
        log.append(listing.shard, values)
        ranges.append(ReadRange(listing.shard, "0", str(each), each))
    return log, ranges


def ways(
    spark: Any, log: LocalLog, ranges: list[ReadRange], output: Path
) -> dict[str, Callable[[], None]]:
    """Return the four ways to write the ranges, by name."""

    def job(transform: Any) -> SweepJob:
        return SweepJob(
            stream=StreamName("benchmark"),
            source_options=log.spark_options(),
            transform=transform,
            output_root=local_place(output),
            new_attempt=lambda: uuid.uuid4().hex,
            watch=JobWatch(tag="leasehold-benchmark", work="the benchmark"),
            tasks_max=2 * cores(),
        )

    def frame() -> Any:
        tasks = tuple(pack(ranges, 2 * cores()))
        reading = RangesRead(log.spark_options(), tasks, local_place(output))
        rows = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(reading, RECORD_DDL)
        return rows.where(IS_RECORD)

    def per_shard(transform: Any = None) -> None:
        numbers = {range_.shard: range(1) for range_ in ranges}
        results = run_sweep(spark, job(transform), ranges, numbers)
        assert all(isinstance(result, SweepOutcome) for result in results.values())

    def partition_by() -> None:
        frame().write.partitionBy("shard_id").parquet(str(output / uuid.uuid4().hex))

    def mixed() -> None:
        frame().write.parquet(str(output / uuid.uuid4().hex))

    def frames() -> None:
        per_shard(lambda records: records)

    return {
        "per shard": per_shard,
        "DataFrame": frames,
        "partitionBy": partition_by,
        "mixed": mixed,
    }


def measure(
    folder: Path, shard_counts: list[int], records: int, repeats: int
) -> list[dict[str, Any]]:
    """Return the figures of every number of shards and way, all from one session."""
    spark_folder = folder / "spark"
    spark = SparkResource(mode="connect", folder=str(spark_folder)).spark_session
    rows: list[dict[str, Any]] = []
    try:
        for shards in shard_counts:
            log, ranges = make_ranges(folder / f"log-{shards}", shards, records)
            output = folder / f"output-{shards}"
            named = ways(spark, log, ranges, output)
            times: dict[str, list[float]] = {name: [] for name in named}
            # The first round warms up workers and compilers; the ways take turns in the others.
            for round_ in range(repeats + 1):
                for name, write in named.items():
                    began = time.perf_counter()
                    write()
                    if round_:
                        times[name].append(time.perf_counter() - began)
            floor = statistics.median(times["mixed"])
            for name, seconds in times.items():
                median = statistics.median(seconds)
                rows.append(
                    {
                        "shards": shards,
                        "way": name,
                        "median_s": round(median, 3),
                        "best_s": round(min(seconds), 3),
                        "records_per_s": round(records / median),
                        "ratio_to_mixed": round(median / floor, 2),
                    }
                )
            shutil.rmtree(output)
    finally:
        connect_server.stop(spark_folder)
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--records", type=int, default=TOTAL_RECORDS, help="in all shards together")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="leasehold-sweep-"))
    try:
        rows = measure(folder, arguments.shards, arguments.records, arguments.repeats)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        json.dump({"records": arguments.records, "rows": rows}, sys.stdout, indent=2)
        print()
        return
    print(f"{arguments.records} records of up to {VALUE_BYTES} bytes in all, {cores()} cores")
    print(
        f"{'shards':>6}  {'way':<12} {'median s':>9} {'best s':>7} {'records/s':>10} {'ratio':>6}"
    )
    for row in rows:
        print(
            f"{row['shards']:>6}  {row['way']:<12} {row['median_s']:>9} {row['best_s']:>7} "
            f"{row['records_per_s']:>10} {row['ratio_to_mixed']:>6}"
        )


if __name__ == "__main__":
    main()
