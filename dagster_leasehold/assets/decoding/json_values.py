"""JSON and MessagePack with a schema, by the rules of `parse_json`, and plain text."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from dagster_leasehold.assets.arrow_parsing.columns import parsed
from dagster_leasehold.assets.arrow_parsing.json_values import JsonFormat, exact_column, record_type
from dagster_leasehold.assets.decoding.avro_items import as_text
from dagster_leasehold.assets.decoding.payloads import DECODED_COLUMN, Mask, Payloads


class JsonDecoder:
    """Decodes JSON objects with the fields of a schema.

    Args:
        required: the fields that each object must have.
    """

    def __init__(
        self, fields: pa.Schema, name: str, required: frozenset[str] = frozenset()
    ) -> None:
        self.fields = fields
        self.complaint = f"is not a JSON object of the {name}"
        self._format = JsonFormat(fields)
        self._required = required

    def decode(self, payloads: Payloads) -> tuple[list[pa.Array], Mask]:
        """Return the columns, and a mask of the values that do not conform to the schema."""
        columns, bad, _ = parsed(payloads.array(), self._format)
        for field, column in zip(self.fields, columns, strict=True):
            if field.name in self._required and column.null_count:
                bad = bad | column.is_null().to_numpy(zero_copy_only=False)
        return columns, bad


class MessagePackDecoder:
    """Decodes MessagePack maps with the fields of a schema.

    A time is a timestamp of MessagePack, or the same text as in JSON.
    """

    def __init__(self, fields: pa.Schema, name: str) -> None:
        self.fields = fields
        self.complaint = f"is not a MessagePack map of the {name}"
        self._decoder: Any = msgspec.msgpack.Decoder(record_type(fields, str, times_as_text=False))
        self._empty_row = self._decoder.decode(b"\x80")

    def decode(self, payloads: Payloads) -> tuple[list[pa.Array], Mask]:
        """Return the columns, and a mask of the values that do not conform to the schema."""
        bad = np.zeros(len(payloads), np.bool_)
        rows: list[Any] = []
        for index, value in enumerate(payloads):
            try:
                rows.append(self._decoder.decode(value))
            except (msgspec.MsgspecError, ValueError, RecursionError):
                rows.append(self._empty_row)
                bad[index] = True
        columns: list[pa.Array] = []
        for index, field in enumerate(self.fields):
            column = exact_column([getattr(row, f"field_{index}") for row in rows], field.type)
            columns.append(column.values)
            if column.bad is not None:
                bad |= column.bad
        return columns, bad


class TextDecoder:
    """Decodes text in UTF-8 as one column."""

    fields = pa.schema([(DECODED_COLUMN, pa.string())])
    complaint = "is not text in UTF-8"

    def decode(self, payloads: Payloads) -> tuple[list[pa.Array], Mask]:
        """Return the text, and a mask of the values that are not text."""
        masks = [np.zeros(len(payloads), np.bool_)]
        text = as_text(payloads.array(), masks.append)
        return [text], masks[-1]
