"""Values in JSON, many at once: Arrow's reader where it reads the same as Spark's.

Both are strict about the grammar, and differ in the corners: Arrow refuses a whole piece for one
record that it does not like, so everything that it refuses is read again by `json_records`. What it
accepts is what Spark accepts, but for the limits of Spark's reader, the names of numbers and a
zero with a minus.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.json

from dagster_leasehold.assets.arrow_parsing import json_records, plain_columns, spark_texts
from dagster_leasehold.assets.arrow_parsing.columns import (
    Mask,
    Parsed,
    ValueFormat,
    typed,
    without_bad,
)

_pc: Any = pyarrow.compute
_json: Any = pyarrow.json

# Where a value is no longer than this, it cannot break one of the limits of Spark's reader.
_SHORT_BYTES = 1_000
_NAMES_BYTES = 50_000
_OPENED_MAX = 1_000
_AS_ZEROS = bytes.maketrans(b"123456789.", b"0" * 10)
_LONG_NUMBER = b"0" * 1_000
# Numbers that both have names for, but not the same ones.
_NAMED_NUMBER = r"[:,\[\s]-?(?:NaN|Inf(?:inity)?)[\s,}\]]"
_BLANKS = " \t\r\n"


class JsonFormat(ValueFormat):
    """JSON objects of some fields.

    Args:
        fields: the fields; all others of an object are left out.
    """

    def __init__(self, fields: pa.Schema) -> None:
        self.fields = fields
        self.complaint = "is not a JSON object of the expected fields"
        self._read = json_records.reader_of_record(fields)
        self._readable = bool(len(fields)) and all(_is_readable(field.type) for field in fields)
        self._shapes = msgspec.json.Decoder(_shape_of(fields))
        schema = pa.schema([(field.name, _read_as(field.type)) for field in fields])
        self._options = _json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="ignore"
        )

    def plain(self, texts: pa.Array) -> pa.Array:
        """Return which texts begin and end like an object, and are far from every limit.

        Two texts that do cannot be read as one object, nor one as none, whatever is in them: after
        the brace that ends one no other can begin inside an object, and no string goes on in the
        next line. So as many objects as texts are one object in each.
        """
        if not self._readable:
            return pa.array(np.zeros(len(texts), np.bool_))
        plain = _begins_and_ends_with_braces(texts)
        if not _pc.all(plain, min_count=0).as_py():
            plain = _begins_and_ends_with_braces(_pc.utf8_trim(texts, characters=_BLANKS))
        data = bytes(plain_columns.content(texts))
        if b"NaN" in data or b"Inf" in data:
            plain = _pc.and_(plain, _pc.invert(_pc.match_substring_regex(texts, _NAMED_NUMBER)))
        lengths = _pc.binary_length(texts)
        if (_pc.max(lengths).as_py() or 0) > _SHORT_BYTES:
            long = _pc.greater(lengths, _SHORT_BYTES).fill_null(False)
            plain = _pc.and_(plain, _pc.replace_with_mask(plain, long, _far(texts.filter(long))))
        return plain

    def fast(self, texts: pa.Array) -> Parsed | None:
        """Return the records of a piece, read as lines of JSON."""
        lines = _pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), "\n")
        data = lines[0].as_buffer()
        try:
            table = _json.read_json(
                pa.BufferReader(data),
                read_options=_json.ReadOptions(use_threads=False, block_size=data.size + 1),
                parse_options=self._options,
            )
        except pa.ArrowInvalid:
            return None
        if table.num_rows != len(texts):
            return None
        return self._in_types([column.combine_chunks() for column in table.columns])

    def sound(self, texts: pa.Array) -> Mask:
        """Return which texts have fields of the types that Arrow's reader takes."""
        return np.fromiter(map(self._is_sound, texts.to_pylist()), np.bool_, len(texts))

    def _is_sound(self, text: str) -> bool:
        try:
            self._shapes.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return False
        return True

    def exact(self, text: str) -> Sequence[object]:
        """Return the fields of one record."""
        return self._read(text)

    def _in_types(self, columns: Sequence[pa.Array]) -> Parsed | None:
        bad = np.zeros(len(columns[0]) if columns else 0, np.bool_)
        made: list[pa.Array] = []
        for column, field in zip(columns, self.fields, strict=True):
            values = column
            if form := _TEXT_FORMS.get(_form_of(field.type)):
                values, wrong = typed(column, field.type, *form)
                bad |= wrong
            # Arrow does not look at the precision of a decimal that it has brought to its scale.
            elif not plain_columns.is_valid(values) or plain_columns.has_negative_zero(values):
                return None
            made.append(values)
        return without_bad(made, bad)


def _no_plain_form(texts: pa.Array, _: pa.DataType) -> pa.Array | None:
    return plain_columns.plain_texts(texts, pa.binary()) if texts.null_count == len(texts) else None


_TEXT_FORMS = {
    "date": (plain_columns.plain_dates, json_records.days),
    "moment": (plain_columns.plain_moments, spark_texts.micros_of),
    "local moment": (plain_columns.plain_local_moments, spark_texts.local_micros_of),
    "bytes": (_no_plain_form, json_records.decoded_bytes),
}


def _form_of(kind: pa.DataType) -> str:
    """Return the name of a type whose values are texts in JSON; empty if they are not."""
    if pa.types.is_date(kind):
        return "date"
    if pa.types.is_timestamp(kind):
        return "moment" if kind.tz else "local moment"
    return "bytes" if pa.types.is_binary(kind) else ""


def _read_as(kind: pa.DataType) -> pa.DataType:
    """Return the type that Arrow's reader gives a field."""
    return pa.string() if _form_of(kind) else kind


def _is_readable(kind: pa.DataType, *, inside: bool = False) -> bool:
    """Return True if Arrow's reader knows a type."""
    if pa.types.is_list(kind):
        return _is_readable(kind.value_type, inside=True)
    if pa.types.is_struct(kind):
        return all(_is_readable(field.type, inside=True) for field in kind)
    return not pa.types.is_map(kind) and not (inside and _form_of(kind))


def _shape_of(fields: Iterable[pa.Field]) -> Any:
    """Return the type of msgspec of an object whose fields Arrow's reader takes."""
    shapes: list[tuple[str, Any, Any]] = []
    names: dict[str, str] = {}
    for at, field in enumerate(fields):
        names[f"field_{at}"] = field.name
        shapes.append((f"field_{at}", _shape(field.type), None))
    return msgspec.defstruct("Shape", shapes, rename=names)


def _shape(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return _shape_of(kind) | None
    if pa.types.is_list(kind):
        return list[_shape(kind.value_type)] | None
    if pa.types.is_integer(kind):
        return int | None
    if pa.types.is_floating(kind):
        return float | None
    if pa.types.is_boolean(kind):
        return bool | None
    return str | None if pa.types.is_string(_read_as(kind)) else Any


def _begins_and_ends_with_braces(texts: pa.Array) -> pa.Array:
    return _pc.and_(_pc.starts_with(texts, "{"), _pc.ends_with(texts, "}"))


def _far(texts: pa.Array) -> pa.Array:
    """Return which long texts are far from the limits of Spark's reader."""
    return pa.array([_is_far(value) for value in texts.cast(pa.binary()).to_pylist()], pa.bool_())


def _is_far(value: bytes) -> bool:
    return (
        len(value) < _NAMES_BYTES
        and value.count(b"[") + value.count(b"{") < _OPENED_MAX
        and _LONG_NUMBER not in value.translate(_AS_ZEROS)
    )
