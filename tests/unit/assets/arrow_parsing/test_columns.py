"""Parsing of Arrow columns: the fast way and the exact way say the same, whatever stands beside."""

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
    # Good records are parsed the fast way again and again, with others each time.
    for records in (1, 7):
        monkeypatch.setattr(columns, "PIECE_RECORDS", records)
        assert rows_of(parse(table, name)) == rows_of(whole)
    errors = whole.column("quarantine_error")
    good = table.filter(errors.is_null())
    assert rows_of(parse(good, name)) == rows_of(whole.filter(errors.is_null()))


def test_plain_records_are_never_parsed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the fast way is taken. Method: the exact way is broken."""

    def refuse(*_: object) -> None:
        raise AssertionError("parsed one by one")

    monkeypatch.setattr(JsonFormat, "exact", refuse)
    result = parse_json(table_of([record(n) for n in range(20_000)]), SCHEMA)
    assert result.column("id").to_pylist() == list(range(20_000))
    assert result.column("quarantine_error").null_count == 20_000


@pytest.mark.parametrize("bad", [b"{broken", b'{"id": "seven"}', b'{"id": 1, "at": "noon"}', None])
def test_one_bad_record_leaves_thousands_beside_it_as_they_are(bad: bytes | None) -> None:
    values: list[bytes | None] = [record(n) for n in range(20_000)]
    for at in (0, 5_000, 19_999):
        values[at] = bad
    result = parse_json(table_of(values), SCHEMA)
    good = [n for n in range(20_000) if n not in (0, 5_000, 19_999)]
    errors = result.column("quarantine_error")
    assert result.filter(errors.is_null()).column("id").to_pylist() == good
    assert result.column("id").null_count == result.column("name").null_count == 3
    assert set(errors.to_pylist()) == {None, "value is not a JSON object of the expected fields"}


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were parsed one by one."""
    texts: list[str] = []
    exact = JsonFormat.exact

    def counted(form: JsonFormat, text: str) -> Any:
        texts.append(text)
        return exact(form, text)

    monkeypatch.setattr(JsonFormat, "exact", counted)
    return texts


def test_one_bad_record_makes_few_others_slow(slow: list[str]) -> None:
    values = [record(n) for n in range(8_192)]
    values[4_000] = b'{"id": 92233720368547758080}'
    parse_json(table_of(values), SCHEMA)
    assert len(slow) <= 8_192 // columns.CUTS


def test_records_of_a_wrong_type_make_no_others_slow(slow: list[str]) -> None:
    schema = (
        "id BIGINT, price DOUBLE, ok BOOLEAN, name STRING, at TIMESTAMP, n ARRAY<STRUCT<a: INT>>"
    )
    good = b'{"id": 1, "price": 2, "ok": null, "name": "x", "n": [{"a": 1}, null, {"b": []}]}'
    bad = [
        b'{"id": 1.5}',
        b'{"price": "2"}',
        b'{"ok": 1}',
        b'{"name": 7}',
        b'{"at": 7}',
        b'{"n": {"a": 1}}',
        b'{"n": [{"a": "1"}]}',
    ]
    result = parse_json(table_of([*[good] * 5_000, *bad, *[good] * 2_000]), schema)
    assert slow == [text.decode() for text in bad]
    errors = result.column("quarantine_error")
    # Spark writes any value into a field of text, and takes a number for seconds.
    assert [errors[5_000 + at].as_py() is None for at in range(7)] == [
        at in (3, 4) for at in range(7)
    ]
    assert errors.null_count == 7_002


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_values_may_be_bytes_or_text_in_chunks_and_slices(kind: pa.DataType) -> None:
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


def test_what_cannot_be_parsed_at_all_is_one_sentence() -> None:
    table = pa.table({"value": [b"{}"], "n": [1]})
    cases = {
        "no column payload to parse: they have value, n": lambda: parse_json(
            table, "a INT", "payload"
        ),
        "The column n holds int64": lambda: parse_json(table, "a INT", "n"),
        "cannot add n: records have columns": lambda: parse_json(table, "n INT"),
        "cannot add a more than once": lambda: parse_csv(table, "a INT, a INT"),
        "parse_csv cannot separate fields by '\\\\'": lambda: parse_csv(
            table, "a INT", separator="\\"
        ),
        "parse_csv cannot read a: a line of CSV holds no list": lambda: parse_csv(
            table, "a ARRAY<INT>"
        ),
    }
    for message, attempt in cases.items():
        with pytest.raises(TransformError) as caught:
            attempt()
        assert message in str(caught.value)


def test_a_piece_is_bounded_in_bytes() -> None:
    values = [b'{"name": "' + b"x" * 100_000 + b'"}'] * 300
    fields, errors = parse_column(table_of(values), "value", JsonFormat(fields_of("name STRING")))
    assert errors.null_count == 300
    assert max(map(len, fields[0].chunks)) * 100_000 <= columns.PIECE_BYTES
