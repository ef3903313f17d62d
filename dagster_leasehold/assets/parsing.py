"""`parse_json` and `parse_csv`, which users call in their transforms.

A record that cannot be parsed gets a `quarantine_error`, and goes to quarantine unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_leasehold.assets.arrow_transform import ERROR_COLUMN
from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.lease_store.errors import shown

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from dagster_leasehold.assets.arrow_parsing.columns import ValueFormat

Records = TypeVar("Records", "DataFrame", "pa.Table")


def parse_json(records: Records, schema: str | StructType, column: str = "value") -> Records:
    """Add the fields of a JSON object as columns, and the column `quarantine_error`.

    The record's own columns stay, so a quarantined record keeps its cursor and raw bytes. All its
    parsed fields are null. The result is the same for an Arrow table and for a DataFrame.

    * A missing field becomes null. Fields outside the schema are dropped. If a name occurs twice,
      the last value counts.
    * A value that does not fit its field is an error; nothing is rounded or truncated. Numbers
      must be in range. Decimals can be numbers or strings, and must fit without rounding. Dates
      look like `2026-01-31`. Times follow RFC 3339, within the years 1 to 9999, and are in UTC
      if they have no offset. Bytes are in base64.
    * A string field also accepts any other JSON value, as its source text.

    Args:
        records: the records of a batch, as an Arrow table or a DataFrame.
        schema: the fields, as a Spark schema or its DDL text.
        column: the column of bytes or text to parse.

    Raises:
        TransformError: a field has the name of an existing column, or, for an Arrow table, the
            schema or the column cannot be read.

    Examples:
        >>> records = pa.table({"value": [b'{"path": "/cart"}', b"no JSON"]})
        >>> parsed = parse_json(records, "path string")
        >>> parsed["path"].to_pylist(), parsed["quarantine_error"].is_null().to_pylist()
        (['/cart', None], [True, False])
    """
    return _with_fields(records, schema, column, "parse_json", "")


def parse_csv(
    records: Records, schema: str | StructType, column: str = "value", *, separator: str = ","
) -> Records:
    """Add the fields of a CSV line as columns, and the column `quarantine_error`.

    The record's own columns stay, so a quarantined record keeps its cursor and raw bytes. All its
    parsed fields are null. The result is the same for an Arrow table and for a DataFrame.

    The line must have exactly the fields of the schema, in this order; an empty field becomes
    null. Quoting follows RFC 4180: a field in double quotes can contain separators and line breaks,
    and two double quotes stand for one. `parse_json` describes which values fit a field.

    Args:
        records: the records of a batch, as an Arrow table or a DataFrame.
        schema: the fields in their order, as a Spark schema or its DDL text.
        column: the column of bytes or text to parse.
        separator: the character between two fields.

    Raises:
        TransformError: a field has the name of an existing column, the separator is not a single
            character, or, for an Arrow table, the schema or the column cannot be read.

    Examples:
        >>> records = pa.table({"value": [b"/cart;200", b"/pay;none"]})
        >>> parsed = parse_csv(records, "path string, status int", separator=";")
        >>> parsed["path"].to_pylist(), parsed["quarantine_error"].is_null().to_pylist()
        (['/cart', None], [True, False])
    """
    if len(separator) != 1 or separator in '"\r\n':
        raise TransformError(
            f"parse_csv cannot separate fields by {shown(separator)}: use one character that is "
            "neither a quote nor a line break."
        )
    return _with_fields(records, schema, column, "parse_csv", separator)


def _with_fields(
    records: Any, schema: str | StructType, column: str, function: str, separator: str
) -> Any:
    import pyarrow as pa

    from dagster_leasehold.assets.arrow_parsing.field_types import fields_of

    fields = fields_of(schema)
    is_table = isinstance(records, pa.Table)
    columns = records.schema.names if is_table else records.columns
    _check_names(fields.names, columns, function)
    if column not in columns:
        raise TransformError(
            f"The records have no column {column} to parse: they have {', '.join(columns)}."
        )
    parse = _Parsing(fields, column, separator, function)
    return parse.table(records) if is_table else parse.frame(records)


@dataclass(frozen=True)
class _Parsing:
    """A function that parses one column into fields; Spark pickles it for its workers."""

    fields: pa.Schema
    column: str
    separator: str
    function: str

    def table(self, records: pa.Table) -> pa.Table:
        try:
            from dagster_leasehold.assets.arrow_parsing.columns import parse_column

            form = _format(self.fields, self.separator)
        except ModuleNotFoundError as missing:
            raise TransformError(
                f"{self.function} needs the library {missing.name}, which Spark's workers lack: "
                "install numpy and msgspec on them."
            ) from missing
        columns, errors = parse_column(records, self.column, form)
        names = [*self.fields.names, ERROR_COLUMN]
        for name, values in zip(names, [*columns, errors], strict=True):
            records = records.append_column(name, values)
        return records

    def frame(self, records: DataFrame) -> DataFrame:
        """Add the fields to a DataFrame; Spark's workers parse it as Arrow tables."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.types import StructType

        added = self.fields.append(pa.field(ERROR_COLUMN, pa.string()))
        schema = StructType([*records.schema.fields, *from_arrow_schema(added).fields])
        return records.mapInArrow(self, schema)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            yield from self.table(pa.Table.from_batches([batch])).combine_chunks().to_batches()


@lru_cache(maxsize=64)
def _format(fields: pa.Schema, separator: str) -> ValueFormat:
    """Return the CSV format with this separator, or the JSON format if it is empty."""
    from dagster_leasehold.assets.arrow_parsing.csv_lines import CsvFormat
    from dagster_leasehold.assets.arrow_parsing.json_values import JsonFormat

    return CsvFormat(fields, separator) if separator else JsonFormat(fields)


def _check_names(fields: Sequence[str], columns: Sequence[str], function: str) -> None:
    existing = sorted({*fields} & {*columns, ERROR_COLUMN})
    if existing:
        raise TransformError(
            f"{function} cannot add {', '.join(existing)}: records have columns of these names. "
            "Rename the columns first, or remove the fields from the schema."
        )
    repeated = sorted({name for name in fields if [*fields].count(name) > 1})
    if repeated:
        raise TransformError(
            f"{function} cannot add {', '.join(repeated)} more than once: give each field of the "
            "schema its own name."
        )
