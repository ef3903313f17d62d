"""Parsing of Arrow columns: a record is parsed alike beside any other records."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dagster_leasehold.assets.arrow_parsing import columns
from dagster_leasehold.assets.arrow_parsing.columns import parse_column
from dagster_leasehold.assets.arrow_parsing.field_types import fields_of
from dagster_leasehold.assets.arrow_parsing.json_values import JsonFormat
from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.parsing import parse_csv, parse_json
from tests.unit.assets.parsing_cases import CASES, rows_of, table_of

SCHEMA = "id BIGINT, name STRING, at TIMESTAMP"


def record(n: int) -> bytes:
    return f'{{"id": {n}, "name": "n{n}", "at": "2026-01-31T08:00:{n % 60:02}Z"}}'.encode()


def parse(table: pa.Table, name: str) -> Any:
    schema, _, separator = CASES[name]
    if separator is None:
        return parse_json(table, schema)
    return parse_csv(table, schema, separator=separator)


@pytest.mark.parametrize("name", CASES)
def test_a_record_has_the_same_result_alone_and_among_others(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(CASES[name][1])
    whole = parse(table, name)
    for records in (1, 7):
        monkeypatch.setattr(columns, "PIECE_RECORDS", records)
        assert rows_of(parse(table, name)) == rows_of(whole)
    errors = whole.column("quarantine_error")
    good = table.filter(errors.is_null())
    assert rows_of(parse(good, name)) == rows_of(whole.filter(errors.is_null()))


@pytest.mark.parametrize("bad", [b"{broken", b'{"id": "seven"}', b'{"id": 1, "at": "noon"}', None])
def test_a_bad_record_changes_no_other_record_of_its_table(bad: bytes | None) -> None:
    values: list[bytes | None] = [record(n) for n in range(20_000)]
    for at in (0, 5_000, 19_999):
        values[at] = bad
    result = parse_json(table_of(values), SCHEMA)
    good = [n for n in range(20_000) if n not in (0, 5_000, 19_999)]
    errors = result.column("quarantine_error")
    assert result.filter(errors.is_null()).column("id").to_pylist() == good
    assert result.column("id").null_count == result.column("name").null_count == 3
    assert set(errors.to_pylist()) == {None, "value is not a JSON object of the expected fields"}


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_values_can_be_bytes_or_text_in_chunks_and_slices(kind: pa.DataType) -> None:
    values = pa.array([record(n) for n in range(10)], pa.binary()).cast(kind)
    chunks = pa.chunked_array([values.slice(2, 3), values.slice(0, 0), values.slice(7)], kind)
    result = parse_json(pa.table({"payload": chunks}), SCHEMA, "payload")
    assert result.column("id").to_pylist() == [2, 3, 4, 7, 8, 9]
    assert result.schema.names == ["payload", "id", "name", "at", "quarantine_error"]
    empty = parse_json(pa.table({"payload": chunks}).slice(0, 0), SCHEMA, "payload")
    assert empty.schema == result.schema
    assert empty.num_rows == 0


def test_the_error_names_the_column() -> None:
    table = pa.table({"payload": pa.array([b"\xff", b"x"])})
    assert parse_csv(table, "a INT, b INT", "payload").column("quarantine_error").to_pylist() == [
        "payload is not text in UTF-8",
        "payload is not a line of CSV with the 2 expected fields",
    ]


def test_a_column_that_cannot_be_parsed_is_refused_in_one_sentence() -> None:
    table = pa.table({"value": [b"{}"], "n": [1]})
    cases = {
        "no column payload to parse: they have value, n": lambda: parse_json(
            table, "a INT", "payload"
        ),
        "The column n holds int64": lambda: parse_json(table, "a INT", "n"),
        "cannot add n: records have columns": lambda: parse_json(table, "n INT"),
        "cannot add a more than once": lambda: parse_csv(table, "a INT, a INT"),
        "parse_csv cannot separate fields by '\"'": lambda: parse_csv(
            table, "a INT", separator='"'
        ),
        "parse_csv cannot read a: a line of CSV holds no list": lambda: parse_csv(
            table, "a ARRAY<INT>"
        ),
    }
    for message, attempt in cases.items():
        with pytest.raises(TransformError) as caught:
            attempt()
        assert message in str(caught.value)


def test_the_pieces_of_a_table_are_bounded_in_bytes() -> None:
    values = [b'{"name": "' + b"x" * 100_000 + b'"}'] * 300
    fields, errors = parse_column(table_of(values), "value", JsonFormat(fields_of("name STRING")))
    assert errors.null_count == 300
    assert max(map(len, fields[0].chunks)) * 100_000 <= columns.PIECE_BYTES
