"""A column of values parsed piece by piece: the fast way where it can be had, else one by one.

A format says which records are plain; those go through Arrow's own readers, many at once. Of a
piece that such a reader refuses, the records that look wrong are set aside. If it refuses the
others as well, they are cut, and what is refused again is parsed record by record, as the records
are that look wrong or are not plain. So a bad record makes few others slow.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.output.readable_values import unreadable

# Its functions are made when it is imported, where a type checker cannot see them.
_pc: Any = pyarrow.compute

PIECE_RECORDS = 8192
PIECE_BYTES = 8 * 1024 * 1024
CUTS = 16
CUT_RECORDS_MIN = 64

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Parsed:
    """The fields of some records, in their order.

    Attributes:
        columns: one for each field, null where a record is bad.
        bad: true for the records that could not be parsed.
    """

    columns: Sequence[pa.Array]
    bad: Mask


class ValueFormat(ABC):
    """A format that values are parsed from.

    Attributes:
        fields: the fields of a record.
        complaint: the end of the sentence that a record is quarantined with.
    """

    fields: pa.Schema
    complaint: str

    @abstractmethod
    def plain(self, texts: pa.Array) -> pa.Array:
        """Return for each text if the fast way may take it; those beside it are as safe as it."""

    @abstractmethod
    def fast(self, texts: pa.Array) -> Parsed | None:
        """Return the records of plain texts; None if they have to be parsed one by one."""

    def sound(self, texts: pa.Array) -> Mask:
        """Return which plain texts look right, after the fast way has refused them together."""
        return np.ones(len(texts), np.bool_)

    @abstractmethod
    def exact(self, text: str) -> Sequence[object]:
        """Return the fields of one record.

        Raises:
            ValueError, ArithmeticError: it cannot be parsed.
        """


def parse_column(
    records: pa.Table, column: str, form: ValueFormat
) -> tuple[Sequence[pa.ChunkedArray], pa.ChunkedArray]:
    """Return the fields of each record as columns, and the error of those that have none.

    Raises:
        TransformError: there is no such column, or it holds neither bytes nor text.
    """
    values = _values(records, column)
    columns: list[list[pa.Array]] = [[] for _ in form.fields]
    errors: list[pa.Array] = []
    no_text = pa.scalar(f"{column} is not text in UTF-8")
    complaint = pa.scalar(f"{column} {form.complaint}")
    for piece in _pieces(values):
        texts, unreadable = _texts(piece)
        parsed = _readable(_parse(texts, form))
        for parts, part in zip(columns, parsed.columns, strict=True):
            parts.append(part)
        error = pa.nulls(len(texts), pa.string())
        if parsed.bad.any():
            error = _pc.if_else(pa.array(parsed.bad), complaint, error)
            error = _pc.if_else(pa.array(unreadable), no_text, error)
        errors.append(error)
    fields = [
        pa.chunked_array(parts, field.type)
        for parts, field in zip(columns, form.fields, strict=True)
    ]
    return fields, pa.chunked_array(errors, pa.string())


def rows_parsed(fields: pa.Schema, rows: Sequence[Sequence[object] | None]) -> Parsed:
    """Return rows of fields as columns; None stands for a bad record."""
    nothing = (None,) * len(fields)
    columns = zip(*(nothing if row is None else row for row in rows), strict=True)
    bad = np.fromiter((row is None for row in rows), np.bool_, len(rows))
    if not rows or not len(fields):
        return Parsed([pa.nulls(len(rows), field.type) for field in fields], bad)
    made = [pa.array(values, field.type) for values, field in zip(columns, fields, strict=True)]
    return Parsed(made, bad)


def typed(
    texts: pa.Array,
    kind: pa.DataType,
    fast: Callable[[pa.Array, pa.DataType], pa.Array | None],
    exact: Callable[[str], object],
) -> tuple[pa.Array, Mask]:
    """Return a column of texts in its type, and which of them have no value of that type."""
    values = fast(texts, kind)
    if values is not None:
        return values, np.zeros(len(texts), np.bool_)
    made: list[object] = []
    bad = np.zeros(len(texts), np.bool_)
    for at, text in enumerate(texts.to_pylist()):
        try:
            made.append(None if text is None else exact(text))
        except (ValueError, ArithmeticError):
            made.append(None)
            bad[at] = True
    return pa.array(made, kind), bad


def without_bad(columns: Sequence[pa.Array], bad: Mask) -> Parsed:
    """Return columns with nulls in place of all fields of bad records."""
    if bad.any():
        good = pa.array(~bad)
        columns = [_pc.if_else(good, column, pa.scalar(None, column.type)) for column in columns]
    return Parsed(columns, bad)


def _values(records: pa.Table, column: str) -> pa.ChunkedArray:
    if column not in records.schema.names:
        raise TransformError(
            f"The records have no column {column} to parse: they have "
            f"{', '.join(records.schema.names)}."
        )
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


def _texts(values: pa.Array) -> tuple[pa.Array, Mask]:
    """Return values as texts, and which of them are no UTF-8; these are null."""
    unreadable = np.zeros(len(values), np.bool_)
    try:
        return values.cast(pa.string()), unreadable
    except pa.ArrowInvalid:
        texts: list[str | None] = []
        for at, value in enumerate(values.to_pylist()):
            try:
                texts.append(None if value is None else value.decode())
            except UnicodeDecodeError:
                texts.append(None)
                unreadable[at] = True
        return pa.array(texts, pa.string()), unreadable


def _parse(texts: pa.Array, form: ValueFormat) -> Parsed:
    plain = form.plain(texts).fill_null(False)
    return _parse_by(plain.to_numpy(zero_copy_only=False), texts, form, _parse_plain)


def _readable(parsed: Parsed) -> Parsed:
    """Return records, of which those with a value that not every reader can read are bad."""
    bad = parsed.bad.copy()
    for mask in map(unreadable, parsed.columns):
        if mask is not None:
            bad |= mask.to_numpy(zero_copy_only=False)
    return without_bad(parsed.columns, bad)


def _parse_by(
    fast: Mask, texts: pa.Array, form: ValueFormat, parse: Callable[[pa.Array, ValueFormat], Parsed]
) -> Parsed:
    """Return records of which some may be parsed in a fast way, and the others one by one."""
    good = int(fast.sum())
    if good == len(texts):
        return parse(texts, form)
    rest = _parse_one_by_one(texts.filter(pa.array(~fast)), form)
    if not good:
        return rest
    first = parse(texts.filter(pa.array(fast)), form)
    # Where each record stands among those of the fast way, which come first, and the others.
    order = np.where(fast, np.cumsum(fast) - 1, good + np.cumsum(~fast) - 1)
    both = _joined([first, rest])
    return Parsed([column.take(pa.array(order)) for column in both.columns], both.bad[order])


def _parse_plain(texts: pa.Array, form: ValueFormat) -> Parsed:
    parsed = form.fast(texts)
    return parsed or _parse_by(form.sound(texts), texts, form, _parse_cut)


def _parse_cut(texts: pa.Array, form: ValueFormat) -> Parsed:
    records = max(CUT_RECORDS_MIN, -(-len(texts) // CUTS))
    cuts = [texts.slice(start, records) for start in range(0, len(texts), records)]
    return _joined([form.fast(cut) or _parse_one_by_one(cut, form) for cut in cuts])


def _parse_one_by_one(texts: pa.Array, form: ValueFormat) -> Parsed:
    rows: list[Sequence[object] | None] = []
    with _no_collection():
        for text in texts.to_pylist():
            try:
                rows.append(None if text is None else form.exact(text))
            except (ValueError, ArithmeticError, RecursionError):
                rows.append(None)
        return rows_parsed(form.fields, rows)


@contextmanager
def _no_collection() -> Generator[None]:
    """Let Python look for no cycles, which records have none of.

    It would walk the many values of one large record again and again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _joined(parts: Sequence[Parsed]) -> Parsed:
    columns = [
        pa.concat_arrays([each.columns[at] for each in parts])
        for at in range(len(parts[0].columns))
    ]
    return Parsed(columns, np.concatenate([each.bad for each in parts]))
