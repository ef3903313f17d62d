"""Columns of texts that are all written plainly, brought into their types by Arrow itself.

Each function takes a column of texts and returns it in its type, or None where a text is not of the
plain form. Arrow's own readers accept less than Spark's in some places and more in others, so a
form is plain only where both read the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from dagster_leasehold.assets.arrow_parsing.limits import DECIMAL_LETTERS_MAX

_pc: Any = pyarrow.compute

_INTEGER_LETTERS = b"-0123456789"
_NUMBER_LETTERS = b"-.0123456789eE"
_DATE_LENGTH = len("2026-01-31")
_SECONDS_UTC_LENGTH = len("2026-01-31T08:00:00Z")
_SECONDS_OFFSET_LENGTH = len("2026-01-31T08:00:00+01:00")


def plain_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return texts as they are, as strings or bytes."""
    return texts.cast(kind)


def plain_booleans(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return `true` and `false` as booleans."""
    words = pa.array(["true", "false", None])
    return _cast(texts, kind) if _all(_pc.is_in(texts, value_set=words)) else None


def plain_integers(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return digits with at most a minus as integers."""
    return _cast(texts, kind) if _has_only(texts, _INTEGER_LETTERS) else None


def plain_numbers(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return decimal numbers, with or without an exponent."""
    return _cast(texts, kind) if _has_only(texts, _NUMBER_LETTERS) else None


def plain_decimals(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return decimals that fit without rounding."""
    short = _all(_pc.less_equal(_pc.binary_length(texts), DECIMAL_LETTERS_MAX))
    if not short or not _has_only(texts, _NUMBER_LETTERS):
        return None
    values = _cast(texts, kind)
    return None if values is None or not is_valid(values) else values


def plain_dates(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return dates in the form `2026-01-31`."""
    lengths = _pc.binary_length(texts)
    return _cast(texts, kind) if _all(_pc.equal(lengths, _DATE_LENGTH)) else None


def plain_moments(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return moments in ISO 8601, all with a Z, all with hours and minutes from UTC, or all bare.

    With a zone they have seconds, which Spark expects in front of one.
    """
    lengths = _pc.binary_length(texts)
    if _all(_pc.ends_with(texts, "Z")):
        return _cast(texts, kind) if _all(_pc.greater_equal(lengths, _SECONDS_UTC_LENGTH)) else None
    hours = _pc.utf8_slice_codeunits(texts, -5, -3)
    colons = _pc.equal(_pc.utf8_slice_codeunits(texts, -3, -2), ":")
    signs = _pc.is_in(_pc.utf8_slice_codeunits(texts, -6, -5), value_set=pa.array(["+", "-", None]))
    if _all(signs) and _all(_pc.greater_equal(lengths, _SECONDS_OFFSET_LENGTH)):
        # Eighteen hours is the farthest for Spark, and Arrow takes twenty-three.
        near = _all(colons) and _all(_pc.less(hours, "18"))
        return _cast(texts, kind) if near else None
    values = plain_local_moments(texts, pa.timestamp("us"))
    return None if values is None else values.cast(kind)


def plain_local_moments(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return moments in ISO 8601 that all name no zone."""
    return _cast(texts, kind)


def is_valid(values: pa.Array) -> bool:
    """Return True if every value is one of its type: decimals in their precision, text in UTF-8."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def has_negative_zero(values: pa.Array) -> bool:
    """Return True if one of the floating numbers in a column is -0.0, also inside of others."""
    if pa.types.is_list(values.type):
        return has_negative_zero(values.flatten())
    if pa.types.is_struct(values.type):
        return any(has_negative_zero(child) for child in values.flatten())
    if not pa.types.is_floating(values.type):
        return False
    numbers = values.to_numpy(zero_copy_only=False)
    return bool((np.signbit(numbers) & (numbers == 0)).any())


def content(texts: pa.Array) -> memoryview:
    """Return the bytes of all texts, one behind the other."""
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return memoryview(b"")
    ends: npt.NDArray[np.int32] = np.frombuffer(offsets, np.int32)
    return memoryview(data)[ends[texts.offset] : ends[texts.offset + len(texts)]]


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        return None


def _has_only(texts: pa.Array, letters: bytes) -> bool:
    return not bytes(content(texts)).translate(None, letters)


def _all(values: pa.Array) -> bool:
    """Return True if nothing is false; nulls do not count."""
    return _pc.all(values, min_count=0).as_py()
