"""Partition values are those of Iceberg, for all types, and no row is lost between partitions."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.output.table.partition_values import partitioned
from dagster_leasehold.assets.partition_fields import PartitionField
from dagster_leasehold.lease_store.errors import InvalidSetting

EPOCH = date(1970, 1, 1)
MOMENT = datetime(1970, 1, 1, tzinfo=UTC)
DAYS = st.integers(-700_000, 2_900_000)
MOMENTS = st.integers(-62_000_000_000_000_000, 253_000_000_000_000_000)
TYPES: dict[str, tuple[pa.DataType, Any, st.SearchStrategy[Any]]] = {
    "int": (pa.int32(), IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), LongType(), st.integers(-(2**63), 2**63 - 1)),
    "string": (pa.string(), StringType(), st.text(max_size=40)),
    "binary": (pa.binary(), BinaryType(), st.binary(max_size=40)),
    "date": (pa.date32(), DateType(), DAYS),
    "timestamp": (pa.timestamp("us"), TimestampType(), MOMENTS),
    "timestamptz": (pa.timestamp("us", "UTC"), TimestamptzType(), MOMENTS),
}
TIMES = ("year", "month", "day")
CASES = [
    *((kind, f"bucket({width}, x)") for kind in TYPES for width in (1, 7, 100)),
    *((kind, f"truncate({width}, x)") for kind in ("int", "long", "string") for width in (1, 4)),
    *((kind, "x") for kind in TYPES if kind != "binary"),
    *((kind, f"{word}(x)") for kind in ("date", "timestamp", "timestamptz") for word in TIMES),
    *((kind, "hour(x)") for kind in ("timestamp", "timestamptz")),
]


def values_of(rows: pa.RecordBatch, *texts: str) -> list[Any]:
    """The partition of each row, in the order of the rows."""
    numbered = rows.append_column("place", pa.array(range(rows.num_rows), pa.int64()))
    values: dict[int, Any] = {}
    for partition, own in partitioned(numbered, [PartitionField.parse(text) for text in texts]):
        places = own.column("place").to_pylist()
        assert places == sorted(places)
        assert not values.keys() & set(places)
        values |= dict.fromkeys(places, tuple(value for _, value in partition))
    return [values[place] for place in range(rows.num_rows)]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize(("kind", "text"), CASES)
def test_values_are_those_of_iceberg(kind: str, text: str, data: st.DataObject) -> None:
    arrow, iceberg, drawn = TYPES[kind]
    values = data.draw(st.lists(st.none() | drawn, min_size=1, max_size=20))
    whole = pa.int32() if kind == "date" else pa.int64()
    column = pa.array(values, whole if "date" in kind or "time" in kind else arrow).cast(arrow)
    field = PartitionField.parse(text)
    name = f"{field.transform}[{field.width}]" if field.width else field.transform
    expected = [parse_transform(name).transform(iceberg)(value) for value in values]
    rows = pa.RecordBatch.from_arrays([column], ["x"])
    assert [value for (value,) in values_of(rows, text)] == expected
    assert [value for (value,) in values_of(rows.slice(1), text)] == expected[1:]


def test_all_fields_together_divide_the_rows() -> None:
    draw = random.Random(7)
    rows = pa.RecordBatch.from_pydict(
        {
            "user": pa.array([draw.choice([None, "a", "b", "ä"]) for _ in range(500)]),
            "n": pa.array([draw.randrange(40) for _ in range(500)], pa.int32()),
            "tags": pa.array([[("k", "v")] for _ in range(500)], pa.map_(pa.string(), pa.string())),
        }
    )
    values = values_of(rows, "user", "truncate(10, n)", "missing")
    own = zip(rows["user"].to_pylist(), rows["n"].to_pylist(), strict=True)
    assert values == [(user, n - n % 10, None) for user, n in own]


def test_the_shard_and_an_event_time_without_a_zone_are_no_part() -> None:
    at = pa.array([datetime(2026, 3, 1)], pa.timestamp("us"))  # noqa: DTZ001
    rows = pa.RecordBatch.from_pydict({"shard_id": ["0"], "event_time": at, "user": ["a"]})
    assert values_of(rows, "shard_id", "day(event_time)", "user") == [("a",)]


def test_an_event_time_outside_the_calendar_is_null_as_in_the_file() -> None:
    times = pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("us", "UTC"))
    rows = pa.RecordBatch.from_pydict({"event_time": times, "user": ["a", "a"]})
    assert values_of(rows, "day(event_time)", "user") == [(0, "a"), (None, "a")]


def test_a_very_long_text_is_no_partition() -> None:
    rows = pa.RecordBatch.from_pydict({"user": ["a", "b" * 300]})
    assert values_of(rows, "user") == [("a",), ()]


def test_hours_before_1970_are_negative() -> None:
    moment = MOMENT - timedelta(minutes=1)
    rows = pa.RecordBatch.from_pydict({"at": pa.array([moment], pa.timestamp("us", "UTC"))})
    assert values_of(rows, "hour(at)", "day(at)", "year(at)") == [(-1, -1, -1)]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.array([1.5]), "x"),
        (pa.array([[1]]), "bucket(4, x)"),
        (pa.array(["a"]), "day(x)"),
        (pa.array([EPOCH]), "hour(x)"),
        (pa.array([b"a"]), "truncate(2, x)"),
    ],
)
def test_a_column_of_another_type_is_refused(column: pa.Array, text: str) -> None:
    rows = pa.RecordBatch.from_arrays([column], ["x"])
    with pytest.raises(TransformError, match="which a table cannot partition by"):
        values_of(rows, text)


def test_the_text_of_a_field_is_read_back() -> None:
    for text in ("user", "day(at)", "bucket(16, user)", "truncate(4, user)", "shard_id"):
        assert str(PartitionField.parse(text)) == text
    assert str(PartitionField.parse("bucket(16,user)")) == "bucket(16, user)"
    for text in ("", "a b", "bucket(0, user)", "bucket(user)", "minute(at)", "day(a.b)"):
        with pytest.raises(InvalidSetting, match="is not valid: name a column"):
            PartitionField.parse(text)
