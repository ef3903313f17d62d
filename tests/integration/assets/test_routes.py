"""Streams with routes, on real Spark: one read, one commit, and a table for each route."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_leasehold.assets.arrow_transform import arrow_transform
from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.output.committed_output import CommittedOutput
from dagster_leasehold.assets.output.quarantined import quarantined_records
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.integration.assets.runs import claim_all, consume_stream, store_of

pytestmark = pytest.mark.spark
SHARDS = [ShardId("0"), ShardId("1")]
KINDS = ("clicks", "views", "", "buys")
LIMITS = TableSettings(routes_max=2, unknown_routes="quarantine")


def first_word(records: Any) -> pa.Array:
    return pa.array([value.decode().split(" ")[0] for value in records["value"].to_pylist()])


@arrow_transform
def with_kind(records: Any) -> Any:
    return records.append_column("kind", first_word(records))


def kind_in_spark(records: Any) -> Any:
    from pyspark.sql.functions import col, split

    text = col("value").cast("string")
    return records.withColumn("kind", split(text, " ").getItem(0))


WAYS: dict[str, dict[str, Any]] = {
    "a function": {"route": first_word},
    "a column of an Arrow transform": {"transform": with_kind, "route": "kind"},
    "a column of a DataFrame": {"transform": kind_in_spark, "route": "kind"},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_each_record_is_in_the_table_of_its_route(
    tmp_path: Path, spark_folder: Path, connect_session: Any, way: dict[str, Any]
) -> None:
    log = LocalLog.create(tmp_path / "log", len(SHARDS))
    stream = ShardStream("events", log, iceberg=LIMITS, **way)
    claim_all(stream, tmp_path)
    for run, replaces in (("run-1", None), ("run-2", "run-1")):
        for shard in SHARDS:
            kinds = KINDS[: 3 if run == "run-1" else 4]
            log.append(shard, [f"{kind} {n}".encode() for n in range(5) for kind in kinds])
        reports = consume_stream(stream, tmp_path, spark_folder, run, replaces)
        assert {each.stopped for each in reports.values()} == {StopReason.CAUGHT_UP}, reports
    store, key = store_of(tmp_path), stream.key
    assert verify(store, key) == []
    output = CommittedOutput(store, key, tmp_path / "output", stream.iceberg)
    assert output.dataset(wait=True).count_rows() == 40
    for route in ("clicks", "views"):
        values = output.dataset(route=route).to_table()["value"].to_pylist()
        expected = {f"{route} {number}".encode(): 4 for number in range(5)}
        assert Counter(values) == expected
    place = tmp_path / "output"
    bad = [each for s in SHARDS for each in quarantined_records(store, key, place, s)]
    assert Counter(each.value.split(b" ")[0] for each in bad if each.value) == {
        b"": 20,
        b"buys": 10,
    }
    assert {each.error for each in bad} == {
        f"The route '{kind}' in {stream.route_column} is unknown" for kind in ("", "buys")
    }


def test_a_function_needs_arrow(tmp_path: Path) -> None:
    log = LocalLog.create(tmp_path / "log", 1)
    with pytest.raises(InvalidSetting, match="A function as route works with"):
        ShardStream("events", log, transform=kind_in_spark, route=first_word)
