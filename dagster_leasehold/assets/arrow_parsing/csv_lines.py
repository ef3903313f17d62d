"""Lines of CSV as in RFC 4180, for the columns that `parsing` parses.

A field in double quotes can contain separators and line breaks, and two quotes in it stand for one.
In other fields a quote is an ordinary character. An empty field is null. A record can end with a
line break. `texts` defines the values of the fields.

Arrow parses a piece of a column if all its lines conform; otherwise Python's reader does.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

from dagster_leasehold.assets.arrow_parsing.columns import Column, Mask
from dagster_leasehold.assets.arrow_parsing.texts import TextForm, form_of, typed
from dagster_leasehold.assets.errors import TransformError

_csv: Any = pyarrow.csv
_pc: Any = pyarrow.compute

# By default the reader refuses fields above 128 KiB; the size of records is limited elsewhere.
csv.field_size_limit(sys.maxsize)
_BYTE_ORDER_MARK = "\ufeff".encode()
_SPECIAL = re.compile('["\r\n]')


class CsvFormat:
    """Lines with exactly the fields of a schema.

    Args:
        fields: the fields in their order.
        separator: the character between two fields.

    Raises:
        TransformError: a field has a type that CSV cannot represent.
    """

    def __init__(self, fields: pa.Schema, separator: str) -> None:
        self.fields = fields
        self.complaint = f"is not a line of CSV with the {len(fields)} expected fields"
        self._separator = separator
        self._forms = [_form(field) for field in fields]
        field = f'(?:"(?:[^"]|"")*"|[^"{re.escape(separator)}\r\n]*)'
        self._standard = f"^{field}(?:{re.escape(separator)}{field})*$"

    def parse(self, values: Sequence[bytes | None]) -> tuple[Sequence[Column], Mask]:
        """Return the fields of lines, and a mask of the lines that cannot be parsed."""
        bad = np.zeros(len(values), np.bool_)
        arrow_columns = self._read_by_arrow(values)
        if arrow_columns is not None:
            return self._typed(arrow_columns), bad
        width, separator = len(self.fields), self._separator
        empty_row = [""] * width
        rows: list[list[str]] = []
        for index, value in enumerate(values):
            line = (value or b"").decode()
            row = self._quoted(line) if _SPECIAL.search(line) else line.split(separator)
            if len(row) != width or not line.strip(" "):
                row, bad[index] = empty_row, True
            rows.append(row)
        columns = zip(*rows, strict=True) if rows else [()] * width
        return self._typed([[text or None for text in column] for column in columns]), bad

    def _typed(self, columns: Sequence[Any]) -> list[Column]:
        return [
            typed(column, field.type, form)
            for column, field, form in zip(columns, self.fields, self._forms, strict=True)
        ]

    def _read_by_arrow(self, values: Sequence[bytes | None]) -> list[pa.Array] | None:
        """Return each field as a column of texts; None if Arrow's reader could misread a line."""
        data = b"\n".join(value or b"" for value in values)
        # Arrow needs a separator of one byte, reads an empty line as one field, and drops a byte
        # order mark.
        marked = data.startswith(_BYTE_ORDER_MARK)
        if len(self.fields) < 2 or not self._separator.isascii() or marked:
            return None
        several_lines = data.count(b"\n") >= len(values)
        if several_lines or b'"' in data or b"\r" in data:
            texts = pa.array(values, pa.binary()).cast(pa.string())
            if not _pc.all(_pc.match_substring_regex(texts, self._standard)).as_py():
                return None
        names = [str(index) for index in range(len(self.fields))]
        try:
            table = _csv.read_csv(
                pa.BufferReader(data),
                _csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
                _csv.ParseOptions(
                    delimiter=self._separator,
                    newlines_in_values=several_lines,
                    ignore_empty_lines=False,
                ),
                _csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    null_values=[""],
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowInvalid:
            return None
        # The reader drops an empty line at the end.
        if table.num_rows != len(values):
            return None
        return [column.combine_chunks() for column in table.columns]

    def _quoted(self, line: str) -> list[str]:
        """Return the fields of a line with quotes or line breaks; empty if they are misplaced."""
        try:
            return next(csv.reader((line,), delimiter=self._separator, strict=True), [])
        except csv.Error:
            return []


def _form(field: pa.Field) -> TextForm:
    form = form_of(field.type)
    if form is None:
        raise TransformError(
            f"parse_csv cannot read {field.name}: a line of CSV holds no {field.type}."
        )
    return form
