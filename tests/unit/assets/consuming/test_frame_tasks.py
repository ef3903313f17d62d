"""The tasks of the DataFrame way, called without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_leasehold.assets.consuming.frame_tasks import RangesRead, RowsWritten, statistics_of
from dagster_leasehold.assets.errors import OutputUnwritable, TransformError
from dagster_leasehold.assets.output.output_file import RECORD_DDL
from dagster_leasehold.assets.output.worker_results import WorkerFailed, WrittenFile, worker_errors
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store.errors import UnknownShard
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import ReadRange, record_schema

NUMBERS = pa.RecordBatch.from_pydict({"id": [0]})


def reading(folder: Path, *shards: str) -> RangesRead:
    """The reading of two records of each shard, in one task; a log has the shards 0 and 1."""
    log = LocalLog.create(folder / "log", 2)
    for shard in log.list_shards():
        log.append(shard.shard, [b"x", b"yz"])
    ranges = tuple(ReadRange(ShardId(shard), "0", "2", 2) for shard in shards)
    return RangesRead(log.spark_options(), (ranges,), local_place(folder / "output"))


def test_each_range_is_followed_by_what_was_counted(tmp_path: Path) -> None:
    rows = pa.Table.from_batches(reading(tmp_path, "0", "1")(iter([NUMBERS]))).to_pylist()
    assert [row["shard_id"] for row in rows] == ["0", "0", None, "1", "1", None]
    shard, read = statistics_of(rows[-1]["value"])
    assert (shard, read.records, read.bytes) == ("1", 2, 3)


def test_a_task_names_its_failing_shards_and_reads_the_others(tmp_path: Path) -> None:
    batches = reading(tmp_path, "8", "0", "9")(iter([NUMBERS]))
    assert [next(batches).num_rows for _ in range(2)] == [2, 1], "two records, and their report"
    with pytest.raises(WorkerFailed) as caught:
        next(batches)
    errors = worker_errors(caught.value)
    assert {shard: type(error) for shard, error in errors.items()} == {
        "8": UnknownShard,
        "9": UnknownShard,
    }


def test_the_columns_are_those_of_every_source() -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    promised = RECORD_DDL.replace(" ", ":").replace(",:", ",")
    assert from_arrow_schema(record_schema()).simpleString() == f"struct<{promised}>"


def test_a_write_error_is_not_blamed_on_a_record(tmp_path: Path) -> None:
    (tmp_path / "output").touch()
    place = local_place(tmp_path / "output")
    rows = pa.RecordBatch.from_pydict({"shard_id": ["0"], "value": [b"x"]})
    writing = RowsWritten(place, {ShardId("0"): range(1)}, "")
    with pytest.raises(WorkerFailed) as caught:
        [*writing(iter([rows]))]
    assert isinstance(worker_errors(caught.value)[""], OutputUnwritable)
    with pytest.raises(WorkerFailed) as caught:
        [*RowsWritten(place, {}, "")(iter([rows]))]
    assert isinstance(worker_errors(caught.value)[""], TransformError)


def test_rows_are_divided_by_their_partition_values(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"shard_id": ["0"] * 3, "user": ["a", "b", "a"]})
    partitioning = TableSettings(partitioning=("user",)).divided_by
    writing = RowsWritten(local_place(tmp_path), {ShardId("0"): range(1)}, "", partitioning)
    (answer,) = writing(iter([rows]))
    files = [WrittenFile.of(each) for each in json.loads(answer.column("row")[0].as_py())]
    assert [(file.partition, file.records) for file in files] == [
        ({"user": "a"}, 2),
        ({"user": "b"}, 1),
    ]
