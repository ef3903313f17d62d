"""Parsing inside a transform: what cannot be parsed goes to quarantine, with its raw bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assets.shard_files import ERROR_COLUMN
from lease_store.errors import TransformError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_CORRUPT = "_corrupt_record"


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
    from pyspark.sql.types import StringType, StructType

    fields = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    assert isinstance(fields, StructType)
    taken = sorted({*fields.names} & {*records.columns, ERROR_COLUMN})
    if taken:
        raise TransformError(
            f"parse_json cannot add {', '.join(taken)}: records have columns of these names; "
            "rename them before or leave them out of the schema."
        )
    checked = StructType([*fields.fields]).add(_CORRUPT, StringType())
    text = functions.col(column).cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = records.withColumn("_parsed", functions.from_json(text, checked, options))
    wrong = functions.col("_parsed").isNull() | functions.col("_parsed")[_CORRUPT].isNotNull()
    message = functions.lit(f"{column} is not a JSON object of the expected fields")
    return parsed.select(
        *records.columns,
        *(functions.col("_parsed")[name].alias(name) for name in fields.names),
        functions.when(wrong, message).alias(ERROR_COLUMN),
    )
