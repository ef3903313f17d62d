"""Parsing of Arrow tables and of DataFrames, one beside the other on real Spark."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_leasehold.assets.parsing import parse_csv, parse_json
from tests.unit.assets.parsing_cases import CASES, rows_of, table_of

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("name", CASES)
def test_an_arrow_table_gives_what_a_dataframe_gives(name: str, connect_session: Any) -> None:
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
