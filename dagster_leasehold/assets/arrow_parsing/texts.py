"""Converts text to values: the fields of CSV, and dates and times in JSON.

The same rules apply to all records:

| type | text |
|---|---|
| BOOLEAN | `true` or `false`, in upper or lower case |
| integers | digits with an optional sign, in the range of the type |
| FLOAT, DOUBLE | a number with an optional exponent, in the range of the type; `NaN` or `Inf` |
| DECIMAL | a decimal number that fits the type without rounding |
| DATE | `2026-01-31` |
| TIMESTAMP | RFC 3339: `2026-01-31T08:00:00.5+01:00`; UTC by default |
| TIMESTAMP_NTZ | the same without a zone |

A time with more than six fractional digits is rounded to microseconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute

from dagster_leasehold.assets.arrow_parsing.columns import Column, fit_values

_pc: Any = pyarrow.compute

_DIGITS = r"[0-9]+"
_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
SINGLE_MAX = 3.4028234663852886e38
# A longer text is not parsed as a number.
_NUMBER_LETTERS_MAX = 1_000


@dataclass(frozen=True)
class TextForm:
    """The text form of a type.

    Attributes:
        plain: the texts that Arrow converts exactly as `value` does, as a regular expression
            without anchors.
        value: converts any valid text; raises ValueError or ArithmeticError for other texts.
    """

    plain: str
    value: Callable[[str], object]


def form_of(kind: pa.DataType) -> TextForm | None:
    """Return the text form of a type; None for an array or another type without one."""
    if pa.types.is_integer(kind):
        return TextForm(f"-?{_DIGITS}", lambda text: _in_range(_integer(text), kind.bit_width))
    if pa.types.is_decimal(kind):
        plain = f"-?[0-9]{{1,{kind.precision}}}(?:\\.[0-9]{{1,{max(1, kind.scale)}}})?"
        return TextForm(plain, lambda text: exact_decimal(_decimal(text), kind))
    return {
        pa.bool_(): TextForm("true|false", _boolean),
        pa.string(): TextForm("(?s).*", str),
        pa.binary(): TextForm("(?s).*", str.encode),
        pa.float32(): TextForm(r"-?[0-9]{1,30}(?:\.[0-9]{1,30})?", _single),
        pa.float64(): TextForm(r"-?[0-9]{1,300}(?:\.[0-9]{1,300})?", _double),
        pa.date32(): TextForm(r"\d{4}-\d\d-\d\d", lambda text: msgspec.convert(text, date)),
        pa.timestamp("us"): TextForm(_plain_time(""), _local_moment),
        pa.timestamp("us", tz="UTC"): TextForm(
            _plain_time("Z"), lambda text: msgspec.convert(text, datetime)
        ),
    }.get(kind)


def typed(values: Any, kind: pa.DataType, form: TextForm) -> Column:
    """Convert texts, in a list or an array, to values of a type; null for texts that do not fit."""
    texts = values if isinstance(values, pa.Array) else pa.array(values, pa.string())
    if kind == pa.string():
        return Column(texts)
    if _pc.all(_pc.match_substring_regex(texts, f"^(?:{form.plain})$"), min_count=0).as_py():
        try:
            return Column(texts.cast(kind))
        except pa.ArrowInvalid:
            pass
    return fit_values(texts.to_pylist(), kind, form.value)


def exact_decimal(value: Decimal, kind: pa.DataType) -> Decimal:
    """Return a decimal with the scale of its type; raise ArithmeticError if its value would change.

    Arrow crashes on a decimal with millions of fractional digits, so it must not get one.
    """
    context = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    scaled = value.quantize(Decimal(1).scaleb(-kind.scale), context=context)
    if not scaled.is_finite():
        raise ArithmeticError("no number")
    return scaled


def _plain_time(zone: str) -> str:
    return rf"\d{{4}}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{{1,6}})?{zone}"


def _number(kind: Callable[[str], Any], form: str) -> Callable[[str], Any]:
    whole = re.compile(form, re.ASCII)

    def number(text: str) -> Any:
        if len(text) > _NUMBER_LETTERS_MAX or not whole.fullmatch(text):
            raise ValueError("no number")
        return kind(text)

    return number


_integer = _number(int, f"[+-]?{_DIGITS}")
_decimal = _number(Decimal, f"[+-]?{_NUMBER}")
_finite = _number(float, f"[+-]?{_NUMBER}")


def _in_range(number: int, bits: int) -> int:
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueError("out of range")
    return number


def _double(text: str) -> float:
    if text.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        return float(text)
    number = _finite(text)
    if math.isinf(number):
        raise ValueError("out of range")
    return number


def _single(text: str) -> float:
    number = _double(text)
    if math.isfinite(number) and abs(number) > SINGLE_MAX:
        raise ValueError("out of range")
    return number


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("no boolean")
    return text.lower() == "true"


def _local_moment(text: str) -> datetime:
    moment = msgspec.convert(text, datetime)
    if moment.tzinfo:
        raise ValueError("a zone")
    return moment
