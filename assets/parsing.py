"""Parsing inside a transform: a record that cannot be parsed goes to quarantine as it came."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_leasehold.assets.arrow_transform import ERROR_COLUMN
from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.lease_store.errors import shown

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from dagster_leasehold.assets.arrow_parsing.columns import ValueFormat

Records = TypeVar("Records", "DataFrame", "pa.Table")

_CORRUPT = "_corrupt_record"
_PARSED = "_parsed"


def parse_json(records: Records, schema: str | StructType, column: str = "value") -> Records:
    """Add the fields of a JSON object as columns, and `quarantine_error` where there is none.

    The record's own columns stay, so that a quarantined record keeps its cursor and raw bytes. A
    field that is absent is null; a value that is no JSON object of the schema is an error. The
    result is the same for an Arrow table and for a DataFrame, but for fields of quarantined
    records, which are all null in an Arrow table.

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

    checked = _with_corrupt(_fields(everything, schema, "parse_json"))
    parsed = functions.from_json(_text(column), checked, _PERMISSIVE)
    why = f"{column} is not a JSON object of the expected fields"
    return _joined(everything, parsed, checked, column, wrong=None, why=why)


def parse_csv(
    records: Records, schema: str | StructType, column: str = "value", *, separator: str = ","
) -> Records:
    """Add the fields of a line of CSV as columns, and `quarantine_error` where it does not fit.

    The record's own columns stay, so that a quarantined record keeps its cursor and raw bytes. The
    line has exactly the fields of the schema, in its order; an empty one is null. Quotes are as
    in RFC 4180: a field in double quotes may hold separators and line ends, and a doubled quote
    stands for one. The result is the same for an Arrow table and for a DataFrame, but for fields of
    quarantined records, which are all null in an Arrow table.

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
    parsed = functions.from_csv(text, checked.toDDL(), options)
    # Spark takes an empty line for one of nulls, and an open quote for one that ends with the line.
    quotes = functions.length(text) - functions.length(
        functions.replace(text, functions.lit('"'), functions.lit(""))
    )
    wrong = (functions.trim(text) == "") | (quotes % 2 != 0)
    why = f"{column} is not a line of CSV with the {len(fields)} expected fields"
    return _joined(everything, parsed, checked, column, wrong=wrong, why=why)


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
    parsed: Column,
    checked: StructType,
    column: str,
    *,
    wrong: Column | None,
    why: str,
) -> Any:
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
