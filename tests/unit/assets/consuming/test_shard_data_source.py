"""How ranges are packed into tasks, and how a batch gets the exact form that Spark expects."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.assets.consuming.shard_data_source import (
    RECORDS_PER_TASK_MIN,
    ShardDataSource,
    ShardRangesReader,
    add,
    exact,
    pack,
    read_options,
)
from dagster_leasehold.assets.output.attempt_reports import RangeStatistics
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import ReadRange, record_schema

MANY = RECORDS_PER_TASK_MIN


def ranges(*records: int) -> list[ReadRange]:
    return [ReadRange(ShardId(str(n)), "0", str(count), count) for n, count in enumerate(records)]


def test_few_records_are_one_task() -> None:
    assert len(pack(ranges(10, 10, 10), 4)) == 1


def test_long_ranges_are_spread_evenly() -> None:
    packed = pack(ranges(8 * MANY, MANY, MANY, MANY, MANY, 4 * MANY), 2)
    assert sorted(sum(range_.records for range_ in task) for task in packed) == [8 * MANY] * 2


def test_an_unknown_length_counts_as_long() -> None:
    packed = pack(ranges(0, 0, 0), 4)
    assert len(packed) == 3


@given(st.lists(st.integers(0, 10 * MANY), min_size=1, max_size=60), st.integers(1, 16))
def test_every_range_is_packed_once(records: list[int], tasks_max: int) -> None:
    packed = pack(ranges(*records), tasks_max)
    assert 1 <= len(packed) <= tasks_max
    assert all(packed)
    assert sorted(range_.shard for task in packed for range_ in task) == sorted(
        range_.shard for range_ in ranges(*records)
    )


def test_nothing_to_read_is_one_empty_part(tmp_path) -> None:
    """Goal: Spark would turn an empty list of parts into one part that is None."""
    options = read_options({"source": "none"}, [], 4, tmp_path)
    reader = ShardDataSource(options).reader(None)
    [part] = reader.partitions()
    assert list(reader.read(part)) == []


def test_ranges_travel_as_options_unchanged(tmp_path) -> None:
    given_ranges = [ReadRange(ShardId("a.b-c_1"), "it's", '"{}"', 3)]
    reader = ShardRangesReader(read_options({"source": "x"}, given_ranges, 4, tmp_path))
    [part] = reader.partitions()
    assert part.ranges == tuple(given_ranges)


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


def test_statistics_of_batches() -> None:
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


def test_the_schema_is_the_one_of_every_source() -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    promised = ShardDataSource({}).schema().replace(" ", ":").replace(",:", ",")
    assert from_arrow_schema(record_schema()).simpleString() == f"struct<{promised}>"
