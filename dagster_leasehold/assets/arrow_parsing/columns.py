"""Parsing of a column piece by piece, into the fields or the error of each record.

`parsing` calls it with one of the two formats, and `decoding` with JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.output.readable_values import unreadable

# A type checker cannot see its functions, which are created at import.
_pc: Any = pyarrow.compute

PIECE_RECORDS = 8192
PIECE_BYTES = 8 * 1024 * 1024

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Column:
    """One field of some records.

    Attributes:
        values: the field of each record, in order.
        bad: the mask of records whose value does not fit the field; None if all values fit.
    """

    values: pa.Array
    bad: Mask | None = None


class ValueFormat(Protocol):
    """The format of the values to parse.

    Attributes:
        fields: the fields of a record.
        complaint: the end of the error message of a quarantined record.
    """

    fields: pa.Schema
    complaint: str

    def parse(self, values: Sequence[bytes | None]) -> tuple[Sequence[Column], Mask]:
        """Return the fields of records, and a mask of the records that cannot be parsed.

        Each value is text in UTF-8; None is a record that cannot be parsed.
        """
        ...


def parse_column(
    records: pa.Table, column: str, form: ValueFormat
) -> tuple[Sequence[pa.ChunkedArray], pa.ChunkedArray]:
    """Return the parsed fields as columns, and the error of each record that cannot be parsed.

    Raises:
        TransformError: the column holds neither bytes nor text.
    """
    values = _values(records, column)
    columns: list[list[pa.Array]] = [[] for _ in form.fields]
    errors: list[pa.Array] = []
    no_text = pa.scalar(f"{column} is not text in UTF-8")
    complaint = pa.scalar(f"{column} {form.complaint}")
    for piece in _pieces(values):
        arrays, bad, not_text = parsed(piece, form)
        for parts, part in zip(columns, arrays, strict=True):
            parts.append(part)
        error = pa.nulls(len(piece), pa.string())
        if bad.any():
            error = _pc.if_else(pa.array(bad), complaint, error)
            error = _pc.if_else(pa.array(not_text), no_text, error)
        errors.append(error)
    fields = [
        pa.chunked_array(parts, field.type)
        for parts, field in zip(columns, form.fields, strict=True)
    ]
    return fields, pa.chunked_array(errors, pa.string())


def fit_values(values: Sequence[Any], kind: pa.DataType, converted: Callable[[Any], Any]) -> Column:
    """Return a column of the values, with null for each value that does not fit the type.

    Args:
        values: the values of the column; None stands for null.
        kind: the type.
        converted: converts a value to the type; raises ValueError or ArithmeticError if the value
            does not fit.
    """
    items: list[Any] = []
    bad = np.zeros(len(values), np.bool_)
    for index, value in enumerate(values):
        try:
            items.append(None if value is None else converted(value))
        except (ValueError, ArithmeticError):
            items.append(None)
            bad[index] = True
    return Column(pa.array(items, kind), bad)


def parsed(piece: pa.Array, form: ValueFormat) -> tuple[list[pa.Array], Mask, Mask]:
    """Return the fields of a piece, and masks of bad records and of records that are not UTF-8."""
    values = piece.to_pylist()
    not_text = np.zeros(len(values), np.bool_)
    try:
        piece.cast(pa.string())
    except pa.ArrowInvalid:
        for index, value in enumerate(values):
            if value is not None and not _is_text(value):
                values[index], not_text[index] = None, True
    columns, bad = form.parse(values)
    for column in columns:
        if column.bad is not None:
            bad |= column.bad
        mask = unreadable(column.values)
        if mask is not None:
            bad |= mask.to_numpy(zero_copy_only=False)
    arrays = [column.values for column in columns]
    if bad.any():
        good = pa.array(~bad)
        arrays = [_pc.if_else(good, each, pa.scalar(None, each.type)) for each in arrays]
    return arrays, bad, not_text


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _values(records: pa.Table, column: str) -> pa.ChunkedArray:
    kind = records.schema.field(column).type
    of_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    if of_bytes or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return records.column(column).cast(pa.binary())
    raise TransformError(
        f"The column {column} holds {kind}, and only bytes or text can be parsed: cast it."
    )


def _pieces(values: pa.ChunkedArray) -> Iterator[pa.Array]:
    for chunk in values.chunks:
        size = max(1, sum(buffer.size for buffer in chunk.buffers()[1:] if buffer))
        records = max(1, min(PIECE_RECORDS, len(chunk) * PIECE_BYTES // size))
        for start in range(0, len(chunk), records):
            yield chunk.slice(start, records)
