"""The JSON format of `parsing`: msgspec decodes objects by the types of the fields.

An absent field is null, and fields that are not in the schema are ignored. If a name occurs twice,
the last value counts. Dates and times are strings (see `texts`), and bytes are in base 64. A
decimal is a number, or a string that contains one. A string field also accepts any other value, as
its JSON text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any, Optional, TypedDict

import msgspec
import numpy as np
import pyarrow as pa

from dagster_leasehold.assets.arrow_parsing import texts
from dagster_leasehold.assets.arrow_parsing.columns import Column, Mask, fit_values
from dagster_leasehold.assets.arrow_parsing.texts import SINGLE_MAX

_REFUSED = (msgspec.MsgspecError, RecursionError)


class JsonFormat:
    """JSON objects with the fields of a schema.

    Args:
        fields: the fields; other fields of an object are ignored.
    """

    def __init__(self, fields: pa.Schema) -> None:
        self.fields = fields
        self.complaint = "is not a JSON object of the expected fields"
        self._forms = [
            texts.form_of(field.type) if _is_time(field.type) else None for field in fields
        ]
        self._decoder = msgspec.json.Decoder(record_type(fields, str))
        self._raw_decoder = msgspec.json.Decoder(record_type(fields, msgspec.Raw))
        self._empty_row = self._decoder.decode(b"{}")

    def parse(self, values: Sequence[bytes | None]) -> tuple[Sequence[Column], Mask]:
        """Return the fields of objects, and a mask of the values that cannot be parsed."""
        bad = np.zeros(len(values), np.bool_)
        rows: list[Any] = []
        decode = self._decoder.decode
        for index, value in enumerate(values):
            try:
                rows.append(decode(value or b""))
            except _REFUSED:
                row = self._decode_with_texts(value or b"")
                bad[index] = row is None
                rows.append(self._empty_row if row is None else row)
        columns = [
            self._column(list(map(attrgetter(f"field_{index}"), rows)), index)
            for index in range(len(self.fields))
        ]
        return columns, bad

    def _column(self, values: list[Any], index: int) -> Column:
        kind, form = self.fields.field(index).type, self._forms[index]
        if form is not None:
            return texts.typed(values, kind, form)
        return exact_column(values, kind)

    def _decode_with_texts(self, value: bytes) -> Any | None:
        """Decode an object, with other values in string fields as JSON text; None if bad."""
        try:
            row = self._raw_decoder.decode(value)
            for index, field in enumerate(self.fields):
                name = f"field_{index}"
                setattr(row, name, _converted(getattr(row, name), field.type, _as_text))
        except _REFUSED:
            return None
        return row


def exact_column(values: list[Any], kind: pa.DataType) -> Column:
    """Return decoded values as a column; decimals that would be rounded do not fit."""
    if _has_decimals(kind):
        return fit_values(values, kind, lambda value: _converted(value, kind, _exact))
    return Column(pa.array(values, kind))


def _converted(value: Any, kind: pa.DataType, convert: Callable[[Any, pa.DataType], Any]) -> Any:
    """Convert the innermost values of a value, each by its type."""
    if value is None:
        return None
    if pa.types.is_list(kind):
        return [_converted(item, kind.value_type, convert) for item in value]
    if pa.types.is_map(kind):
        return {name: _converted(inner, kind.item_type, convert) for name, inner in value.items()}
    if pa.types.is_struct(kind):
        return {
            name: _converted(inner, kind.field(name).type, convert) for name, inner in value.items()
        }
    return convert(value, kind)


def _as_text(value: Any, _: pa.DataType) -> Any:
    """Decode a raw string or null, and return any other raw value as its JSON text."""
    if not isinstance(value, msgspec.Raw):
        return value
    json_text = bytes(value)
    is_string = json_text[:1] in (b'"', b"n")
    return msgspec.json.decode(json_text, type=str | None) if is_string else json_text.decode()


def _exact(value: Any, kind: pa.DataType) -> Any:
    return texts.exact_decimal(value, kind) if pa.types.is_decimal(kind) else value


def record_type(fields: pa.Schema, text: type[Any], *, times_as_text: bool = True) -> Any:
    """Return msgspec's type for an object with these fields; `text` is the type of strings."""
    names = {f"field_{index}": field.name for index, field in enumerate(fields)}
    kinds: list[tuple[str, Any, Any]] = [
        (
            f"field_{index}",
            str | None if times_as_text and _is_time(field.type) else _type(field.type, text),
            None,
        )
        for index, field in enumerate(fields)
    ]
    return msgspec.defstruct("Record", kinds, rename=names)


def _has_decimals(kind: pa.DataType) -> bool:
    """Return True for decimals, and for types that contain decimals."""
    if pa.types.is_nested(kind):
        return any(_has_decimals(kind.field(index).type) for index in range(kind.num_fields))
    return pa.types.is_decimal(kind)


def _is_time(kind: pa.DataType) -> bool:
    """Return True for the types that Arrow converts from text faster than msgspec does."""
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind)


def _type(kind: pa.DataType, text: type[Any]) -> Any:
    """Return msgspec's type for a value or null."""
    if pa.types.is_string(kind):
        # A raw value can be null anyway, and msgspec does not allow it in a union.
        return text if text is msgspec.Raw else text | None
    if pa.types.is_struct(kind):
        inside = {field.name: _type(field.type, text) for field in kind}
        return TypedDict("Struct", inside, total=False) | None  # pyright: ignore
    if pa.types.is_list(kind):
        return list[_type(kind.value_type, text)] | None
    if pa.types.is_map(kind):
        return dict[str, _type(kind.item_type, text)] | None
    return Optional[_plain_type(kind)]  # noqa: UP045 (`|` fails for a type with bounds)


def _plain_type(kind: pa.DataType) -> Any:
    if pa.types.is_integer(kind):
        bound = 2 ** (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)]
    if pa.types.is_decimal(kind):
        return Decimal
    return {
        pa.bool_(): bool,
        pa.binary(): bytes,
        pa.float32(): Annotated[float, msgspec.Meta(ge=-SINGLE_MAX, le=SINGLE_MAX)],
        pa.float64(): float,
        pa.date32(): date,
        pa.timestamp("us"): Annotated[datetime, msgspec.Meta(tz=False)],
        pa.timestamp("us", tz="UTC"): datetime,
    }[kind]
