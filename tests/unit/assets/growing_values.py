"""Hostile values that grow: one record of any size for each slow path of the parsers."""

from __future__ import annotations

from dataclasses import dataclass

NUMBERS = "n INT|big BIGINT|single FLOAT|double DOUBLE|price DECIMAL(5,2)|wide DECIMAL(38,18)"
TIMES = "day DATE|at TIMESTAMP|bare TIMESTAMP_NTZ"
# A beginning, a repeated part, and an end.
_NUMBERS = (
    ("", "1", "x"),
    ("", "1", ""),
    ("", "0", "1"),
    ("0.", "0", "1"),
    ("1.", "1", "x"),
    ("", "1", ".x"),
    ("1e", "1", "x"),
    ("1e-", "0", "1"),
    ("0x", "f", "x"),
    ("0x1.", "f", "x"),
    ("0x", "f", "p1"),
    ("", "1_", "1"),
    ("", "1,", "1"),
    ("", "1" * 999 + "x", ""),
    ("", "\u0661", "x"),
    ("", " ", "1"),
    ("1", " ", "x"),
    ("-", "-", "1"),
)
_TIMES = (
    ("2024-01-02T03:04:05.", "1", "x"),
    ("2024-01-02T03:04:05", "A", ""),
    ("2024-01-02T03:04:05", "+1:", ""),
    ("2024-01-02T03:04:05+", "0", ""),
    ("2024-01-02T03:04:05Europe/", "Berlin", ""),
    ("2024-01-02", " ", "x"),
    ("2024-01-02T", "1:", ""),
    ("", "GMT", ""),
    ("", "GMT", "2024"),
    ("", "2", "024"),
    ("", " ", "2024-01-02"),
    ("", "T1:", "x"),
)
_BYTES = (("", "AAAA", "%"), ("", " ", "%"), ("AAAA", " ", "%"), ("", " AAAA", "A"), ("", "A", "="))
_TEXTS = (
    ("", "x", ""),
    ("", "é", ""),
    ("", "\\\\", ""),
    ("", '\\"', ""),
    ("", "\\u0041", ""),
    ("", "\\ud83d", ""),
    ("", "\t", ""),
    ("", "'", ""),
)
_OBJECTS = (
    ("{", '"a":1,', '"a":1}'),
    ("{", '"a":"b",', '"a":1}'),
    ("{", "'a':'b',", "'a':1}"),
    ("", "{", ""),
    ("", '{"a":', ""),
    ('{"a":', "[", "]"),
    ('{"a":', "[1,", ""),
    ('{"a":"', '\\"x', ""),
    ("{'a':'", "\\'x", ""),
    ("{'a':\"", '\\"x', ""),
    ("{'a':1,", "'\"", ""),
    ("{'a':+INF,", "'\\", "}"),
    ('{"o":' + "[" * 300, '"\\"', ""),
    ('{"o":' + "[" * 300, '"x",', ""),
    ('{"a":', "1", "}"),
    ('{"a":', "1" * 999 + "e", "}"),
    ('{"a":', " ", "1}"),
    ('{"a":1}', "x", ""),
    ('{"a":1}', '"', ""),
    ('{"a":NaN,', '"NaN":Inf,', "}"),
    ('{"', "a", '":1}'),
    ('{"counts":{', '"k":1,', '"l":1}}'),
    ('{"numbers":[', "1,", "1]}"),
    ('{"numbers":[', "1,", "x]}"),
    ('{"days":[', '"2024-01-02",', '"x"]}'),
    ('{"text":[', '{"a":1.5},', "{}]}"),
)
_OBJECT = "a STRING, text STRING, counts MAP<STRING, INT>, numbers ARRAY<INT>, days ARRAY<DATE>"
_LINES = (
    ("", ",", ""),
    ("", '"', ""),
    ("", '"a",', ""),
    ("", '"a"b,', ""),
    ("", '"a" ,', ""),
    ('"', "a", ""),
    ('"', "a", '"'),
    ('"', 'a""', '",b'),
    ('"', 'a""', '" b'),
    ("a", '"', '"'),
    ("", "\n", ""),
    ('"', "\n", '",b'),
    ("", " ", ""),
    ("\0", "a", ",b"),
    ("\ufeff", "a", ",b"),
)


@dataclass(frozen=True)
class Shape:
    """A value of any size.

    Attributes:
        schema: the schema that parses it.
        separator: the separator of CSV; None for JSON.
    """

    schema: str
    separator: str | None
    begin: str
    unit: str
    end: str

    def of(self, size: int) -> bytes:
        """Return a value of about so many bytes."""
        begin, unit, end = (part.encode() for part in (self.begin, self.unit, self.end))
        return begin + unit * max(1, (size - len(begin) - len(end)) // len(unit)) + end

    def __str__(self) -> str:
        form = "CSV" if self.separator else "JSON"
        shown = f"{self.begin[:30]}({self.unit[:12]})*{self.end}"
        return f"{form} {self.schema.split(',')[0]}: {shown}".encode("unicode_escape").decode()


def _shapes() -> list[Shape]:
    parts = {NUMBERS: _NUMBERS, TIMES: _TIMES, "raw BINARY": _BYTES, "text STRING": _TEXTS}
    shapes = [Shape(_OBJECT, None, *each) for each in _OBJECTS]
    shapes += [Shape("a STRING, b STRING", ",", *each) for each in _LINES]
    for kinds, forms in parts.items():
        for kind in kinds.split("|"):
            name = kind.split()[0]
            for begin, unit, end in forms:
                shapes.append(Shape(kind, ";", begin, unit, end))
                for quote in ("", '"', "'"):
                    left, right = f'{{"{name}":{quote}{begin}', f"{end}{quote}}}"
                    shapes.append(Shape(kind, None, left, unit, right))
                shapes.append(Shape(kind, None, f'{{"{name}":"{begin}', unit, end))
    return shapes


SHAPES = _shapes()
