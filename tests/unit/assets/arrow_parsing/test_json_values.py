"""Fields of each type in JSON objects; None stands for quarantine."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dagster_leasehold.assets.parsing import parse_json

AT = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
# By type, the value of a field as it stands in JSON. `...` stands for null.
VALUES: dict[str, dict[str, Any]] = {
    "BOOLEAN": {"true": True, "false": False, "null": ..., '"true"': None, "1": None, "TRUE": None},
    "TINYINT": {"127": 127, "-128": -128, "128": None, "255": None},
    "INT": {
        "1": 1, "-0": 0, "2147483648": None, "1.0": None, "1e2": None, '"1"': None, "00": None,
        "true": None, "[]": None, "{}": None, "9" * 30: None, "NaN": None,
    },
    "BIGINT": {"9223372036854775807": 2**63 - 1, "9223372036854775808": None, "1e3": None},
    "FLOAT": {"1": 1.0, "0.5": 0.5, "3.4e39": None, "-3.4e39": None, "1e-46": 0.0, '"NaN"': None},
    "DOUBLE": {
        "1": 1.0, "1E5": 1e5, "1e400": None, "1e-400": 0.0, '"1.5"': None, "NaN": None,
        "123456789012345678901234567890": 1.2345678901234568e29, "Infinity": None, "true": None,
    },
    "STRING": {
        '"x"': "x", '""': "", r'"\ud83d\ude00\n\u0000"': "😀\n\0", "1.50": "1.50", "1e5": "1e5",
        "12345678901234567890123": "12345678901234567890123", "true": "true", "null": ...,
        '{"b": {}, "c":[1,2.50,null]}': '{"b": {}, "c":[1,2.50,null]}', "[ ]": "[ ]",
        r'"\ud83d"': None, r'"\x"': None, "NaN": None, "'x'": None,
    },
    "BINARY": {'"aGk="': b"hi", '""': b"", '"aGk"': None, '"%%"': None, '"-_-_"': None, "1": None},
    "DECIMAL(5,2)": {
        "1": Decimal("1.00"), "1.5": Decimal("1.50"), '"1.5"': Decimal("1.50"),
        "1e2": Decimal("100.00"), "1.005": None, "1000": None, '"1,25"': None, "true": None,
        '"NaN"': None, "1e9999999999": None,
    },
    "DATE": {'"2024-01-02"': date(2024, 1, 2), '"2024-1-2"': None, "5": None},
    "TIMESTAMP": {
        '"2024-01-02T03:04:05Z"': AT, '"2024-01-02T05:04:05+02:00"': AT,
        '"2024-01-02T03:04:05"': AT, "1704164645": None, "1704164645000": None, '"": ""': None,
        '"0000-12-31T23:59:59Z"': None, '"2024-01-02"': None,
    },
    "TIMESTAMP_NTZ": {
        '"2024-01-02T03:04:05"': AT.replace(tzinfo=None), '"2024-01-02T03:04:05Z"': None,
    },
    "ARRAY<INT>": {"[1,null]": [1, None], "[]": [], '[1,"x"]': None, "[[1]]": None, "1": None},
    "ARRAY<TIMESTAMP>": {
        '["2024-01-02T03:04:05Z",null]': [AT, None], "[1704164645]": None,
        '["9999-12-31T23:59:59-00:01"]': None, '["2024-01-02T03:04:05+01:00","x"]': None,
    },
    "ARRAY<STRING>": {'["x",1.50,{"a":1},null]': ["x", "1.50", '{"a":1}', None]},
    "MAP<STRING, INT>": {
        '{"x":1,"y":null}': [("x", 1), ("y", None)], "{}": [], '{"x":"s"}': None, "[]": None,
        '{"x":1,"\\u0078":2}': [("x", 2)],
    },
    "MAP<STRING, STRING>": {'{"x":1.0,"y":"z"}': [("x", "1.0"), ("y", "z")]},
    "STRUCT<x: INT, `a b`: STRING>": {
        '{"x":1,"z":[]}': {"x": 1, "a b": None}, "{}": {"x": None, "a b": None},
        '{"a b":5}': {"x": None, "a b": "5"}, '{"x":"s"}': None, '{"x":1,"x":2}': {
            "x": 2, "a b": None,
        },
    },
    "ARRAY<STRUCT<p: DECIMAL(3,1), d: DATE>>": {
        '[{"p":1.5,"d":"2024-01-02"},null]': [{"p": Decimal("1.5"), "d": date(2024, 1, 2)}, None],
        '[{"p":1.55}]': None, '[{"d":"2024-02-30"}]': None,
    },
}  # fmt: skip
WHOLE: dict[bytes | None, int | None] = {
    b'{"n":1}': 1, b' \n{"n"\t:1}\r\n': 1, b'{"n":2,"o":[{"n":1}]}': 2, b'{"\\u006e":1}': 1,
    b'{"n":1,"n":2}': 2, b'{"":1,"n":5}': 5, b'{"n":1,"o":' + b"1" * 2_000 + b"}": 1,
    b'{"n":1,"' + b"o" * 100_000 + b'":0}': 1,
    b'{"n":1,"o":' + b"[" * 100_000 + b"]" * 100_000 + b"}": None,
    b"": None, b"  ": None, None: None, b"null": None, b"1": None, b'"x"': None,
    b'[{"n":1}]': None, b'{"n":1} x': None, b'{"n":1}{"n":2}': None, b'{"n":1}}': None,
    b'{"n":1': None, b'{"n":1,}': None, b"{'n':1}": None, b"{n:1}": None, b'{"n":1]': None,
    b'\xef\xbb\xbf{"n":1}': None, b'{"n":1}\x00': None, b'{"n":1}\xff': None,
    b'{"n":1,"o":"\xff"}': None, b'{"n":1,"o":tru}': None, b'{"n":1,"o":NaN}': None,
    b'{"n":1,"o":01}': None, b'{"n":1/*c*/}': None, b'{"n":"x","n":2}': None,
}  # fmt: skip


def parsed(kind: str, texts: list[str]) -> list[Any]:
    """Return the values of fields that are parsed together; None for those in quarantine."""
    table = pa.table({"value": [f'{{"v":{text},"there":1}}'.encode() for text in texts]})
    result = parse_json(table, f"v {kind}, there INT")
    errors = result.column("quarantine_error").to_pylist()
    assert result.column("there").to_pylist() == [None if error else 1 for error in errors]
    values = zip(result.column("v").to_pylist(), errors, strict=True)
    return [... if value is None and not error else value for value, error in values]


@pytest.mark.parametrize("kind", VALUES)
def test_a_field_is_read_the_same_alone_and_among_others(kind: str) -> None:
    values = VALUES[kind]
    assert parsed(kind, list(values)) == list(values.values())
    assert [parsed(kind, [text])[0] for text in values] == list(values.values())
    good = {text: value for text, value in values.items() if value is not None}
    assert parsed(kind, list(good)) == list(good.values())


def test_a_value_has_to_be_exactly_one_object() -> None:
    table = pa.table({"value": pa.array(list(WHOLE), pa.binary())})
    result = parse_json(table, "n INT")
    assert result["n"].to_pylist() == list(WHOLE.values())
    errors = dict(zip(WHOLE, result.column("quarantine_error").to_pylist(), strict=True))
    assert errors[b'{"n":1}\xff'] == errors[b'{"n":1,"o":"\xff"}'] == "value is not text in UTF-8"
    others = {error for error in errors.values() if error and "UTF-8" not in error}
    assert others == {"value is not a JSON object of the expected fields"}


def test_an_absent_field_is_null() -> None:
    schema = ", ".join(f"f{at} {kind}" for at, kind in enumerate(VALUES))
    (row,) = parse_json(pa.table({"value": [b'{"other":2}']}), schema).to_pylist()
    assert {value for name, value in row.items() if name != "value"} == {None}
