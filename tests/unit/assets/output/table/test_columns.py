"""Columns are matched by name; types that a table cannot have are refused in one sentence."""

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.output.table.columns import (
    Columns,
    arrow_schema,
    columns_of,
    in_stored_types,
    joined,
    merged,
    stored_schema,
)
from dagster_leasehold.shard_sources.source import record_schema


def columns(**types: pa.DataType):
    return columns_of(stored_schema(pa.schema(list(types.items()))))


def test_the_raw_columns_are_kept_in_their_order() -> None:
    names = [column["name"] for column in columns_of(stored_schema(record_schema()))]
    assert names == record_schema().names
    assert columns_of(record_schema())[2] == {"name": "event_time", "type": "timestamptz"}
    assert columns_of(record_schema())[5]["type"] == {"map": ["string", "string"]}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.int8(), "int"),
        (pa.uint16(), "int"),
        (pa.uint32(), "long"),
        (pa.uint64(), "decimal(20, 0)"),
        (pa.float16(), "float"),
        (pa.float64(), "double"),
        (pa.bool_(), "boolean"),
        (pa.decimal128(12, 3), "decimal(12, 3)"),
        (pa.decimal256(38, 3), "decimal(38, 3)"),
        (pa.timestamp("ns"), "timestamp"),
        (pa.timestamp("s", tz="Europe/Berlin"), "timestamptz"),
        (pa.date64(), "date"),
        (pa.time32("s"), "time"),
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.dictionary(pa.int32(), pa.string()), "string"),
        (pa.binary(4), "fixed[4]"),
        (pa.large_binary(), "binary"),
        (pa.uuid(), "fixed[16]"),
        (pa.large_list(pa.int8()), {"list": "int"}),
        (pa.list_(pa.float32(), 3), {"list": "float"}),
        (pa.map_(pa.string(), pa.uint8()), {"map": ["string", "int"]}),
        (
            pa.struct([("a", pa.int16()), ("b", pa.list_(pa.date32()))]),
            {"struct": [{"name": "a", "type": "int"}, {"name": "b", "type": {"list": "date"}}]},
        ),
    ],
)
def test_types_of_arrow_have_an_iceberg_type(kind: pa.DataType, expected: object) -> None:
    assert columns(x=kind) == [{"name": "x", "type": expected}]


@pytest.mark.parametrize(
    "kind",
    [
        pa.duration("s"),
        pa.decimal256(50, 2),
        pa.month_day_nano_interval(),
        pa.list_view(pa.int8()),  # PyArrow cannot cast it
    ],
)
def test_a_type_that_no_table_has_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(
        TransformError, match=r"Column 'x' has the type .* which a table cannot have"
    ):
        columns(x=kind)


NOTHING = pa.struct([])


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        NOTHING,
        pa.list_(pa.null()),
        pa.large_list(NOTHING),
        pa.list_(pa.list_(pa.null(), 2)),
        pa.map_(pa.string(), pa.null()),
        pa.map_(NOTHING, pa.string()),
        pa.struct([("a", pa.null()), ("b", pa.list_(NOTHING))]),
        pa.dictionary(pa.int8(), pa.null()),
    ],
)
def test_a_column_without_a_type_is_left_out(kind: pa.DataType) -> None:
    assert columns(x=kind, y=pa.int32()) == [{"name": "y", "type": "int"}]


def test_parts_without_a_type_are_left_out_at_any_depth() -> None:
    untyped = pa.struct([("a", pa.list_(pa.null())), ("b", pa.int32()), ("c", NOTHING)])
    typed = pa.struct([("b", pa.int32())])
    nested = {"s": untyped, "l": pa.list_(untyped), "m": pa.map_(pa.string(), pa.list_(untyped))}
    assert columns(**nested) == columns(
        s=typed, l=pa.list_(typed), m=pa.map_(pa.string(), pa.list_(typed))
    )
    value = {"a": [None], "b": 1, "c": {}}
    rows = pa.RecordBatch.from_pydict(
        {
            "s": pa.array([None, value, None], untyped),
            "l": pa.array([[], [value, None], None], nested["l"]),
            "m": pa.array([None, [("k", [value])], []], nested["m"]),
        }
    ).slice(1)
    assert in_stored_types(rows, stored_schema(rows.schema)).to_pylist() == [
        {"s": {"b": 1}, "l": [{"b": 1}, None], "m": [("k", [{"b": 1}])]},
        {"s": None, "l": None, "m": []},
    ]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ([("user", pa.string()), ("User", pa.string())], "named 'user' and 'User', which engines"),
        ([("x", pa.int8()), ("x", pa.int8())], "named 'x' and 'x'"),
        ([("s", pa.struct([("b", pa.int8()), ("B", pa.int8())]))], r"'s\.b' and 's\.B'"),
        ([("s.b", pa.int8()), ("s", pa.struct([("b", pa.int8())]))], r"'s\.b' and 's\.b'"),
        ([("l", pa.list_(pa.int8())), ("l.element", pa.int8())], r"'l\.element'"),
        ([("_file", pa.string())], "'_file' has a name that Iceberg reserves"),
        ([("_Pos", pa.int64())], "'_Pos' has a name that Iceberg reserves"),
    ],
)
def test_names_that_engines_cannot_tell_apart_are_refused(
    fields: list[tuple[str, pa.DataType]], sentence: str
) -> None:
    with pytest.raises(TransformError, match=sentence):
        columns_of(stored_schema(pa.schema(fields)))


@pytest.mark.parametrize(
    ("before", "now", "sentence"),
    [
        (columns(user=pa.string()), columns(User=pa.string()), "named 'user' and 'User', which"),
        (columns(s=pa.struct([("b", pa.int8())])), columns(**{"S.b": pa.int8()}), r"and 'S\.b'"),
        (
            columns(s=pa.struct([("b", pa.int8())])),
            columns(s=pa.struct([("B", pa.int8())])),
            r"'s\.b' and 's\.B'",
        ),
    ],
)
def test_a_name_that_engines_cannot_tell_from_one_of_the_table_is_refused(
    before: Columns, now: Columns, sentence: str
) -> None:
    with pytest.raises(TransformError, match=sentence):
        merged(before, now)


def test_rows_are_cast_to_the_types_of_a_table() -> None:
    schema = pa.schema([("at", pa.timestamp("ns", tz="UTC")), ("n", pa.uint64()), ("x", pa.null())])
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    rows = pa.RecordBatch.from_pydict(
        {"at": [moment], "n": [2**64 - 1], "x": [None]}, schema=schema
    )
    stored = in_stored_types(rows, stored_schema(schema))
    assert stored.to_pylist() == [{"at": moment, "n": Decimal(2**64 - 1)}]


def test_a_time_finer_than_microseconds_is_refused() -> None:
    schema = pa.schema([("at", pa.timestamp("ns"))])
    rows = pa.RecordBatch.from_arrays([pa.array([1], pa.timestamp("ns"))], schema=schema)
    with pytest.raises(TransformError, match="Column 'at' cannot be stored as timestamp"):
        in_stored_types(rows, stored_schema(schema))


def test_new_and_wider_columns_are_accepted() -> None:
    agreed = columns(n=pa.int32(), f=pa.float64(), d=pa.decimal128(8, 2), gone=pa.string())
    file = columns(new=pa.bool_(), d=pa.decimal128(10, 2), f=pa.float32(), n=pa.int64())
    both = merged(agreed, file)
    assert [(column["name"], column["type"]) for column in both] == [
        ("n", "long"),
        ("f", "double"),
        ("d", "decimal(10, 2)"),
        ("gone", "string"),
        ("new", "boolean"),
    ]
    assert merged(both, agreed) == merged(both, file) == both


def test_new_and_wider_nested_fields_are_accepted() -> None:
    inner = pa.struct([("a", pa.int32())])
    wider = pa.struct([("a", pa.int64()), ("b", pa.string())])
    agreed = columns(s=inner, l=pa.list_(inner), m=pa.map_(pa.string(), inner))
    file = columns(s=wider, l=pa.list_(wider), m=pa.map_(pa.string(), wider))
    assert merged(agreed, file) == file


@pytest.mark.parametrize(
    ("before", "now", "sentence"),
    [
        (pa.string(), pa.int32(), "Column 'x' is string in the table, but int in the new records"),
        (pa.int64(), pa.float64(), "Column 'x' is long"),
        (pa.decimal128(8, 2), pa.decimal128(8, 3), r"decimal\(8, 3\)"),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC"), "timestamptz"),
        (pa.list_(pa.string()), pa.string(), "list of string"),
        (pa.map_(pa.int32(), pa.int32()), pa.map_(pa.int64(), pa.int32()), "map of int to int"),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.string())]), "Column 'x.a' is int"),
    ],
)
def test_a_type_that_does_not_fit_is_refused(
    before: pa.DataType, now: pa.DataType, sentence: str
) -> None:
    with pytest.raises(TransformError, match=sentence):
        merged(columns(x=before), columns(x=now))


def test_columns_have_one_type_of_arrow() -> None:
    every = {
        "b": pa.bool_(),
        "i": pa.int32(),
        "l": pa.int64(),
        "f": pa.float32(),
        "d": pa.float64(),
        "day": pa.date32(),
        "clock": pa.time64("us"),
        "local": pa.timestamp("us"),
        "at": pa.timestamp("us", tz="UTC"),
        "text": pa.string(),
        "raw": pa.binary(),
        "uuid": pa.binary(16),
        "price": pa.decimal128(38, 3),
    }
    nested = pa.struct(list(every.items()))
    schema = pa.schema(
        [
            *every.items(),
            ("s", nested),
            ("list", pa.list_(pa.list_(nested))),
            ("map", pa.map_(pa.string(), nested)),
        ]
    )
    assert arrow_schema(columns_of(schema)) == schema


def test_columns_of_two_files_are_merged_if_they_fit() -> None:
    one = columns(n=pa.int32(), s=pa.struct([("a", pa.int32())]), old=pa.string())
    other = columns(s=pa.struct([("a", pa.int64()), ("b", pa.bool_())]), n=pa.int64())
    both = columns(
        n=pa.int64(), s=pa.struct([("a", pa.int64()), ("b", pa.bool_())]), old=pa.string()
    )
    assert joined(one, other) == both
    rows = pa.RecordBatch.from_pylist([{"s": {"a": 1, "b": True}, "n": 2}, {"s": None, "n": None}])
    assert in_stored_types(rows, arrow_schema(both)).to_pylist() == [
        {"n": 2, "s": {"a": 1, "b": True}, "old": None},
        {"n": None, "s": None, "old": None},
    ]
    assert joined(one, columns(n=pa.string())) is None
    assert joined(one, columns(N=pa.int32())) is None
