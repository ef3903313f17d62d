"""Reads and writes DataFrames as Parquet files, without a Spark client for object stores.

Spark's Python workers read and write the files with Arrow, so an object store needs neither jars
nor Spark settings. Spark itself reads files on a disk. The workers import this module.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING

from dagster_leasehold.assets.output.attempts import check_shared
from dagster_leasehold.assets.output.output_file import new_parquet
from dagster_leasehold.assets.output.worker_results import result_rows, rows_of
from dagster_leasehold.assets.places.place import MovingRecords, OutputPlace
from dagster_leasehold.lease_store.ledger_rows import DataFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TASKS_MAX = 64


@dataclass(frozen=True)
class _FilesRead:
    """Reads files by their numbers, with the columns of a schema; see `file_batches`."""

    files: tuple[OutputPlace, ...]
    schema: pa.Schema
    names: Mapping[str, str]

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from dagster_leasehold.assets.output.table.renamed_dataset import file_batches

        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from file_batches(self.files[number], self.schema, self.names)


@dataclass(frozen=True)
class _FileWritten:
    """Writes the rows of a task into a new file; yields its name, records and bytes."""

    folder: OutputPlace

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        name, records = f"part-{uuid.uuid4().hex}.parquet", 0
        moving = MovingRecords(self.folder)
        with new_parquet(self.folder / name, first.schema) as out:
            for batch in chain((first,), batches):
                out.writer.write_batch(batch)
                records += batch.num_rows
                moving.moved()
        yield result_rows([json.dumps([name, records, out.bytes])])


def frame_of(
    spark: SparkSession,
    files: Sequence[OutputPlace],
    schema: pa.Schema,
    names: Mapping[str, str] = MappingProxyType({}),
) -> DataFrame:
    """Return the rows of files, in any order, with the columns of a common schema.

    `names` has the column of the schema for each earlier name.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    count = len(files)
    numbers = spark.range(0, count, 1, min(count, TASKS_MAX))
    read = _FilesRead(tuple(files), schema, dict(names))
    return numbers.mapInArrow(read, from_arrow_schema(schema))


def write_frame(frame: DataFrame, folder: OutputPlace, attempt: str) -> tuple[DataFile, ...]:
    """Write a DataFrame into new files of an attempt's folder, and make them durable."""
    folder.make_folder()
    rows = [json.loads(text) for text in rows_of(frame, _FileWritten(folder))]
    check_shared(folder, ([(name, size)] for name, _, size in rows))
    folder.sync_folder()
    return tuple(DataFile(f"{attempt}/{name}", records, size) for name, records, size in rows)
