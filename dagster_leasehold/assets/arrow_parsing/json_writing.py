"""Values of JSON written anew, as Spark writes them into a field of text."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any

_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}
_ESCAPED = re.compile(r'["\\\x00-\x1f]')


class Whole(str):
    """The digits of a number without a point or an exponent."""


class Fraction(str):
    """Any other number."""


def text_of(value: Any) -> str:
    """Return a string, or the text of any other value, written anew."""
    return whole_letters(value) if type(value) is str else _written(value)


def whole_letters(text: str) -> str:
    """Return a text with a question mark for each half of a letter that stands alone."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        pairs: Any = value
        return f"{{{','.join(f'{_quoted(name)}:{_written(inner)}' for name, inner in pairs)}}}"
    if isinstance(value, list):
        items: Any = value
        return f"[{','.join(map(_written, items))}]"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if type(value) is Whole:
        return "0" if value == "-0" else value
    if type(value) is Fraction:
        return _java_number(float(value.replace("INF", "Infinity")))
    return _quoted(value)


def _quoted(text: str) -> str:
    escaped = _ESCAPED.sub(
        lambda letter: _ESCAPES.get(letter[0]) or f"\\u{ord(letter[0]):04X}", whole_letters(text)
    )
    return f'"{escaped}"'


def _java_number(number: float) -> str:
    """Return a floating number as Java writes it."""
    if not math.isfinite(number):
        return {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}[str(number)]
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        text = f"{Decimal(repr(number)):f}"
        return text if "." in text else f"{text}.0"
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    shown = "".join(map(str, digits)).rstrip("0") or "0"
    power = len(digits) + int(exponent) - 1
    return f"{'-' if sign else ''}{shown[0]}.{shown[1:] or '0'}E{power}"
