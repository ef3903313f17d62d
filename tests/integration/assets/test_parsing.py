"""Parsing of Arrow tables and of DataFrames, one beside the other on real Spark."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812, TID253

from dagster_leasehold.assets.parsing import parse_csv, parse_json
from tests.unit.assets.growing_values import SHAPES, Shape
from tests.unit.assets.parsing_cases import CASES, rows_of, table_of

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("name", CASES)
def test_arrow_tables_and_dataframes_are_parsed_alike(name: str, connect_session: Any) -> None:
    """Goal: who changes from one to the other finds the same fields, types, errors and texts."""
    schema, values, separator = CASES[name]
    table = table_of(values)

    def parse(records: Any) -> Any:
        if separator is None:
            return parse_json(records, schema)
        return parse_csv(records, schema, separator=separator)

    by_spark = parse(connect_session.createDataFrame(table)).orderBy("number").toArrow()
    by_arrow = parse(table)
    assert by_arrow.schema.names == by_spark.schema.names
    assert by_arrow.schema.types == by_spark.schema.types
    pairs = zip(values, rows_of(by_spark), rows_of(by_arrow), strict=True)
    assert [each for each in pairs if each[1] != each[2]] == []


KIB = 1024
GROUPS = sorted({(shape.schema, shape.separator or "") for shape in SHAPES})


def seconds(session: Any, shapes: list[Shape], size: int, total: int) -> float:
    """Return the time that values of these shapes take, so many bytes of each in all."""
    parts = [(each.begin, each.unit, each.end) for each in shapes]
    columns = [pa.array(column) for column in zip(*parts, strict=True)]
    frame = session.createDataFrame(pa.table(dict(zip("abc", columns, strict=True))))
    fill = (size - F.length("a") - F.length("c")) / F.length("b")
    value = F.concat("a", F.repeat("b", F.greatest(F.lit(1), fill).cast("int")), "c")
    frame = frame.select(value.cast("binary").alias("value"))
    frame = frame.withColumn("n", F.explode(F.sequence(F.lit(1), F.lit(max(1, total // size)))))
    schema, separator = shapes[0].schema, shapes[0].separator
    if separator is None:
        parsed = parse_json(frame, schema)
    else:
        parsed = parse_csv(frame, schema, separator=separator)
    before = perf_counter()
    parsed.agg(*(F.count(F.col(name)) for name in parsed.columns)).collect()
    return perf_counter() - before


def growth(session: Any, group: tuple[str, str], size: int) -> float:
    """Return the ratio of the times per byte of values of a size and of values of 1 KiB."""
    shapes = [shape for shape in SHAPES if (shape.schema, shape.separator or "") == group]
    small = max(seconds(session, shapes, KIB, size) for _ in range(2))
    return min(seconds(session, shapes, size, size) for _ in range(3)) / small


@pytest.mark.parametrize("group", [each for each in GROUPS if each[0].startswith("wide")])
def test_no_decimal_takes_a_dataframe_more_than_linear_time(
    group: tuple[str, str], connect_session: Any
) -> None:
    """Goal: quadratic functions of Java are not called. The first size warms up the JVM."""
    assert growth(connect_session, group, 256 * KIB) <= 3


@pytest.mark.release
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("group", GROUPS)
def test_no_record_takes_a_dataframe_more_than_linear_time(
    group: tuple[str, str], connect_session: Any
) -> None:
    assert growth(connect_session, group, 1024 * KIB) <= 3
