"""Records of readers in the promised form, in portions, and counted."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.assets.consuming import exact_records
from dagster_leasehold.assets.consuming.exact_records import add, exact, portions
from dagster_leasehold.assets.output.worker_results import RangeStatistics
from dagster_leasehold.shard_sources.source import record_schema


def batch(values: list[bytes | None]) -> pa.RecordBatch:
    rows = [
        {"shard_id": "0", "cursor": "0", "event_time": n, "value": v, "key": b"kk"}
        for n, v in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=record_schema())


def test_a_batch_of_other_arrow_types_is_cast() -> None:
    schema = record_schema()
    odd = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"v"], pa.large_binary()),
            "shard_id": pa.array(["0"], pa.string()).dictionary_encode(),
            "cursor": pa.array(["1"], pa.large_string()),
            "event_time": pa.array([1_000], pa.timestamp("ms", tz="UTC")),
            "key": pa.array([None], pa.binary()),
            "attributes": pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string())),
        }
    )
    [batch] = exact(odd)
    assert batch.schema.equals(schema)
    assert batch.to_pylist()[0]["value"] == b"v"
    assert exact(batch)[0] is batch


def test_statistics_of_batches_are_computed() -> None:
    empty = record_schema().empty_table().to_batches() or [
        pa.RecordBatch.from_pylist([], schema=record_schema())
    ]
    assert add(RangeStatistics(), empty[0]) == RangeStatistics()
    batch = pa.RecordBatch.from_pylist(
        [
            {"shard_id": "0", "cursor": "0", "event_time": 5, "key": b"kk", "value": b"v"},
            {"shard_id": "0", "cursor": "1", "event_time": 3, "key": None, "value": b"vvv"},
        ],
        schema=record_schema(),
    )
    seen = add(add(RangeStatistics(), batch), batch)
    assert (seen.records, seen.bytes) == (4, 12)
    assert seen.first_event_time < seen.last_event_time


@given(st.lists(st.lists(st.binary(max_size=9), max_size=9), max_size=9))
def test_statistics_do_not_depend_on_slices_and_portions(parts: list[list[bytes]]) -> None:
    values = [value for part in parts for value in part]
    expected = add(RangeStatistics(), batch(list(values)))
    whole = batch([b"before", *values, b"after"])
    sliced = add(RangeStatistics(), pa.Table.from_batches([whole]).slice(1, len(values)))
    assert (sliced.records, sliced.bytes) == (expected.records, expected.bytes)
    assert expected.bytes == sum(map(len, values)) + 2 * len(values)
    tables = list(portions(iter([batch(list(part)) for part in parts])))
    assert [value for table in tables for value in table["value"].to_pylist()] == values


def test_portions_are_bounded_by_records_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_records, "PORTION_RECORDS", 4)
    tables = list(portions(iter([batch([b"a"]) for _ in range(10)])))
    assert [table.num_rows for table in tables] == [4, 4, 2]
    monkeypatch.setattr(exact_records, "PORTION_BYTES", 100)
    tables = list(portions(iter([batch([b"a" * 99]) for _ in range(3)])))
    assert [table.num_rows for table in tables] == [1, 1, 1]
