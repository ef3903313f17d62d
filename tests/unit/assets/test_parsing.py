"""Parsing of Arrow tables: its cost, and the values that go to quarantine."""

from __future__ import annotations

from time import thread_time

import pyarrow as pa
import pytest

from dagster_leasehold.assets.parsing import parse_csv, parse_json
from tests.unit.assets.growing_values import SHAPES, Shape

KIB = 1024
NO_OBJECT = "value is not a JSON object of the expected fields"
NO_LINE = "value is not a line of CSV with the 2 expected fields"


def seconds_per_byte(shape: Shape, size: int, records: int) -> float:
    """Return the processor's time for each byte of so many equal records."""
    values = [shape.of(size)] * records
    table = pa.table({"value": pa.array(values, pa.large_binary())})
    before = thread_time()
    if shape.separator is None:
        parse_json(table, shape.schema)
    else:
        parse_csv(table, shape.schema, separator=shape.separator)
    return (thread_time() - before) / sum(map(len, values))


def too_slow(shape: Shape, sizes: list[int]) -> str:
    """Return what is wrong with the time of a record; empty if it grows linearly.

    Records of 1 KiB show the least cost of a byte: as many of them as the record is long, up to 64.
    """
    for size in sizes:
        small = min(seconds_per_byte(shape, KIB, min(size // KIB, 64)) for _ in range(3))
        for _ in range(5):
            if (large := seconds_per_byte(shape, size, 1)) <= 3 * small:
                break
        else:
            return f"{shape}: {large / small:.1f} times as much for each of {size:,} bytes"
    return ""


def test_no_record_takes_more_than_linear_time() -> None:
    """Goal: no value makes a batch slower than its number of bytes explains."""
    assert [each for shape in SHAPES if (each := too_slow(shape, [8 * KIB, 64 * KIB]))] == []


@pytest.mark.release
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("form", ["JSON", "CSV"])
def test_no_record_of_up_to_10_mb_takes_more_than_linear_time(form: str) -> None:
    shapes = [shape for shape in SHAPES if str(shape).startswith(form)]
    sizes = [KIB << doubling for doubling in range(3, 14)] + [10_000_000]
    assert [each for shape in shapes if (each := too_slow(shape, sizes))] == []


def errors(result: pa.Table) -> list[str | None]:
    return result.column("quarantine_error").to_pylist()


@pytest.mark.parametrize("number", ["1769846400", "1769846400000", "1769846400000000", "-1"])
def test_a_number_in_a_field_of_times_goes_to_quarantine(number: str) -> None:
    """Goal: milliseconds never become another time where seconds are meant, nor the reverse."""
    values = [b'{"at":%s}', b'{"all":["2026-01-31T08:00:00Z",%s]}', b'{"in":{"x":{"at":%s}}}']
    good = b'{"at":"2026-01-31T08:00:00Z"}'
    table = pa.table({"value": [good, *(value % number.encode() for value in values)]})
    schema = "at TIMESTAMP, all ARRAY<TIMESTAMP>, in MAP<STRING, STRUCT<at: TIMESTAMP>>"
    result = parse_json(table, schema)
    assert errors(result) == [None, NO_OBJECT, NO_OBJECT, NO_OBJECT]
    assert [at and at.year for at in result.column("at").to_pylist()] == [2026, None, None, None]


def test_all_parsed_times_are_in_the_years_1_to_9999() -> None:
    lines = {
        b"0001-01-01,0001-01-01T00:00:00Z": None,
        b"9999-12-31,9999-12-31T23:59:59.999999Z": None,
        b"0000-12-31,": NO_LINE,
        b"10000-01-01,": NO_LINE,
        b"-0001-01-01,": NO_LINE,
        b",9999-12-31T23:59:59-00:01": NO_LINE,
        b",0001-01-01T00:00:00+00:01": NO_LINE,
        b",57868-01-01T00:00:00Z": NO_LINE,
    }
    for kind in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        own = [line.replace(b"Z", b"") if kind != "TIMESTAMP" else line for line in lines]
        result = parse_csv(pa.table({"value": own}), f"day DATE, at {kind}")
        assert errors(result) == list(lines.values())
        for column in ("day", "at"):
            assert len(result.column(column).to_pylist()) == len(lines)


def test_the_last_value_of_a_repeated_key_counts() -> None:
    """Goal: no map has a key twice, which DuckDB refuses to read."""
    values = [
        b'{"tags":{"x":1,"y":2}}',
        b'{"tags":{"x":1,"x":2}}',
        b'{"in":[{"tags":{"x":1,"y":2,"x":3}}]}',
        b'{"tags":{"x":1},"tags":{"x":2}}',
        b'{"tags":{"\\u0078":1,"x":2}}',
    ]
    schema = "tags MAP<STRING, INT>, in ARRAY<STRUCT<tags: MAP<STRING, INT>>>"
    result = parse_json(pa.table({"value": values}), schema)
    assert errors(result) == [None] * 5
    tags = result.column("tags").to_pylist()
    assert [tag and dict(tag) for tag in tags] == [
        {"x": 1, "y": 2},
        {"x": 2},
        None,
        {"x": 2},
        {"x": 2},
    ]
    assert result.column("in")[2].as_py() == [{"tags": [("x", 3), ("y", 2)]}]
