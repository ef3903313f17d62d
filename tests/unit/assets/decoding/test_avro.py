"""Avro in columns, beside fastavro, which decodes value by value."""

from __future__ import annotations

import io
import json
import random
import time
import uuid
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_leasehold.assets.decoding.avro_schemas import AvroDecoder
from dagster_leasehold.assets.decoding.payloads import Payloads
from dagster_leasehold.assets.errors import SchemaUnusable

MOMENT = datetime(2026, 1, 31, 8, 0, 0, 250_000, UTC)
LOGICAL = [
    ({"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}, Decimal("-1234.50")),
    (
        {
            "type": "fixed",
            "name": "Amount",
            "size": 6,
            "logicalType": "decimal",
            "precision": 12,
            "scale": 3,
        },
        Decimal("-1.125"),
    ),
    ({"type": "int", "logicalType": "date"}, date(2026, 1, 31)),
    ({"type": "int", "logicalType": "time-millis"}, time_of_day(8, 1, 2, 3000)),
    ({"type": "long", "logicalType": "time-micros"}, time_of_day(8, 1, 2, 3)),
    ({"type": "long", "logicalType": "timestamp-millis"}, MOMENT),
    ({"type": "long", "logicalType": "timestamp-micros"}, MOMENT),
    ({"type": "long", "logicalType": "local-timestamp-millis"}, MOMENT.replace(tzinfo=None)),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, MOMENT.replace(tzinfo=None)),
]


def encoded(schema: Any, *values: Any) -> list[bytes]:
    parsed = fastavro.parse_schema(schema)
    result: list[bytes] = []
    for value in values:
        target = io.BytesIO()
        fastavro.schemaless_writer(target, parsed, value)
        result.append(target.getvalue())
    return result


def decoded(schema: Any, values: list[bytes]) -> tuple[list[Any], list[bool]]:
    decoder = AvroDecoder(json.dumps(schema), name="schema 7")
    payloads = Payloads.of(
        pa.array([b"before", *values, b"after"], pa.binary()).slice(1, len(values))
    )
    columns, bad = decoder.decode(payloads)
    for column, field in zip(columns, decoder.fields, strict=True):
        column.validate(full=True)
        assert column.type == field.type
    table = pa.Table.from_arrays(columns, schema=decoder.fields)
    return table.to_pylist(), bad.tolist()


def record(*fields: tuple[str, Any], name: str = "Record") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": each, "type": kind} for each, kind in fields],
    }


@pytest.mark.parametrize(("kind", "value"), LOGICAL, ids=lambda case: str(case)[:60])
def test_logical_types(kind: Any, value: Any) -> None:
    schema = record(("field", kind))
    rows, bad = decoded(schema, encoded(schema, {"field": value}))
    assert (rows, bad) == ([{"field": value}], [False])


def test_a_uuid_is_text() -> None:
    one = uuid.UUID(int=2**127 + 12345)
    text = {"type": "string", "logicalType": "uuid"}
    octets = {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}
    schema = record(("text", text), ("octets", octets))
    rows, _ = decoded(schema, encoded(schema, {"text": one, "octets": one.bytes}))
    assert rows == [{"text": str(one), "octets": str(one)}]


def test_nanoseconds_become_microseconds_rounded_down() -> None:
    schema = record(("at", {"type": "long", "logicalType": "timestamp-nanos"}))
    plain = record(("at", "long"))
    rows, _ = decoded(schema, encoded(plain, {"at": -1}, {"at": 1999}))
    start = datetime(1970, 1, 1, tzinfo=UTC)
    assert [row["at"] - start for row in rows] == [
        timedelta(microseconds=-1),
        timedelta(microseconds=1),
    ]


PRIMITIVES: dict[Any, Any] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=40),
    "string": st.text(max_size=20),
}


@st.composite
def schemas(draw: Any, depth: int = 3) -> tuple[Any, Any]:
    """A schema, and the strategy of its values."""
    names = draw(st.shared(st.just(iter(range(10**6))), key="names"))
    kinds = ["primitive", "enum", "fixed", "decimal", "optional"]
    kind = draw(st.sampled_from(kinds + (["record", "array", "map"] if depth else [])))
    if kind == "enum":
        symbols = ["A", "B", "C"]
        return {"type": "enum", "name": f"E{next(names)}", "symbols": symbols}, st.sampled_from(
            symbols
        )
    if kind == "fixed":
        fixed = {"type": "fixed", "name": f"F{next(names)}", "size": 5}
        return fixed, st.binary(min_size=5, max_size=5)
    if kind == "decimal":
        digits = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 4}
        return digits, st.decimals(-(10**33), 10**33, places=4)
    if kind == "optional":
        inner, values = draw(schemas(max(0, depth - 1)))
        if isinstance(inner, list):
            return inner, values
        return draw(st.permutations(["null", inner])), st.none() | values
    if kind == "primitive":
        primitive = draw(st.sampled_from(sorted(PRIMITIVES)))
        return primitive, PRIMITIVES[primitive]
    if kind == "record":
        parts = [draw(schemas(depth - 1)) for _ in range(draw(st.integers(1, 4)))]
        fields = [(f"f{index}", part[0]) for index, part in enumerate(parts)]
        values = st.fixed_dictionaries({f"f{i}": part[1] for i, part in enumerate(parts)})
        return record(*fields, name=f"R{next(names)}"), values
    inner, values = draw(schemas(depth - 1))
    if kind == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=4)
    return {"type": "map", "values": inner}, st.dictionaries(
        st.text(max_size=5), values, max_size=4
    )


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_columns_have_the_values_of_fastavro(data: Any) -> None:
    inner, values = data.draw(schemas())
    schema = record(("field", inner))
    raw = encoded(schema, *({"field": value} for value in data.draw(st.lists(values, min_size=1))))
    rows, bad = decoded(schema, raw)
    parsed = fastavro.parse_schema(schema)
    expected = [fastavro.schemaless_reader(io.BytesIO(value), parsed, None) for value in raw]
    decoder = AvroDecoder(json.dumps(schema), name="schema 7")
    assert rows == pa.array(expected, pa.struct([*decoder.fields])).to_pylist()
    assert not any(bad)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_bytes_harm_no_other_record(data: Any) -> None:
    inner, values = data.draw(schemas())
    schema = record(("first", "string"), ("field", inner), ("last", "long"))
    examples = data.draw(st.lists(values, min_size=3, max_size=6))
    raw = encoded(schema, *({"first": "a", "field": value, "last": 7} for value in examples))
    expected, _ = decoded(schema, raw)
    damaged = bytearray(raw[1])
    for place in data.draw(st.lists(st.integers(0, len(damaged) - 1), max_size=3)):
        damaged[place] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()):
        damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    rows, bad = decoded(schema, [raw[0], bytes(damaged), *raw[2:]])
    assert [rows[0], *rows[2:]] == [expected[0], *expected[2:]]
    assert not any([bad[0], *bad[2:]])


def test_values_that_do_not_conform_are_bad() -> None:
    schema = record(("id", "int"), ("name", "string"), ("kind", ["null", "string"]))
    [good] = encoded(schema, {"id": 1, "name": "a", "kind": None})
    big = encoded(
        record(("id", "long"), ("name", "string"), ("kind", ["null", "string"])),
        {"id": 2**40, "name": "a", "kind": None},
    )
    cases = [
        good,
        good + b"\0",
        good[:-1],
        b"",
        *big,
        b"\2\2\xff\0",
        b"\2\2a\6",
        b"\2\1a\0",
        b"\xff" * 12,
    ]
    rows, bad = decoded(schema, cases)
    assert bad == [False] + [True] * 8
    assert rows[0] == {"id": 1, "name": "a", "kind": None}


def test_unions_of_several_types() -> None:
    schema = record(
        ("wide", ["int", "long"]),
        ("real", ["null", "float", "double"]),
        ("mixed", ["null", "string", "int"]),
    )
    rows, bad = decoded(
        schema,
        encoded(
            schema,
            {"wide": 1, "real": 0.5, "mixed": "a"},
            {"wide": 2**40, "real": None, "mixed": 3},
            {"wide": 2, "real": 1e300, "mixed": None},
        ),
    )
    assert [row["wide"] for row in rows] == [1, 2**40, 2]
    assert [row["real"] for row in rows] == [0.5, None, 1e300]
    assert [row["mixed"] for row in rows] == [
        {"member0": "a", "member1": None},
        {"member0": None, "member1": 3},
        None,
    ]
    assert not any(bad)


def test_a_schema_that_is_no_record_is_one_column() -> None:
    assert decoded("string", encoded("string", "a", "b"))[0] == [{"decoded": "a"}, {"decoded": "b"}]


def test_a_list_of_very_many_items_takes_linear_time() -> None:
    schema = record(
        ("items", {"type": "array", "items": record(("id", "long"), ("name", "string"), name="I")})
    )
    many = {"items": [{"id": index, "name": "x"} for index in range(100_000)]}
    few = {"items": [{"id": 1, "name": "y"}]}
    raw = encoded(schema, few, many, few, {"items": []})
    began = time.monotonic()
    rows, bad = decoded(schema, [*raw, raw[1][:-1]])
    assert time.monotonic() - began < 5
    assert rows[:4] == [few, many, few, {"items": []}]
    assert bad == [False] * 4 + [True]


def test_blocks_with_sizes_and_several_blocks() -> None:
    schema = record(("items", {"type": "array", "items": "long"}))
    value = bytes([3, 4, 2, 4, 2, 6, 0])  # two items in 2 bytes, one item, the end
    assert decoded(schema, [value]) == ([{"items": [1, 2, 3]}], [False])


@pytest.mark.parametrize(
    "items", ["long", "boolean", "string", ["null", "long"], record(name="Nothing")]
)
def test_a_list_does_not_read_past_its_value(items: Any) -> None:
    schema = record(("items", {"type": "array", "items": items}))
    longest = b"\xff" * 9 + b"\x01"
    value = b"\xa0\x1f" + longest * 200  # 2,000 items in 2,000 bytes
    for values in ([value], [value, value], [value, b"\0"]):
        _, bad = decoded(schema, values)
        assert bad[0]
        assert bad[-1] == (values[-1] == value)


def test_an_empty_record_has_no_fields() -> None:
    schema = record(("id", "long"), ("nothing", record(name="Nothing")))
    assert decoded(schema, encoded(schema, {"id": 1, "nothing": {}})) == (
        [{"id": 1, "nothing": {}}],
        [False],
    )


def test_an_impossible_count_needs_no_memory() -> None:
    for items in ("long", "null", record(name="Empty")):
        schema = record(("items", {"type": "array", "items": items}))
        assert decoded(schema, [b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"])[1] == [True]


def test_references() -> None:
    address = record(("city", "string"), name="com.shop.Address")
    customer = record(
        ("home", "com.shop.Address"), ("work", ["null", "com.shop.Address"]), name="Customer"
    )
    decoder = AvroDecoder(json.dumps(customer), [json.dumps(address)], "schema 9")
    named: dict[str, Any] = {}
    fastavro.parse_schema(address, named_schemas=named)
    target = io.BytesIO()
    value = {"home": {"city": "Bonn"}, "work": None}
    fastavro.schemaless_writer(target, fastavro.parse_schema(customer, named_schemas=named), value)
    columns, bad = decoder.decode(Payloads.of(pa.array([target.getvalue()])))
    assert pa.Table.from_arrays(columns, schema=decoder.fields).to_pylist() == [value]
    assert not bad.any()


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (record(("next", ["null", "Node"]), name="Node"), "contains itself"),
        ("no-such-type", "is not valid"),
        ({"type": "record"}, "is not valid"),
        ({"type": "fixed", "name": "F", "size": 10**9}, "fixed length"),
    ],
)
def test_schemas_that_cannot_be_columns(schema: Any, reason: str) -> None:
    with pytest.raises(SchemaUnusable, match=reason):
        AvroDecoder(json.dumps(schema), name="schema 7")


def test_numbers_of_every_length() -> None:
    numbers = [
        sign * (2**power + offset)
        for power in range(63)
        for offset in (-1, 0, 1)
        for sign in (1, -1)
    ]
    numbers += [-(2**63), 2**63 - 1]
    random.Random(1).shuffle(numbers)
    schema = record(("n", "long"))
    rows, bad = decoded(schema, encoded(schema, *({"n": number} for number in numbers)))
    assert [row["n"] for row in rows] == numbers
    assert not any(bad)
    assert np.array(bad).dtype == np.bool_
