"""The input of the throughput benchmark: the same records as a log, as Parquet and as lines."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.local_log import values
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import ReadRange, record_schema

PORTION = 50_000
LOG, LINES, PARQUET = "log", "lines", "parquet"
FIELDS = "id bigint, user string, path string, status int, agent string, cost double"
"""The six fields of each record, as a Spark schema."""


def make_input(folder: Path, records: int, shards: int, *, lines: bool = True) -> int:
    """Write the same records to a log, as Parquet and as lines; return the bytes of values.

    Parquet has the columns of the log, and one file per shard; lines have a file per shard, too.
    They are left out where nobody reads them: they are as large as the values.
    """
    log = LocalLog.create(folder / LOG, shards)
    columns = folder / PARQUET
    columns.mkdir()
    (folder / LINES).mkdir()
    count = records // shards
    # Making values costs more than writing them, so every portion has the same ones.
    whole = values(min(PORTION, count))
    size = 0
    for shard in range(shards):
        for start in range(0, count, PORTION):
            portion = whole[: count - start]
            size += sum(map(len, portion))
            log.append(str(shard), portion)
            if lines:
                with (folder / LINES / f"{shard}.txt").open("ab") as file:
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


def rows_in(folder: Path) -> int:
    """Return the rows of all Parquet files below a folder, from their footers."""
    return sum(pq.read_metadata(path).num_rows for path in folder.rglob("*.parquet"))
