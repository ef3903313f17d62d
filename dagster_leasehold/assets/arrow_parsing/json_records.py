"""One record of JSON at a time, with the grammar, the limits and the types of Spark's reader."""

from __future__ import annotations

import binascii
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from dagster_leasehold.assets.arrow_parsing import spark_texts
from dagster_leasehold.assets.arrow_parsing.json_writing import (
    Fraction,
    Whole,
    text_of,
    whole_letters,
)

DEPTH_MAX = 1_000
NUMBER_LENGTH_MAX = 1_000
NAME_LENGTH_MAX = 50_000
_SAFE_DEPTH = 200
_BLANKS = " \t\r\n"
_NAMED_NUMBERS = {"NaN", "Infinity", "+Infinity", "-Infinity", "+INF", "-INF"}
# A string without an end reaches to the end of the text: otherwise each quote in it would be tried.
_TOKENS = re.compile(
    r'"(?:[^"\\]++|\\.)*+("?)|\'(?:[^\'\\]++|\\.)*+(\'?)|[+-]INF|\+Infinity|[\[{\]}]', re.DOTALL
)
_IN_QUOTES = re.compile(r"\\(.)|\"", re.DOTALL)
_BASE64 = re.compile(
    r"(?:[\x00- ]*+(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==))*+[\x00- ]*+"
)
Reader = Callable[[Any], Any]


def _short(kind: type[str]) -> Callable[[str], str]:
    def number(text: str) -> str:
        if sum(map(str.isdigit, text)) > NUMBER_LENGTH_MAX:
            raise ValueError("the number is too long")
        return kind(text)

    return number


def _named(pairs: list[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    if any(len(name) > NAME_LENGTH_MAX for name, _ in pairs):
        raise ValueError("a name is too long")
    return tuple(pairs)


# An object is a tuple of pairs and an array a list, so that they differ and nothing is lost.
_DECODER = json.JSONDecoder(
    object_pairs_hook=tuple, parse_int=Whole, parse_float=Fraction, parse_constant=Fraction
)
_CAREFUL_DECODER = json.JSONDecoder(
    object_pairs_hook=_named,
    parse_int=_short(Whole),
    parse_float=_short(Fraction),
    parse_constant=Fraction,
)


def reader_of_record(fields: pa.Schema) -> Callable[[str], Sequence[object]]:
    """Return the function that reads the fields of a record.

    It raises ValueError or ArithmeticError where Spark finds no record. What follows an object is
    not looked at, and of a field that comes twice the last counts, if none of them is wrong.
    """
    readers = {field.name: (at, _reader(field.type)) for at, field in enumerate(fields)}
    width = len(fields)

    def read(text: str) -> Sequence[object]:
        row: list[object] = [None] * width
        for name, value in decoded(text):
            if (place := readers.get(name)) is not None:
                row[place[0]] = None if value is None else place[1](value)
        return row

    return read


def decoded(text: str) -> tuple[tuple[str, Any], ...]:
    """Return the pairs of an object.

    Raises:
        ValueError: the text does not begin with an object of JSON.
    """
    text = text.lstrip(_BLANKS)
    if not text.startswith("{"):
        raise ValueError("no object")
    opened = text.count("[") + text.count("{")
    depth = _depth(text) if opened > _SAFE_DEPTH else opened
    if depth > DEPTH_MAX:
        raise ValueError("nested too deep")
    decoder = _DECODER if len(text) <= NUMBER_LENGTH_MAX else _CAREFUL_DECODER
    if depth <= _SAFE_DEPTH:
        return _pairs(decoder, text)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + 4 * DEPTH_MAX)
    try:
        return _pairs(decoder, text)
    finally:
        sys.setrecursionlimit(limit)


def _pairs(decoder: json.JSONDecoder, text: str) -> tuple[tuple[str, Any], ...]:
    try:
        return decoder.raw_decode(text)[0]
    except ValueError:
        if "'" not in text and "INF" not in text and "+Infinity" not in text:
            raise
        return decoder.raw_decode(_TOKENS.sub(_in_strict_form, text))[0]


def _depth(text: str) -> int:
    depth = deepest = 0
    for token in _TOKENS.finditer(text):
        if token[0] in ("[", "{"):
            depth += 1
            deepest = max(deepest, depth)
        elif token[0] in ("]", "}"):
            depth -= 1
            if depth == 0:
                break
    return deepest


def _in_strict_form(token: re.Match[str]) -> str:
    """Return a token as the standard has it: Spark also takes single quotes and signed INF."""
    text = token[0]
    if text[0] in "\"'":
        inside = text[1:-1] if token[1] or token[2] else text[1:]
        end = '"' if token[1] or token[2] else ""
        return f'"{_IN_QUOTES.sub(_in_double_quotes, inside)}{end}'
    return {"+INF": "Infinity", "-INF": "-Infinity", "+Infinity": "Infinity"}.get(text, text)


def _in_double_quotes(letter: re.Match[str]) -> str:
    if letter[1] == "'":
        return "'"
    return letter[0] if letter[1] else '\\"'


def _reader(kind: pa.DataType) -> Reader:
    """Return the function that reads a value of a type, which is not null."""
    if pa.types.is_nested(kind):
        return _reader_of_nested(kind)
    if pa.types.is_integer(kind):
        return _reader_of_integers(kind.bit_width)
    if pa.types.is_decimal(kind):
        return _reader_of_decimals(kind.precision, kind.scale)
    return {
        pa.bool_(): _boolean,
        pa.string(): text_of,
        pa.binary(): lambda value: decoded_bytes(_string(value)),
        pa.date32(): lambda value: days(_string(value)),
        pa.timestamp("us"): lambda value: spark_texts.local_micros_of(_string(value)),
        pa.timestamp("us", tz="UTC"): _moment,
        pa.float32(): lambda value: _floating(value, spark_texts.rounded_single),
        pa.float64(): lambda value: _floating(value, float),
    }[kind]


def _string(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("no string")
    return value


def _boolean(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise ValueError("no boolean")


def _reader_of_integers(bits: int) -> Reader:
    # A byte may be given without its sign.
    low, high = -(2 ** (bits - 1)), 2**8 if bits == 8 else 2 ** (bits - 1)

    def read(value: Any) -> int:
        if type(value) is not Whole or not low <= (number := int(value)) < high:
            raise ValueError("no integer of the type")
        return number - 2**8 if bits == 8 and number >= 2**7 else number

    return read


def _floating(value: Any, of_text: Callable[[str], float]) -> float:
    if type(value) is Whole:
        # A whole number has no negative zero.
        return of_text(value) + 0.0
    if type(value) is Fraction or (type(value) is str and value in _NAMED_NUMBERS):
        return float(value.replace("INF", "Infinity")) if value[-1] in "NFy" else of_text(value)
    raise ValueError("no number")


def _reader_of_decimals(precision: int, scale: int) -> Reader:
    def read(value: Any) -> Decimal:
        if type(value) is str:
            return spark_texts.decimal_number(value, precision, scale)
        if type(value) in (Whole, Fraction):
            return spark_texts.fitted(value, precision, scale)
        raise ValueError("no decimal")

    return read


def _moment(value: Any) -> int:
    if type(value) is Whole:
        return spark_texts.in_range(_reader_of_integers(64)(value) * 1_000_000)
    return spark_texts.micros_of(_string(value))


def days(text: str) -> int:
    """Return the days of a date, which may be written as this number."""
    try:
        return spark_texts.days_of(text)
    except ValueError:
        return spark_texts.whole_number(text, 32)


def decoded_bytes(text: str) -> bytes:
    """Return the bytes of a text in base 64, of which each group is complete."""
    if not _BASE64.fullmatch(text):
        raise ValueError("no base 64")
    letters = re.sub(r"[\x00- ]", "", text)
    groups = (letters[at : at + 4] for at in range(0, len(letters), 4))
    return b"".join(map(binascii.a2b_base64, groups))


def _reader_of_nested(kind: pa.DataType) -> Reader:
    if pa.types.is_list(kind):
        return _reader_of_list(_reader(kind.value_type))
    if pa.types.is_map(kind):
        return _reader_of_map(_reader(kind.item_type))
    return _reader_of_struct({field.name: _reader(field.type) for field in kind})


def _reader_of_list(read: Reader) -> Reader:
    def read_list(value: Any) -> list[object]:
        return [None if item is None else read(item) for item in _held(value, list)]

    return read_list


def _reader_of_map(read: Reader) -> Reader:
    def read_map(value: Any) -> list[tuple[str, object]]:
        return [
            (whole_letters(name), None if inner is None else read(inner))
            for name, inner in _held(value, tuple)
        ]

    return read_map


def _reader_of_struct(readers: Mapping[str, Reader]) -> Reader:
    def read_struct(value: Any) -> dict[str, object]:
        row: dict[str, Any] = dict.fromkeys(readers)
        for name, inner in _held(value, tuple):
            if name in readers:
                row[name] = None if inner is None else readers[name](inner)
        return row

    return read_struct


def _held(value: Any, kind: type[Any]) -> Any:
    """Return an array, or the pairs of an object; raise ValueError for any other value."""
    if isinstance(value, kind):
        return value
    raise ValueError("no array" if kind is list else "no object")
