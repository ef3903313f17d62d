"""Parsing inside a transform: a record that cannot be parsed goes to quarantine as it came."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_leasehold.assets.arrow_transform import ERROR_COLUMN
from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.lease_store.errors import shown

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_CORRUPT = "_corrupt_record"
_PARSED = "_parsed"


def parse_json(records: DataFrame, schema: str | StructType, column: str = "value") -> DataFrame:
    """Add the fields of a JSON object as columns, and `quarantine_error` where there is none.

    The record's own columns stay, so that a quarantined record keeps its cursor and raw bytes. A
    field that is absent is null; a value that is no JSON object of the schema is an error.

    Args:
        records: the records of a batch.
        schema: the fields, as a Spark schema or its DDL text.
        column: the column of bytes or text to parse.

    Raises:
        TransformError: a field has the name of a column that records already have.
    """
    from pyspark.sql import functions

    checked = _with_corrupt(_fields(records, schema, "parse_json"))
    parsed = functions.from_json(_text(column), checked, _PERMISSIVE)
    why = f"{column} is not a JSON object of the expected fields"
    return _joined(records, parsed, checked, column, wrong=None, why=why)


def parse_csv(
    records: DataFrame, schema: str | StructType, column: str = "value", *, separator: str = ","
) -> DataFrame:
    """Add the fields of a line of CSV as columns, and `quarantine_error` where it does not fit.

    The record's own columns stay, so that a quarantined record keeps its cursor and raw bytes. The
    line has exactly the fields of the schema, in its order; an empty one is null. Quotes are as
    in RFC 4180: a field in double quotes may hold separators and line ends, and a doubled quote
    stands for one.

    Args:
        records: the records of a batch.
        schema: the fields in their order, as a Spark schema or its DDL text.
        column: the column of bytes or text to parse.
        separator: the one character between two fields.

    Raises:
        TransformError: a field has the name of a column that records already have, or the
            separator is no single character.
    """
    from pyspark.sql import functions

    if len(separator) != 1 or separator in '"\r\n':
        raise TransformError(
            f"parse_csv cannot separate fields by {shown(separator)}: use one character that is "
            "neither a quote nor a line end."
        )
    fields = _fields(records, schema, "parse_csv")
    checked = _with_corrupt(fields)
    text = _text(column)
    options = _PERMISSIVE | {"sep": separator, "quote": '"', "escape": '"'}
    parsed = functions.from_csv(text, checked.toDDL(), options)
    # Spark takes an empty line for one of nulls, and an open quote for one that ends with the line.
    quotes = functions.length(text) - functions.length(
        functions.replace(text, functions.lit('"'), functions.lit(""))
    )
    wrong = (functions.trim(text) == "") | (quotes % 2 != 0)
    why = f"{column} is not a line of CSV with the {len(fields)} expected fields"
    return _joined(records, parsed, checked, column, wrong=wrong, why=why)


_PERMISSIVE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}


def _fields(records: DataFrame, schema: str | StructType, function: str) -> StructType:
    from pyspark.sql.types import StructType

    fields = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    assert isinstance(fields, StructType)
    taken = sorted({*fields.names} & {*records.columns, ERROR_COLUMN})
    if taken:
        raise TransformError(
            f"{function} cannot add {', '.join(taken)}: records have columns of these names; "
            "rename them before or leave them out of the schema."
        )
    return fields


def _with_corrupt(fields: StructType) -> StructType:
    from pyspark.sql.types import StringType, StructType

    return StructType([*fields.fields]).add(_CORRUPT, StringType())


def _text(column: str) -> Column:
    from pyspark.sql import functions

    return functions.col(column).cast("string")


def _joined(
    records: DataFrame,
    parsed: Column,
    checked: StructType,
    column: str,
    *,
    wrong: Column | None,
    why: str,
) -> DataFrame:
    """Return the records with their fields, and the error of those that could not be parsed."""
    from pyspark.sql import functions

    fields = functions.col(_PARSED)
    failed = fields.isNull() | fields[_CORRUPT].isNotNull()
    failed = failed if wrong is None else failed | functions.coalesce(wrong, functions.lit(False))
    # Spark would replace bytes that are no text, and nobody would see that they were there.
    no_text = ~functions.is_valid_utf8(_text(column))
    error = functions.when(no_text, functions.lit(f"{column} is not text in UTF-8")).when(
        failed, functions.lit(why)
    )
    return records.withColumn(_PARSED, parsed).select(
        *records.columns,
        *(fields[name].alias(name) for name in checked.names if name != _CORRUPT),
        error.alias(ERROR_COLUMN),
    )
