"""Lines of CSV, many at once: Arrow's reader for lines of the standard, and one by one the others.

Spark's reader has an answer to every misplaced quote; the exact way gives the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

from dagster_leasehold.assets.arrow_parsing import plain_columns, spark_texts
from dagster_leasehold.assets.arrow_parsing.columns import (
    Mask,
    Parsed,
    ValueFormat,
    typed,
    without_bad,
)
from dagster_leasehold.assets.arrow_parsing.limits import SEPARATORS_MAX
from dagster_leasehold.assets.errors import TransformError

_pc: Any = pyarrow.compute
_csv: Any = pyarrow.csv

_LINE_LETTERS = (b'"', b"\n", b"\r")
_QUOTED = re.compile(r'"((?:[^"]++|"")*+)("?)')
_BOM = "\ufeff"

Fast = Callable[[pa.Array, pa.DataType], "pa.Array | None"]


class CsvFormat(ValueFormat):
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
        blanks = "".join(chr(code) for code in range(33) if chr(code) != separator)
        self._blanks = re.compile(f"[{re.escape(blanks)}]*")
        self._forms = [_form_of(field) for field in fields]
        # Arrow separates by one byte.
        self._readable = len(fields) > 0 and (separator == "\t" or " " <= separator <= "~")
        field = f'"(?:[^"]|"")*"|[^"{re.escape(separator)}\r\n]*'
        self._standard = f"^(?:{field})(?:{re.escape(separator)}(?:{field}))*$"

    def plain(self, texts: pa.Array) -> pa.Array:
        """Return which texts are lines as in RFC 4180, whatever the number of their fields."""
        if not self._readable:
            return pa.array(np.zeros(len(texts), np.bool_))
        plain = _pc.not_equal(_pc.utf8_trim(texts, characters=" "), "")
        plain = _pc.and_(plain, _pc.invert(_pc.starts_with(texts, _BOM)))
        if (_pc.max(_pc.binary_length(texts)).as_py() or 0) > SEPARATORS_MAX:
            separators = _pc.count_substring(texts, self._separator)
            plain = _pc.and_(plain, _pc.less_equal(separators, SEPARATORS_MAX))
        data = bytes(plain_columns.content(texts))
        if any(letter in data for letter in _LINE_LETTERS):
            plain = _pc.and_(plain, _pc.match_substring_regex(texts, self._standard))
        if b"\0" in data:
            plain = _pc.and_not(plain, _pc.match_substring(texts, "\0"))
        return plain

    def fast(self, texts: pa.Array) -> Parsed | None:
        """Return the records of a piece, read as lines of a file of texts."""
        several_lines = b"\n" in bytes(plain_columns.content(texts))
        lines = _pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), "\n")
        data = lines[0].as_buffer()
        names = [str(at) for at in range(len(self.fields))]
        wrong: list[int] = []

        def skip(row: Any) -> str:
            wrong.append(row.number - 1)
            return "skip"

        table = _csv.read_csv(
            pa.BufferReader(data),
            read_options=_csv.ReadOptions(
                use_threads=False, block_size=data.size + 1, column_names=names
            ),
            parse_options=_csv.ParseOptions(
                delimiter=self._separator,
                newlines_in_values=several_lines,
                ignore_empty_lines=False,
                invalid_row_handler=skip,
            ),
            convert_options=_csv.ConvertOptions(
                check_utf8=False,
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
        bad = np.zeros(len(texts), np.bool_)
        bad[wrong] = True
        if table.num_rows != len(texts) - len(wrong):
            return None
        return self._in_types([column.combine_chunks() for column in table.columns], bad)

    def exact(self, text: str) -> Sequence[object]:
        """Return the fields of one line."""
        if not text.strip(" ") or text.count('"') % 2:
            raise ValueError("no line")
        if text.count(self._separator) > SEPARATORS_MAX:
            raise ValueError("too many separators")
        parts = self._parts(text)
        if len(parts) != len(self._forms):
            raise ValueError("another number of fields")
        return [
            exact(part) if part else None
            for part, (_, exact) in zip(parts, self._forms, strict=True)
        ]

    def _in_types(self, columns: Sequence[pa.Array], bad: Mask) -> Parsed:
        good = np.flatnonzero(~bad)
        # Where each record stands among those that were not skipped; null where it was.
        places = pa.array(np.cumsum(~bad) - 1, mask=bad) if bad.any() else None
        made: list[pa.Array] = []
        for column, field, (fast, exact) in zip(columns, self.fields, self._forms, strict=True):
            values, wrong = typed(column, field.type, fast, exact)
            bad[good[wrong]] = True
            made.append(values if places is None else values.take(places))
        return without_bad(made, bad)

    def _parts(self, text: str) -> list[str]:
        """Return the texts of the fields of a line, without their quotes."""
        parts: list[str] = []
        at = 0
        while True:
            end = text.find(self._separator, at)
            end = len(text) if end < 0 else end
            part = text[at:end]
            if quoted := _QUOTED.match(text, at):
                part, end = self._unquoted(text, quoted)
            parts.append(part)
            if end == len(text):
                return parts
            at = end + 1

    def _unquoted(self, text: str, quoted: re.Match[str]) -> tuple[str, int]:
        """Return the text of a field that begins with a quote, and where the field ends."""
        if quoted.end() == quoted.start() + 1 == len(text):
            return '"', len(text)
        part = quoted[1].replace('""', '"')
        blanks = self._blanks.match(text, quoted.end())
        after = blanks.end() if blanks else quoted.end()
        end = text.find(self._separator, after)
        end = len(text) if end < 0 else end
        if '""' in quoted[1] or quoted.end() == len(text) or quoted.end() != end:
            # Spark's reader looks closer at these, and leaves out NUL as it goes.
            part = part.replace("\0", "")
        if after != end:
            # More follows the closing quote: the quotes belong to the text.
            part = f'"{part}"{text[quoted.end() : end]}'
            # Spark's reader then counts a quote at the very end twice.
            if after != quoted.end() and end == len(text) and text[-1] == '"':
                part = f'{part}"'
        return part, end


def _form_of(field: pa.Field) -> tuple[Fast, Callable[[str], object]]:
    """Return how texts of a field come into its type, many at once and one by one."""
    kind = field.type
    if pa.types.is_integer(kind):
        exact = partial(spark_texts.whole_number, bits=kind.bit_width)
        return plain_columns.plain_integers, exact
    if pa.types.is_decimal(kind):
        size = {"precision": kind.precision, "scale": kind.scale}
        return plain_columns.plain_decimals, partial(spark_texts.decimal_number, **size)
    if pa.types.is_timestamp(kind) and kind.tz:
        return plain_columns.plain_moments, spark_texts.micros_of
    single = partial(spark_texts.floating_number, single=True)
    forms: dict[pa.DataType, tuple[Fast, Callable[[str], object]]] = {
        pa.string(): (plain_columns.plain_texts, str),
        pa.binary(): (plain_columns.plain_texts, str.encode),
        pa.bool_(): (plain_columns.plain_booleans, spark_texts.boolean),
        pa.float32(): (plain_columns.plain_numbers, single),
        pa.float64(): (plain_columns.plain_numbers, spark_texts.floating_number),
        pa.date32(): (plain_columns.plain_dates, spark_texts.days_of),
        pa.timestamp("us"): (plain_columns.plain_local_moments, spark_texts.local_micros_of),
    }
    if kind not in forms:
        raise TransformError(f"parse_csv cannot read {field.name}: a line of CSV holds no {kind}.")
    return forms[kind]
