"""Lines of CSV, as in RFC 4180: read by Arrow where every line is such, else by Python's reader.

A field in double quotes can hold separators and line ends, and a doubled quote in it stands for
one. A quote inside of any other field is a letter like others. An empty field is null. A line end
can stand at the end of the record. What the fields hold is told in `texts`.
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

# The reader refuses longer fields than 128 KiB otherwise; a record has its own limit.
csv.field_size_limit(sys.maxsize)
_MARK = "\ufeff".encode()
_SPECIAL = re.compile('["\r\n]')


class CsvFormat:
    """Lines with exactly the fields of a schema.

    Args:
        fields: the fields in their order.
        separator: the character between two fields.

    Raises:
        TransformError: a field is of a type that a line cannot hold.
    """

    def __init__(self, fields: pa.Schema, separator: str) -> None:
        self.fields = fields
        self.complaint = f"is not a line of CSV with the {len(fields)} expected fields"
        self._separator = separator
        self._forms = [_form(field) for field in fields]
        field = f'(?:"(?:[^"]|"")*"|[^"{re.escape(separator)}\r\n]*)'
        self._standard = f"^{field}(?:{re.escape(separator)}{field})*$"

    def parse(self, values: Sequence[bytes | None]) -> tuple[Sequence[Column], Mask]:
        """Return the fields of some lines, and which of the values are none."""
        bad = np.zeros(len(values), np.bool_)
        plain = self._plain(values)
        if plain is not None:
            return self._typed(plain), bad
        width, separator = len(self.fields), self._separator
        nothing = [""] * width
        rows: list[list[str]] = []
        for at, value in enumerate(values):
            line = (value or b"").decode()
            row = self._quoted(line) if _SPECIAL.search(line) else line.split(separator)
            if len(row) != width or not line.strip(" "):
                row, bad[at] = nothing, True
            rows.append(row)
        columns = zip(*rows, strict=True) if rows else [()] * width
        return self._typed([[text or None for text in column] for column in columns]), bad

    def _typed(self, columns: Sequence[Any]) -> list[Column]:
        return [
            typed(column, field.type, form)
            for column, field, form in zip(columns, self.fields, self._forms, strict=True)
        ]

    def _plain(self, values: Sequence[bytes | None]) -> list[pa.Array] | None:
        """Return the texts of each field, or None unless every line is well formed."""
        data = b"\n".join(value or b"" for value in values)
        # The reader separates by one byte, takes an empty line of one field, and drops a mark.
        if len(self.fields) < 2 or not self._separator.isascii() or data.startswith(_MARK):
            return None
        several_lines = data.count(b"\n") >= len(values)
        if several_lines or b'"' in data or b"\r" in data:
            texts = pa.array(values, pa.binary()).cast(pa.string())
            if not _pc.all(_pc.match_substring_regex(texts, self._standard)).as_py():
                return None
        names = [str(at) for at in range(len(self.fields))]
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
        # An empty line at the end is none for the reader.
        if table.num_rows != len(values):
            return None
        return [column.combine_chunks() for column in table.columns]

    def _quoted(self, line: str) -> list[str]:
        """Return the fields of a line with quotes or line ends; none where they are misplaced."""
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
