"""Records of every type as lines of JSON: each line is valid for any content."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dagster_leasehold.orchestration.commands.records import json_lines

US = pa.timestamp("us", "UTC")
PAIR = pa.struct([("x", pa.int32()), ("y", pa.float64())])
TEXTS = pa.map_(pa.string(), pa.int32())
CASES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "no number": (pa.float64(), float("nan"), "nan"),
    "no finite one": (pa.float32(), float("-inf"), "-inf"),
    "inside of others": (pa.list_(PAIR), [{"x": 1, "y": float("inf")}], [{"x": 1, "y": "inf"}]),
    "a decimal": (pa.decimal128(5, 2), Decimal("1.50"), "1.50"),
    "a moment": (US, 0, "1970-01-01T00:00:00.000000Z"),
    "moments": (pa.list_(US), [0], ["1970-01-01T00:00:00.000000Z"]),
    "a day": (pa.date32(), 0, "1970-01-01"),
    "a time": (pa.time64("us"), 1_000_000, "00:00:01"),
    "bytes in a list": (pa.list_(pa.binary()), [b"a", b"\xff"], ["a", "/w=="]),
    "a map": (pa.map_(pa.string(), pa.int32()), [("a", 1), ("b", None)], {"a": 1, "b": None}),
    "keys of numbers": (pa.map_(pa.int32(), pa.float64()), [(1, float("nan"))], {"1": "nan"}),
    "keys of bytes": (pa.map_(pa.binary(), pa.int32()), [(b"\xff", 1)], {"/w==": 1}),
    "keys of moments": (pa.map_(US, pa.int32()), [(0, 1)], {"1970-01-01T00:00:00.000000Z": 1}),
    "keys of structs": (
        pa.map_(PAIR, pa.int32()),
        [({"x": 1, "y": 2}, 3)],
        {'{"x": 1, "y": 2.0}': 3},
    ),
    "lines": (pa.string(), 'a\nb"\u2028', 'a\nb"\u2028'),
    "nothing": (pa.map_(PAIR, pa.int32()), None, None),
}


@pytest.mark.parametrize("name", CASES)
def test_each_record_is_one_valid_line(name: str) -> None:
    kind, value, expected = CASES[name]
    batch = pa.RecordBatch.from_arrays([pa.array([value], kind)], ["a b"])

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    [line] = json_lines(batch)
    assert line.count("\n") == 1
    assert json.loads(line, parse_constant=refuse) == {"a b": expected}
