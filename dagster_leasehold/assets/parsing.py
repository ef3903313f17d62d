"""Parsing inside a transform: a record that cannot be parsed goes to quarantine as it came."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from datetime import date
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dagster_leasehold.assets.arrow_parsing.limits import DECIMAL_LETTERS_MAX, SEPARATORS_MAX
from dagster_leasehold.assets.arrow_transform import ERROR_COLUMN
from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.lease_store.errors import shown

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from dagster_leasehold.assets.arrow_parsing.columns import ValueFormat

Records = TypeVar("Records", "DataFrame", "pa.Table")

_CORRUPT = "_corrupt_record"
_PARSED, _TEXTS = "_parsed", "_texts"
_CALENDAR = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"


def parse_json(records: Records, schema: str | StructType, column: str = "value") -> Records:
    """Add the fields of a JSON object as columns, and `quarantine_error` where there is none.

    The record's own columns stay, so that a quarantined record keeps its cursor and raw bytes. A
    field that is absent is null; a value that is no JSON object of the schema is an error. So is a
    time outside the years 1 to 9999, and a map with the same key twice. A number in a field of
    times is one of seconds. The fields of quarantined records are null. The result is the same for
    an Arrow table and for a DataFrame.

    Args:
        records: the records of a batch, as an Arrow table or a DataFrame.
        schema: the fields, as a Spark schema or its DDL text.
        column: the column of bytes or text to parse.

    Raises:
        TransformError: a field has the name of a column that records already have, or, for an Arrow
            table, the schema or the column cannot be read.
    """
    everything: Any = records
    if _is_table(records):
        return _with_fields(everything, schema, column, "parse_json", "")
    from pyspark.sql import functions

    fields = _fields(everything, schema, "parse_json")
    checked = _with_corrupt(fields)

    def parse(text: Column, kind: StructType) -> Column:
        return functions.from_json(text, kind, _PERMISSIVE)

    why = f"{column} is not a JSON object of the expected fields"
    return _joined(everything, parse, checked, column, wrong=None, why=why)


def parse_csv(
    records: Records, schema: str | StructType, column: str = "value", *, separator: str = ","
) -> Records:
    """Add the fields of a line of CSV as columns, and `quarantine_error` where it does not fit.

    The record's own columns stay, so that a quarantined record keeps its cursor and raw bytes. The
    line has exactly the fields of the schema, in its order; an empty one is null. Quotes are as
    in RFC 4180: a field in double quotes may hold separators and line ends, and a doubled quote
    stands for one. A time outside the years 1 to 9999 is an error. The fields of quarantined
    records are null. The result is the same for an Arrow table and for a DataFrame.

    Args:
        records: the records of a batch, as an Arrow table or a DataFrame.
        schema: the fields in their order, as a Spark schema or its DDL text.
        column: the column of bytes or text to parse.
        separator: the one character between two fields.

    Raises:
        TransformError: a field has the name of a column that records already have, the separator is
            no single character, or, for an Arrow table, the schema or the column cannot be read.
    """
    if len(separator) != 1 or separator in '"\\\r\n' or separator > "\uffff":
        raise TransformError(
            f"parse_csv cannot separate fields by {shown(separator)}: use one character up to "
            "U+FFFF that is neither a quote, a backslash nor a line end."
        )
    everything: Any = records
    if _is_table(records):
        return _with_fields(everything, schema, column, "parse_csv", separator)
    from pyspark.sql import functions

    fields = _fields(everything, schema, "parse_csv")
    checked = _with_corrupt(fields)
    text = _text(column)
    options = _PERMISSIVE | {"sep": separator, "quote": '"', "escape": '"'}
    # Spark's reader of lines fails the whole job at its limit of columns, a little above this one.
    separators = functions.length(text) - functions.length(
        functions.replace(text, functions.lit(separator), functions.lit(""))
    )

    def parse(text: Column, kind: StructType) -> Column:
        line = functions.when(separators <= SEPARATORS_MAX, text)
        return functions.from_csv(line, kind.toDDL(), options)

    # Spark takes an empty line for one of nulls, and an open quote for one that ends with the line.
    quotes = functions.length(text) - functions.length(
        functions.replace(text, functions.lit('"'), functions.lit(""))
    )
    wrong = (functions.trim(text) == "") | (quotes % 2 != 0)
    why = f"{column} is not a line of CSV with the {len(fields)} expected fields"
    return _joined(everything, parse, checked, column, wrong=wrong, why=why)


def _is_table(records: object) -> bool:
    import pyarrow as pa

    return isinstance(records, pa.Table)


def _with_fields(
    records: pa.Table, schema: str | StructType, column: str, function: str, separator: str
) -> Any:
    """Return an Arrow table with the fields of one of its columns, and their errors, behind it."""
    from dagster_leasehold.assets.arrow_parsing.field_types import fields_of

    fields = fields_of(schema)
    _refuse_taken(fields.names, records.schema.names, function)
    try:
        from dagster_leasehold.assets.arrow_parsing.columns import parse_column

        form = _format(fields, separator)
    except ModuleNotFoundError as missing:
        raise TransformError(
            f"{function} needs the library {missing.name} for Arrow tables, and Spark's workers "
            "have it not: let them have numpy and msgspec."
        ) from missing
    columns, errors = parse_column(records, column, form)
    for name, values in zip([*fields.names, ERROR_COLUMN], [*columns, errors], strict=True):
        records = records.append_column(name, values)
    return records


@lru_cache(maxsize=64)
def _format(fields: pa.Schema, separator: str) -> ValueFormat:
    """Return the format of lines with a separator, or of JSON if it is empty."""
    from dagster_leasehold.assets.arrow_parsing.csv_lines import CsvFormat
    from dagster_leasehold.assets.arrow_parsing.json_values import JsonFormat

    return CsvFormat(fields, separator) if separator else JsonFormat(fields)


_PERMISSIVE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}


def _fields(records: DataFrame, schema: str | StructType, function: str) -> StructType:
    from pyspark.sql.types import StructType

    fields = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    assert isinstance(fields, StructType)
    _refuse_taken(fields.names, records.columns, function)
    return fields


def _refuse_taken(fields: Sequence[str], columns: Sequence[str], function: str) -> None:
    taken = sorted({*fields} & {*columns, ERROR_COLUMN})
    if taken:
        raise TransformError(
            f"{function} cannot add {', '.join(taken)}: records have columns of these names; "
            "rename them before or leave them out of the schema."
        )
    repeated = sorted({name for name in fields if [*fields].count(name) > 1})
    if repeated:
        raise TransformError(
            f"{function} cannot add {', '.join(repeated)} more than once: give each field of the "
            "schema a name of its own."
        )


def _with_corrupt(fields: StructType) -> StructType:
    from pyspark.sql.types import StringType, StructType

    return StructType([*fields.fields]).add(_CORRUPT, StringType())


def _text(column: str) -> Column:
    from pyspark.sql import functions

    return functions.col(column).cast("string")


def _joined(
    records: DataFrame,
    parse: Callable[[Column, StructType], Column],
    checked: StructType,
    column: str,
    *,
    wrong: Column | None,
    why: str,
) -> Any:
    """Return the records with their fields, and the error of those that could not be parsed."""
    from pyspark.sql import functions

    columns = records.columns
    text, fields = _text(column), functions.col(_PARSED)
    # Spark takes quadratic time for long decimals, and its count of microseconds overflows for
    # seconds of more than 12 digits, which so become any time. Both are looked at as texts first.
    suspect = functions.when(
        (functions.length(text) > DECIMAL_LETTERS_MAX) | text.rlike("[0-9]{13}"),
        parse(text, _numbers_as_texts(checked)),
    )
    long_number = _condition(functions.col(_TEXTS), checked, _is_long_number)
    if long_number is not None:
        records = records.withColumn(_TEXTS, suspect)
        text = functions.when(~functions.coalesce(long_number, functions.lit(False)), text)
    failed = fields.isNull() | fields[_CORRUPT].isNotNull()
    for condition in (wrong, _condition(fields, checked, _is_unreadable)):
        if condition is not None:
            failed = failed | functions.coalesce(condition, functions.lit(False))
    # Spark would replace bytes that are no text, and nobody would see that they were there.
    no_text = ~functions.is_valid_utf8(_text(column))
    error = functions.when(no_text, functions.lit(f"{column} is not text in UTF-8")).when(
        failed, functions.lit(why)
    )
    good = functions.col(ERROR_COLUMN).isNull()
    return (
        records.withColumn(_PARSED, parse(text, checked))
        .withColumn(ERROR_COLUMN, error)
        .select(
            *columns,
            *(functions.when(good, fields[name]).alias(name) for name in checked.names[:-1]),
            ERROR_COLUMN,
        )
    )


def _condition(
    value: Column, kind: DataType, wrong: Callable[[Column, DataType], Column | None]
) -> Column | None:
    """Return the condition that a value, or one inside of it, is wrong; None if none can be."""
    from pyspark.sql import functions
    from pyspark.sql.types import ArrayType, MapType, StructType

    conditions = [wrong(value, kind)]
    if isinstance(kind, StructType):
        conditions += [
            _condition(value.getField(field.name), field.dataType, wrong) for field in kind.fields
        ]
    elif isinstance(kind, ArrayType | MapType):
        is_map = isinstance(kind, MapType)
        items = functions.map_values(value) if is_map else value
        type_ = kind.valueType if is_map else kind.elementType
        if _condition(items, type_, wrong) is not None:
            inner = cast("Callable[[Column], Column]", lambda item: _condition(item, type_, wrong))
            conditions.append(functions.exists(items, inner))
    possible = [condition for condition in conditions if condition is not None]
    return reduce(operator.or_, possible) if possible else None


def _is_unreadable(value: Column, kind: DataType) -> Column | None:
    """Return the condition of a value that not every reader of tables can read."""
    from pyspark.sql import functions
    from pyspark.sql.types import DateType, MapType, TimestampNTZType, TimestampType

    if isinstance(kind, MapType):
        keys = functions.map_keys(value)
        return functions.size(functions.array_distinct(keys)) != functions.size(keys)
    if isinstance(kind, DateType):
        return ~value.between(functions.lit(date.min), functions.lit(date.max))
    if isinstance(kind, TimestampType):
        first, last = (f"TIMESTAMP '{end}Z'" for end in _CALENDAR)
    elif isinstance(kind, TimestampNTZType):
        first, last = (f"TIMESTAMP_NTZ '{end}'" for end in _CALENDAR)
    else:
        return None
    return ~value.between(functions.expr(first), functions.expr(last))


def _is_long_number(value: Column, kind: DataType) -> Column | None:
    """Return the condition that the text of a decimal or a time is a number too long for Spark."""
    from pyspark.sql import functions
    from pyspark.sql.types import DecimalType, TimestampType

    if isinstance(kind, DecimalType):
        return functions.length(value) > DECIMAL_LETTERS_MAX
    return value.rlike("^-?[0-9]{13,}$") if isinstance(kind, TimestampType) else None


def _numbers_as_texts(kind: Any) -> Any:
    """Return a type with text in place of decimals and times."""
    from pyspark.sql import types as t

    if isinstance(kind, t.DecimalType | t.TimestampType):
        return t.StringType()
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_numbers_as_texts(kind.elementType))
    if isinstance(kind, t.MapType):
        return t.MapType(kind.keyType, _numbers_as_texts(kind.valueType))
    if isinstance(kind, t.StructType):
        return t.StructType(
            [t.StructField(each.name, _numbers_as_texts(each.dataType)) for each in kind.fields]
        )
    return kind
