"""Lines of CSV, and texts that are none; None stands for quarantine."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from dagster_leasehold.assets.parsing import parse_csv

Fields = tuple[str | None, str | None]
LINES: dict[bytes | None, Fields | None] = {
    b"x,y": ("x", "y"), b"x,": ("x", None), b",": (None, None), b'"",""': (None, None),
    b'"x",y': ("x", "y"), b'x,"a,b"': ("x", "a,b"), b'x,"y""z"': ("x", 'y"z'),
    b'x,"""y"""': ("x", '"y"'), b'"x\r\ny",z': ("x\r\ny", "z"), b'"\n","\n"': ("\n", "\n"),
    b'x,y"z"': ("x", 'y"z"'), b'x, "y"': ("x", ' "y"'), b" x , y ": (" x ", " y "),
    b"x,y\n": ("x", "y"), b"x,y\r\n": ("x", "y"), b"\\x,#y": ("\\x", "#y"),
    b"\x00x,y": ("\0x", "y"), b"\xef\xbb\xbfx,y": ("\ufeffx", "y"),
    "naïve,☃".encode(): ("naïve", "☃"), b'"' + b"x" * 200_000 + b'",y': ("x" * 200_000, "y"),
    b"": None, b"  ": None, None: None, b"\n": None, b"x": None, b"x,y,": None, b"x,y,z": None,
    b'x,"y" ': None, b'x,"y"z': None, b'"x","y': None, b'x,"': None, b'"x" ,y': None,
    b"x\ny,b": None, b"x\r,y": None, b"\nx,y": None, b"x,y\nz,w": None, b"\xff,x": None,
}  # fmt: skip
SEPARATORS = {"comma": ",", "tab": "\t", "semicolon": ";", "letter": "é", "symbol": "😀"}


def separated(separator: str) -> dict[bytes | None, Fields | None]:
    """Return the lines with another separator."""
    new = separator.encode()
    return {
        line and line.replace(b",", new): fields
        and (fields[0] and fields[0].replace(",", separator),
             fields[1] and fields[1].replace(",", separator))
        for line, fields in LINES.items()
    }  # fmt: skip


def parsed(
    lines: Sequence[bytes | None], separator: str
) -> list[tuple[str | None, str | None] | None]:
    table = pa.table({"value": pa.array(lines, pa.binary())})
    result = parse_csv(table, "a STRING, b STRING", separator=separator)
    return [None if row["quarantine_error"] else (row["a"], row["b"]) for row in result.to_pylist()]


@pytest.mark.parametrize("separator", SEPARATORS)
def test_a_line_is_read_the_same_alone_and_among_others(separator: str) -> None:
    lines = separated(SEPARATORS[separator])
    letter = SEPARATORS[separator]
    assert parsed(list(lines), letter) == list(lines.values())
    assert [parsed([line], letter)[0] for line in lines] == list(lines.values())
    good = {line: fields for line, fields in lines.items() if fields}
    assert parsed(list(good), letter) == list(good.values())
    # Plain ones together, with a bad or empty last one.
    plain = [f"x{letter}y".encode()] * 3
    for last in (b"", None, b"x", b"\xff"):
        assert parsed([*plain, last], letter) == [("x", "y")] * 3 + [None]


def test_a_line_can_have_one_field() -> None:
    table = pa.table({"value": [b"x", b"", b" ", b'"a\nb"', b"x,y"]})
    result = parse_csv(table, "a STRING")
    assert result["a"].to_pylist() == ["x", None, None, "a\nb", None]
    errors = result.column("quarantine_error").to_pylist()
    assert [error is None for error in errors] == [True, False, False, True, False]
