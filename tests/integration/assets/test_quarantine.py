"""Quarantine on real Spark: raw bytes kept, a limit per batch, poison, and another try."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_leasehold.assets.arrow_transform import arrow_transform
from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.consuming.spark_sweeper import SparkSweeper
from dagster_leasehold.assets.guarding.run_on_spark import RunOnSpark
from dagster_leasehold.assets.output.quarantined import quarantined_records
from dagster_leasehold.assets.parsing import parse_csv, parse_json
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.rewriting.replay import Replayer
from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan
from dagster_leasehold.assets.shard_stream import Checks
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.verification import verify
from tests.integration.assets.runs import (
    RECORDS,
    AnyTransform,
    consume,
    consume_stream,
    store_of,
    stream_of,
)
from tests.ledger_output import ledger_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark
ZERO, ONE, TWO = ShardId("0"), ShardId("1"), ShardId("2")
CSV = {
    b"1,a": (1, "a"),
    b'2,"a,b"': (2, "a,b"),
    b'3,"a ""b"""': (3, 'a "b"'),
    b'4,"a\nb"': (4, "a\nb"),
    b"5,": (5, None),
    "6,naïve ☃".encode(): (6, "naïve ☃"),
}
NO_CSV = [b"", b" ", b"1", b"1,a,b", b"x,a", b'1,"open', b"99999999999,a", b"1,\xff", b"1,a\n2,b"]


def csv(records: DataFrame) -> DataFrame:
    return parse_csv(records, "id INT, name STRING")


def test_csv_lines_that_do_not_fit_keep_their_bytes_cursor_and_error(
    home: Path, spark_folder: Path, connect_session: Any
) -> None:
    assert consume(home, spark_folder, "run-1")[ZERO].stopped is StopReason.CAUGHT_UP
    log, store = stream_of(home).source, store_of(home)
    log.append(ZERO, [*CSV, *NO_CSV])
    consume(home, spark_folder, "run-2", transform=csv)
    key, output = stream_of(home).key, home / "output"
    rows = [r for b in ledger_records(store, key, output, ZERO) for r in b.to_pylist()][RECORDS:]
    assert {row["value"]: (row["id"], row["name"]) for row in rows} == CSV
    bad = list(quarantined_records(store, key, output))
    assert [record.value for record in bad] == NO_CSV
    first = RECORDS + len(CSV)
    assert [record.cursor for record in bad] == [str(first + n) for n in range(len(NO_CSV))]
    by_value = {record.value: record.error for record in bad}
    assert by_value[b"1,\xff"] == "value is not text in UTF-8"
    assert by_value[b"1"] == "value is not a line of CSV with the 2 expected fields"
    assert {record.batch_id for record in bad} <= {b.batch_id for b in store.batches(key, ZERO)}


def todays_frames(records: DataFrame) -> DataFrame:
    # The first records of the deployment's shards are no CSV, and not of interest.
    return parse_csv(records.where("value NOT LIKE '%:%'"), "id INT, name STRING")


@arrow_transform
def todays_tables(records: pa.Table) -> pa.Table:
    wanted = [b":" not in value for value in records["value"].to_pylist()]
    rows = records.filter(pa.array(wanted))
    errors = [None if b"," in value else "no CSV" for value in rows["value"].to_pylist()]
    return rows.append_column("quarantine_error", pa.array(errors, pa.string()))


@pytest.mark.parametrize("todays", [todays_frames, todays_tables], ids=["frames", "arrow"])
def test_too_many_bad_records_stop_only_their_shard(
    todays: AnyTransform, home: Path, spark_folder: Path, connect_session: Any
) -> None:
    """More bad records in a batch than the stream allows: that shard waits, the others continue."""
    stream = replace(stream_of(home), checks=Checks(quarantined_max=3))
    for shard in (ZERO, ONE, TWO):
        stream.source.append(shard, [b"1,a"] * 6)
    stream.source.append(ONE, [b"poison"] * 4)
    stream.source.append(TWO, [b"poison"] * 3)

    reports = consume_stream(replace(stream, transform=todays), home, spark_folder, "run-1")
    assert reports[ONE].stopped is StopReason.FAILED
    assert "4 records of shard 1 between cursors" in reports[ONE].error
    assert "quarantined_max" in reports[ONE].error
    assert reports[ZERO].stopped is reports[TWO].stopped is StopReason.CAUGHT_UP
    assert (reports[ZERO].end, reports[TWO].end) == ("36", "39")
    store = store_of(home)
    poisoned = list(quarantined_records(store, stream.key, home / "output"))
    assert [(record.shard, record.value) for record in poisoned] == [(TWO, b"poison")] * 3
    assert verify(store, stream.key) == []


def mended_frames(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    number = f.split(f.col("value").cast("string"), ":")[1].cast("int")
    return records.withColumn("n", number).withColumn("quarantine_error", f.lit(None))


@arrow_transform
def mended_tables(records: pa.Table) -> pa.Table:
    numbers = [int(value.split(b":")[1]) for value in records["value"].to_pylist()]
    fixed = records.append_column("n", pa.array(numbers, pa.int32()))
    return fixed.append_column("quarantine_error", pa.nulls(records.num_rows, pa.string()))


@pytest.mark.parametrize("todays", [mended_frames, mended_tables], ids=["frames", "arrow"])
def test_a_retry_puts_fixed_records_into_their_batches(
    todays: AnyTransform, home: Path, spark_folder: Path, connect_session: Any
) -> None:
    def yesterdays(records: DataFrame) -> DataFrame:
        return parse_json(records, "n INT")

    consume(home, spark_folder, "run-1", transform=yesterdays)
    stream, store, output = stream_of(home, todays), store_of(home), local_place(home / "output")
    assert len(list(quarantined_records(store, stream.key, output))) == 3 * RECORDS
    leases = store.snapshot(stream.key).shards
    replayer = Replayer(
        stream=stream,
        store=store,
        output_root=output,
        sweeper=SparkSweeper(
            stream=stream,
            spark=RunOnSpark(
                session=lambda: (
                    SparkResource(mode="connect", folder=str(spark_folder)).spark_session
                ),
                run="replay-1",
                work="stream orders",
            ),
            output_root=output,
        ),
        run="replay-1",
    )
    span = ReplaySpan.parse(None, None, quarantined=True)
    reports = replayer.replay([ZERO, ONE], span)
    assert {report.error for report in reports.values()} == {""}
    assert {r.shard for r in quarantined_records(store, stream.key, output)} == {TWO}
    for shard in (ZERO, ONE):
        rows = [r for b in ledger_records(store, stream.key, output, shard) for r in b.to_pylist()]
        assert [row["n"] for row in rows] == list(range(RECORDS))
    assert replayer.replay([ZERO], span)[ZERO].batches == 0, "nothing is left to try"
    assert store.snapshot(stream.key).shards == leases
    assert verify(store, stream.key) == []
