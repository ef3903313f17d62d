"""Engines that are not ours, which read a table from the location of its metadata alone."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
from pyiceberg.table import StaticTable

from tests.object_store import PORT, PYICEBERG


@cache
def duckdb_with_iceberg() -> duckdb.DuckDBPyConnection:
    """Return a connection that reads tables with extensions from their packages, no network."""
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    connection.execute("SET TimeZone = 'UTC'")
    # A test can have removed the file that it read before.
    connection.execute("SET enable_external_file_cache = false")
    for name in ("avro", "httpfs", "iceberg"):
        folder = Path(str(files(f"duckdb_extension_{name}")))
        (extension,) = folder.rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{extension}'")
    return connection


def let_duckdb_into_the_store() -> None:
    """Configure DuckDB with the address and login of the tests' object store."""
    duckdb_with_iceberg().execute(
        f"CREATE OR REPLACE SECRET store (TYPE s3, KEY_ID 'test', SECRET 'test', "
        f"ENDPOINT '127.0.0.1:{PORT}', URL_STYLE 'path', USE_SSL false, REGION 'us-east-1')"
    )


def duckdb_query(metadata: str, select: str, where: str = "true") -> list[tuple[Any, ...]]:
    """Return the rows of a query over a table."""
    query = f"SELECT {select} FROM iceberg_scan('{metadata}') WHERE {where}"
    return duckdb_with_iceberg().execute(query).fetchall()


def duckdb_files_read(metadata: str, where: str) -> int:
    """Return how many data files DuckDB opens for a query with a filter."""
    query = f"EXPLAIN ANALYZE SELECT count(*) FROM iceberg_scan('{metadata}') WHERE {where}"
    plan = duckdb_with_iceberg().execute(query).fetchall()[0][1]
    line = next(line for line in plan.splitlines() if "Total Files Read" in line)
    return int(line.strip("│ \n").removeprefix("Total Files Read: "))


def polars_scan(metadata: str, storage: dict[str, str] | None = None) -> pl.LazyFrame:
    """Return a lazy frame of a table; `storage` has PyIceberg's properties of an object store."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pl.scan_iceberg(metadata, storage_options=storage)


def pyiceberg_files(metadata: str, where: str) -> list[str]:
    """Return the names of the data files that PyIceberg plans to read for a filter."""
    scan = StaticTable.from_metadata(metadata).scan(row_filter=where)
    return sorted(Path(task.file.file_path).name for task in scan.plan_files())


def pyiceberg_rows(metadata: str, snapshot: int | None = None) -> list[dict[str, Any]]:
    """Return all rows, or those of an earlier snapshot."""
    return (
        StaticTable.from_metadata(metadata, PYICEBERG)
        .scan(snapshot_id=snapshot)
        .to_arrow()
        .to_pylist()
    )


def polars_rows(metadata: str) -> list[dict[str, Any]]:
    """Return all rows, as Polars reads them, with maps as those of Arrow."""
    frame = polars_scan(metadata).collect()
    rows = frame.to_dicts()
    for name in (name for name, kind in frame.schema.items() if isinstance(kind, pl.Map)):
        for row in rows:
            row[name] = row[name] and [*row[name].items()]
    return rows


def duckdb_rows(metadata: str) -> list[dict[str, Any]]:
    """Return all rows, as DuckDB reads them, in the values of Arrow."""
    query = f"FROM iceberg_scan('{metadata}')"
    return duckdb_with_iceberg().execute(query).to_arrow_table().to_pylist()
