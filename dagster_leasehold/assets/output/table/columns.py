"""The columns of a table, agreed by name: their types in JSON, and how files and columns meet.

A column is an object of its `name` and its `type`. A primitive type is a word as Iceberg writes it
(`long`, `decimal(10, 2)`, `timestamptz`), a nested one is `{"list": type}`, `{"map": [key, value]}`
or `{"struct": [column, …]}`. Workers describe their files this way, so that nothing here needs more
than Arrow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.lease_store.errors import one_line, shown

if TYPE_CHECKING:
    import pyarrow as pa

ColumnType = str | dict[str, Any]
Column = dict[str, Any]
"""`name` and `type`, as JSON holds them."""
Columns = list[Column]

DECIMAL_DIGITS_MAX = 38
_DECIMAL = re.compile(r"decimal\((\d+), (\d+)\)")
_FIXED = re.compile(r"fixed\[(\d+)\]")
_WIDER = {"int": ("long",), "float": ("double",)}


class _DoesNotFit(Exception):
    """Two types of one column that no type holds both of; the path leads to the nested field."""

    def __init__(self, path: str, before: ColumnType, now: ColumnType) -> None:
        super().__init__(path)
        self.path, self.before, self.now = path, before, now


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema that rows are written with: of the types that a table has.

    Times become microseconds, unsigned numbers signed ones of twice the size, encodings plain. What
    has no type is left out, as no file of a table can hold it: a column that is null in all rows,
    one of lists that are all empty, a field of a struct without a value. A table reads what a file
    lacks as null.

    Raises:
        TransformError: a column's type has no counterpart in a table.
    """
    import pyarrow as pa

    return pa.schema(_stored_fields("", schema), metadata=schema.metadata)


def in_stored_types(rows: pa.RecordBatch, stored: pa.Schema) -> pa.RecordBatch:
    """Return rows in the columns of a stored schema: their own one, or one that they fit.

    Columns and fields that the rows lack are null.

    Raises:
        TransformError: a value is finer than the type that a table has for it.
    """
    import pyarrow as pa

    if rows.schema.equals(stored):
        return rows
    columns: list[pa.Array] = []
    for field in stored:
        if field.name not in rows.schema.names:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows.column(field.name)
        try:
            columns.append(column if column.type.equals(field.type) else column.cast(field.type))
        except pa.ArrowException as error:
            raise TransformError(
                f"Column {shown(field.name)} cannot be kept as {field.type}, the type that a table "
                f"has for it ({one_line(str(error))}): round its values, or return another type."
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=stored)


def columns_of(schema: pa.Schema) -> Columns:
    """Return the columns of a file that was written with a stored schema.

    Raises:
        TransformError: a column's type has no counterpart in a table, or engines cannot tell two
            names apart.
    """
    columns = [_column(field.name, _type_of(field.name, field.type)) for field in schema]
    _check_names(columns)
    return columns


def merged(agreed: Columns, file: Columns) -> Columns:
    """Return the agreed columns, widened and added to so that a file's columns fit.

    Columns of a file that lacks some are null there, in any order. The result equals
    `agreed` where the file brings nothing new.

    Raises:
        TransformError: a column of the file does not fit the agreed one of its name, or engines
            cannot tell it from another one.
    """
    try:
        columns = _merged_fields("", agreed, file)
    except _DoesNotFit as misfit:
        raise TransformError(
            f"Column {shown(misfit.path)} is {type_text(misfit.before)} in the table, and the "
            f"transform returned {type_text(misfit.now)}, which does not fit: return the type of "
            "the table, or give the column another name."
        ) from None
    if columns != agreed:
        _check_names(columns)
    return columns


def joined(one: Columns, other: Columns) -> Columns | None:
    """Return the columns that rows of two files fit; None if there are none."""
    import pyarrow as pa

    if one == other:
        return one
    try:
        both = merged(one, other)
        for each in (one, other):
            # Older releases of PyArrow cannot change the order of a struct's fields.
            rows = pa.RecordBatch.from_pylist([], arrow_schema(each))
            in_stored_types(rows, arrow_schema(both))
    except TransformError:
        return None
    return both


def arrow_schema(columns: Columns) -> pa.Schema:
    """Return the stored schema that has these columns."""
    import pyarrow as pa

    return pa.schema([_arrow_field(column) for column in columns])


def _check_names(columns: Columns) -> None:
    """Refuse names that differ in capitals at most, which most engines cannot tell apart.

    A nested field is named by its path, so that a dot in a column's name can make two names one.
    """
    names: dict[str, str] = {}
    for name in _paths(columns):
        if (other := names.get(name.lower())) is not None:
            raise TransformError(
                f"Two columns are named {shown(other)} and {shown(name)}, which engines that read "
                "the table cannot tell apart: rename one."
            )
        names[name.lower()] = name


def _paths(columns: Columns, prefix: str = "") -> Iterator[str]:
    for column in columns:
        path = f"{prefix}{column['name']}"
        yield path
        yield from _paths(_nested_columns(column["type"]), f"{path}.")


def _nested_columns(kind: ColumnType) -> Columns:
    """Return the fields inside a type, under the names that tables have for them."""
    if isinstance(kind, str):
        return []
    (form, inner), *_ = kind.items()
    if form == "list":
        return [_column("element", inner)]
    if form == "map":
        return [_column("key", inner[0]), _column("value", inner[1])]
    return inner


def _stored_fields(prefix: str, fields: Iterable[pa.Field]) -> list[pa.Field]:
    import pyarrow as pa

    stored = [(field, _stored(f"{prefix}{field.name}", field.type)) for field in fields]
    return [
        pa.field(field.name, kind, field.nullable) for field, kind in stored if kind is not None
    ]


def _stored(name: str, kind: pa.DataType) -> pa.DataType | None:
    """Return the type that a table has for one of Arrow; None if there is no value to have it."""
    import pyarrow as pa

    if pa.types.is_null(kind):
        return None
    if isinstance(kind, pa.BaseExtensionType):
        return _stored(name, kind.storage_type)
    if isinstance(kind, pa.DictionaryType):
        return _stored(name, kind.value_type)
    for is_kind, stored in _PLAIN:
        if getattr(pa.types, is_kind)(kind):
            return stored(pa, kind)
    return _stored_nested(name, kind)


def _stored_integer(arrow: Any, kind: Any) -> Any:
    if arrow.types.is_uint64(kind):
        return arrow.decimal128(20, 0)
    small = kind.bit_width < 32 or kind.equals(arrow.int32())
    return arrow.int32() if small else arrow.int64()


def _stored_decimal(arrow: Any, kind: Any) -> Any:
    fits = kind.precision <= DECIMAL_DIGITS_MAX
    return arrow.decimal128(kind.precision, kind.scale) if fits else kind


_PLAIN: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = (
    ("is_integer", _stored_integer),
    ("is_float16", lambda arrow, _: arrow.float32()),
    ("is_timestamp", lambda arrow, kind: arrow.timestamp("us", tz="UTC" if kind.tz else None)),
    ("is_time", lambda arrow, _: arrow.time64("us")),
    ("is_date", lambda arrow, _: arrow.date32()),
    ("is_large_string", lambda arrow, _: arrow.string()),
    ("is_string_view", lambda arrow, _: arrow.string()),
    ("is_large_binary", lambda arrow, _: arrow.binary()),
    ("is_binary_view", lambda arrow, _: arrow.binary()),
)
"""Names of Arrow's own questions on types, and the type that a table has instead."""


def _stored_nested(name: str, kind: pa.DataType) -> pa.DataType | None:
    import pyarrow as pa

    types = pa.types
    if isinstance(kind, pa.MapType):
        key, value = _stored(name, kind.key_type), _stored(name, kind.item_type)
        return None if key is None or value is None else pa.map_(key, value)
    if isinstance(kind, pa.StructType):
        fields = _stored_fields(f"{name}.", [kind.field(at) for at in range(kind.num_fields)])
        return pa.struct(fields) if fields else None
    # Not the views with short offsets: PyArrow cannot cast them.
    listed = (
        types.is_list,
        types.is_large_list,
        types.is_fixed_size_list,
        types.is_large_list_view,
    )
    if any(is_kind(kind) for is_kind in listed):
        element = _stored(name, kind.value_type)
        return None if element is None else pa.list_(element)
    if types.is_decimal(kind):
        kind = _stored_decimal(pa, kind)
    _type_of(name, kind)
    return kind


def _plain_types() -> dict[pa.DataType, str]:
    """Return the types of Arrow that have no parameter, and their words."""
    import pyarrow as pa

    return {
        pa.bool_(): "boolean",
        pa.int32(): "int",
        pa.int64(): "long",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.date32(): "date",
        pa.time64("us"): "time",
        pa.timestamp("us"): "timestamp",
        pa.timestamp("us", tz="UTC"): "timestamptz",
        pa.string(): "string",
        pa.binary(): "binary",
    }


def _arrow_field(column: Column) -> pa.Field:
    import pyarrow as pa

    return pa.field(column["name"], _arrow_type(column["type"]))


def _arrow_type(kind: ColumnType) -> pa.DataType:
    import pyarrow as pa

    if isinstance(kind, dict):
        (form, inner), *_ = kind.items()
        if form == "struct":
            return pa.struct([_arrow_field(column) for column in inner])
        if form == "list":
            return pa.list_(_arrow_type(inner))
        return pa.map_(_arrow_type(inner[0]), _arrow_type(inner[1]))
    if match := _DECIMAL.fullmatch(kind):
        return pa.decimal128(int(match[1]), int(match[2]))
    if match := _FIXED.fullmatch(kind):
        return pa.binary(int(match[1]))
    return next(plain for plain, word in _plain_types().items() if word == kind)


def _type_of(name: str, kind: pa.DataType) -> ColumnType:
    import pyarrow as pa

    types = pa.types
    if (word := _plain_types().get(kind)) is not None:
        return word
    if types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return f"decimal({kind.precision}, {kind.scale})"
    if types.is_fixed_size_binary(kind):
        return f"fixed[{kind.byte_width}]"
    if isinstance(kind, pa.MapType):
        return {"map": [_type_of(name, kind.key_type), _type_of(name, kind.item_type)]}
    if isinstance(kind, pa.ListType):
        return {"list": _type_of(name, kind.value_type)}
    if isinstance(kind, pa.StructType) and kind.num_fields:
        fields = [kind.field(at) for at in range(kind.num_fields)]
        inner = [_column(at.name, _type_of(f"{name}.{at.name}", at.type)) for at in fields]
        return {"struct": inner}
    raise TransformError(
        f"Column {shown(name)} is of the type {shown(str(kind))}, which no table has: return "
        "another type."
    )


def _column(name: str, kind: ColumnType) -> Column:
    return {"name": name, "type": kind}


def _merged_fields(path: str, agreed: Sequence[Column], file: Sequence[Column]) -> Columns:
    added = {column["name"]: column["type"] for column in file}
    fields: Columns = []
    for column in agreed:
        name, kind = column["name"], column["type"]
        fields.append(_column(name, _merged_type(f"{path}{name}", kind, added.pop(name, kind))))
    return [*fields, *(_column(name, kind) for name, kind in added.items())]


def _merged_type(path: str, agreed: ColumnType, file: ColumnType) -> ColumnType:
    if agreed == file:
        return agreed
    if isinstance(agreed, dict) and isinstance(file, dict):
        nested = _merged_nested(path, agreed, file)
        if nested is not None:
            return nested
    wider = _wider(agreed, file) if isinstance(agreed, str) and isinstance(file, str) else None
    if wider is not None:
        return wider
    raise _DoesNotFit(path, agreed, file)


def _merged_nested(path: str, agreed: Column, file: Column) -> Column | None:
    if "struct" in agreed and "struct" in file:
        return {"struct": _merged_fields(f"{path}.", agreed["struct"], file["struct"])}
    if "list" in agreed and "list" in file:
        return {"list": _merged_type(f"{path}.element", agreed["list"], file["list"])}
    # The keys of a map cannot be widened.
    if "map" in agreed and "map" in file and agreed["map"][0] == file["map"][0]:
        value = _merged_type(f"{path}.value", agreed["map"][1], file["map"][1])
        return {"map": [agreed["map"][0], value]}
    return None


def _wider(agreed: str, file: str) -> str | None:
    """Return the one of two words that holds the values of both; None if neither does."""
    if agreed in _WIDER.get(file, ()):
        return agreed
    if file in _WIDER.get(agreed, ()):
        return file
    one, other = _DECIMAL.fullmatch(agreed), _DECIMAL.fullmatch(file)
    if one and other and one[2] == other[2]:
        return f"decimal({max(int(one[1]), int(other[1]))}, {one[2]})"
    return None


def type_text(kind: ColumnType) -> str:
    """Return a column's type as people read it."""
    if isinstance(kind, str):
        return kind
    (form, inner), *_ = kind.items()
    if form == "list":
        return f"list of {type_text(inner)}"
    if form == "map":
        return f"map of {type_text(inner[0])} to {type_text(inner[1])}"
    fields = (f"{column['name']} {type_text(column['type'])}" for column in inner)
    return f"struct of {', '.join(fields)}"
