"""Texts as values of each type, in fields of CSV; None stands for quarantine."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from math import inf, isnan
from typing import Any

import pyarrow as pa
import pytest

from dagster_leasehold.assets.parsing import parse_csv

NOON = datetime(2024, 1, 2, 12, 0, 5, tzinfo=UTC)
BARE = NOON.replace(tzinfo=None)
VALUES: dict[str, dict[str, Any]] = {
    "BOOLEAN": {"true": True, "FALSE": False, "tRuE": True, "t": None, "1": None},
    "TINYINT": {"127": 127, "-128": -128, "128": None},
    "SMALLINT": {"32767": 32767, "32768": None},
    "INT": {
        "1": 1, "-1": -1, "+1": 1, "00012": 12, "-0": 0, "2147483647": 2147483647,
        "2147483648": None, "1.0": None, "1e2": None, "0x1": None, "1_0": None, "--1": None,
        "-": None, "\u0661": None, " 1": None, "1 ": None, "9" * 5000: None,
    },
    "BIGINT": {
        "9223372036854775807": 2**63 - 1, "-9223372036854775808": -(2**63),
        "9223372036854775808": None, "1L": None,
    },
    "FLOAT": {
        "0.5": 0.5, "16777217": 16777216.0, "3.4e38": 3.3999999521443642e38, "3.5e38": None,
        "1e39": None, "Inf": inf, "1e-50": 0.0, "x": None,
    },
    "DOUBLE": {
        "1": 1.0, "1.": 1.0, ".5": 0.5, "+.5": 0.5, "1E+5": 1e5, "1e-400": 0.0, "1e400": None,
        "-Inf": -inf, "infinity": inf, "nan": "nan", "1d": None, "0x1p3": None, ".": None,
        "e5": None, "1e": None, "1_0": None, "\u0661": None, "1,5": None, "9" * 400: None,
    },
    "DECIMAL(5,2)": {
        "1": Decimal("1.00"), "1.5": Decimal("1.50"), "1.500": Decimal("1.50"),
        "-999.99": Decimal("-999.99"), "+5": Decimal("5.00"), "1e2": Decimal("100.00"),
        "1.005": None, "999.995": None, "1000": None, "1,25": None, "1_0": None, "NaN": None,
        "1d": None, "0" * 900 + "1": Decimal("1.00"), "0" * 2000 + "1": None,
    },
    "DECIMAL(38,18)": {
        "12345678901234567890.123456789012345678": Decimal(
            "12345678901234567890.123456789012345678"
        ),
        "0.1234567890123456785": None, "1e20": None,
    },
    "DATE": {
        "2024-01-02": date(2024, 1, 2), "9999-12-31": date(9999, 12, 31),
        "0001-01-01": date(1, 1, 1), "0000-01-01": None, "2024-02-30": None, "2024-1-2": None,
        "2024": None, "20240102": None, "2024-01-02T00:00:00": None, "10000-01-01": None,
        "-0001-01-01": None, "5": None,
    },
    "TIMESTAMP": {
        "2024-01-02T12:00:05Z": NOON, "2024-01-02T12:00:05": NOON, "2024-01-02 12:00:05": NOON,
        "2024-01-02T12:00:05z": NOON, "2024-01-02T14:00:05+02:00": NOON,
        "2024-01-02T14:00:05+0200": NOON,
        "2024-01-02T12:00:05.25Z": NOON.replace(microsecond=250_000),
        "2024-01-02T12:00:05.1234567Z": NOON.replace(microsecond=123_457),
        "9999-12-31T23:59:59.999999Z": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        "9999-12-31T23:59:59-00:01": None, "0001-01-01T00:00:00+00:01": None,
        "2024-01-02": None, "2024-01-02T12:00Z": None, "2024-01-02T24:00:00Z": None,
        "2024-01-02T12:00:60Z": None, "2024-01-02T12:00:05PST": None, "1704164645": None,
        "2024-01-02T12:00:05Europe/Berlin": None, "57868-01-01T00:00:00Z": None,
    },
    "TIMESTAMP_NTZ": {
        "2024-01-02T12:00:05": BARE, "2024-01-02 12:00:05.5": BARE.replace(microsecond=500_000),
        "2024-01-02T12:00:05Z": None, "2024-01-02T12:00:05+02:00": None, "2024-01-02": None,
    },
    "STRING": {"x": "x", " x ": " x ", "#x": "#x", "\\x": "\\x", "naïve☃": "naïve☃"},
    "BINARY": {"é": "é".encode()},
}  # fmt: skip


def parsed(kind: str, texts: list[str]) -> list[Any]:
    """Return the values of texts that are parsed together; None for those in quarantine."""
    table = pa.table({"value": [f"{text};end".encode() for text in texts]})
    result = parse_csv(table, f"v {kind}, end STRING", separator=";")
    errors, ends = (result.column(name).to_pylist() for name in ("quarantine_error", "end"))
    assert [end is None for end in ends] == [error is not None for error in errors]
    return ["nan" if isinstance(v, float) and isnan(v) else v for v in result["v"].to_pylist()]


@pytest.mark.parametrize("kind", VALUES)
def test_a_text_is_read_the_same_alone_and_among_others(kind: str) -> None:
    values = VALUES[kind]
    assert parsed(kind, list(values)) == list(values.values())
    assert [parsed(kind, [text])[0] for text in values] == list(values.values())
    good = {text: value for text, value in values.items() if value is not None}
    assert parsed(kind, list(good)) == list(good.values())


@pytest.mark.parametrize("kind", VALUES)
def test_an_empty_field_is_null(kind: str) -> None:
    table = pa.table({"value": [b";end", b'"";end']})
    result = parse_csv(table, f"v {kind}, end STRING", separator=";")
    assert result["v"].to_pylist() == [None, None]
    assert result["end"].to_pylist() == ["end", "end"]
