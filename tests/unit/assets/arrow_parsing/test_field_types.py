"""Schemas to parse by: Spark's DDL and Spark's own schemas, as Arrow has them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as t  # noqa: TID253

from dagster_leasehold.assets.arrow_parsing.field_types import fields_of
from dagster_leasehold.assets.errors import TransformError

NESTED = pa.list_(pa.field("element", pa.struct([("x", pa.map_(pa.string(), pa.float64()))])))


def test_every_form_of_ddl_is_parsed() -> None:
    ddl = (
        "a INT, b: string NOT NULL COMMENT 'x, y: z', `c``d e` decimal(10, 2) comment \"it's\",\n"
        "f ARRAY<STRUCT<x: MAP<STRING,DOUBLE>>>, g dec, date DATE, h TIMESTAMP, i timestamp_ntz"
    )
    assert fields_of(ddl) == pa.schema(
        [
            ("a", pa.int32()),
            ("b", pa.string()),
            ("c`d e", pa.decimal128(10, 2)),
            ("f", NESTED),
            ("g", pa.decimal128(10, 0)),
            ("date", pa.date32()),
            ("h", pa.timestamp("us", tz="UTC")),
            ("i", pa.timestamp("us")),
        ]
    )
    assert fields_of("struct<a: int, b: byte>") == fields_of("a INTEGER, b TINYINT")


def test_a_schema_of_spark_equals_its_ddl() -> None:
    inner = t.StructType().add("x", t.MapType(t.StringType(), t.DoubleType()))
    schema = (
        t.StructType()
        .add("a", t.LongType(), nullable=False)
        .add("b", t.ArrayType(inner))
        .add("c", t.DecimalType(12, 3))
        .add("d", t.TimestampNTZType())
    )
    assert fields_of(schema) == fields_of(
        "a BIGINT, b ARRAY<STRUCT<x: MAP<STRING, DOUBLE>>>, c DECIMAL(12,3), d TIMESTAMP_NTZ"
    )


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("a", "it ends too early"),
        ("a INT,", "it ends too early"),
        ("a VARIANT", "it has the type VARIANT; use a transform of DataFrames for it"),
        ("a VARCHAR(3)", "it has the type VARCHAR(3)"),
        ("a DECIMAL(39, 1)", "it has the type DECIMAL(39,1)"),
        ("a ARRAY<INT", "'>' is missing"),
        ("a INT b INT", "nothing is allowed at 'b'"),
        ("a MAP<INT, INT>", "a map of it has other keys than strings"),
        ("a INT NOT", "'null' is missing"),
    ],
)
def test_other_schemas_are_refused_in_one_sentence(ddl: str, reason: str) -> None:
    with pytest.raises(TransformError) as caught:
        fields_of(ddl)
    assert f"cannot be parsed from Arrow tables: {reason}" in str(caught.value)
