"""Ways to read all records of a source, timed in turns next to the service's plain client."""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from dagster_leasehold.assets.consuming.spark_sweeper import SparkSweeper
from dagster_leasehold.assets.consuming.sweep import SweepOutcome
from dagster_leasehold.assets.guarding.run_on_spark import RunOnSpark
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark import connect_server
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.shard_sources.source import (
    Limits,
    Position,
    ReadRange,
    ShardReader,
    ShardSource,
)

LIMITS = Limits(records_max=1_000_000, bytes_max=1 << 30)

Way: TypeAlias = Callable[[], int]
"""Reads everything once; returns the number of records."""
ReadRanges: TypeAlias = Callable[[Sequence[ReadRange]], int]


def sweeps(source: ShardSource) -> Iterator[list[ReadRange]]:
    """Plan sweeps over all shards, from their beginnings to their ends."""
    cursors = {
        row.shard: source.cursor_at(row.shard, Position.BEGIN) for row in source.list_shards()
    }
    while True:
        ranges: list[ReadRange] = []
        for shard, cursor in cursors.items():
            plan = source.plan(shard, cursor, LIMITS)
            if plan.records:
                ranges.append(ReadRange(shard, cursor, plan.end, plan.records))
            cursors[shard] = plan.end
        if not ranges:
            return
        yield ranges


def plan_and_read(source: ShardSource, read: ReadRanges) -> int:
    """Read each sweep over the shards right after it was planned, as a run does."""
    return sum(read(ranges) for ranges in sweeps(source))


def read_alone(source: ShardSource, reader: ShardReader) -> Way:
    """Return a way to read, in this process, ranges that were planned once before."""
    ranges = [range_ for sweep in sweeps(source) for range_ in sweep]
    return lambda: in_process(reader)(ranges)


def planned(ranges: Sequence[ReadRange]) -> int:
    """Leave the ranges unread, and return how many records are in them."""
    return sum(range_.records for range_ in ranges)


def in_process(reader: ShardReader) -> ReadRanges:
    """Return a reader of ranges in this process, one after the other, into Arrow batches."""
    return lambda ranges: sum(b.num_rows for range_ in ranges for b in reader.read(range_))


def in_spark(session: Any, source: ShardSource, output: Path) -> ReadRanges:
    """Return a reader of ranges in one Spark job, as a run of a stream without a transform."""
    stream = ShardStream(name="benchmark", source=source)
    sweeper = SparkSweeper(
        stream=stream,
        spark=RunOnSpark(session=lambda: session, run="benchmark", work="the benchmark"),
        output_root=local_place(output),
    )

    def sweep(ranges: Sequence[ReadRange]) -> int:
        results = sweeper(ranges, {each.shard: range(1) for each in ranges})
        outcomes = [r for r in results.values() if isinstance(r, SweepOutcome)]
        assert len(outcomes) == len(ranges), results
        return sum(outcome.statistics.records or 0 for outcome in outcomes)

    return sweep


@contextmanager
def spark_session(folder: Path) -> Generator[Any]:
    """Open a session of the embedded server, which ends with the session."""
    try:
        yield SparkResource(mode="connect", folder=str(folder)).spark_session
    finally:
        connect_server.stop(folder)


def rows_of(
    ways: Mapping[str, Way], *, records: int, value_bytes: int, repeats: int
) -> list[dict[str, Any]]:
    """Time each way `repeats` times; the first of them is what the others are compared with."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    # The first round warms up servers, workers and compilers; the ways take turns in the others.
    for round_ in range(repeats + 1):
        for name, read in ways.items():
            began = time.perf_counter()
            count = read()
            taken = time.perf_counter() - began
            assert count == records, (name, count)
            if round_:
                times[name].append(taken)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    floor = next(iter(medians.values()))
    return [
        {
            "way": name,
            "seconds": round(median, 3),
            "records/s": round(records / median),
            "MB/s": round(records * value_bytes / median / 1e6, 1),
            "of the client's rate": round(floor / median, 2),
        }
        for name, median in medians.items()
    ]


def arguments_of(description: str, *, records: int) -> argparse.Namespace:
    """Return the options of all these benchmarks: `json`, `shards`, `records`, `repeats`.

    Args:
        description: of the program.
        records: as many as are read by default.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--records", type=int, default=records, help="in all shards together")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


@contextmanager
def scratch_folder() -> Generator[Path]:
    """Make a folder that is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="leasehold-benchmark-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
