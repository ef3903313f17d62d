"""Decoding of the records of a table: values and keys become columns.

The records are grouped by schema. Each worker keeps the columns of all schemas that it has used, so
its files have the same columns until a new schema adds one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from dagster_leasehold.assets.arrow_transform import ERROR_COLUMN
from dagster_leasehold.assets.decoding.formats import ColumnFormat
from dagster_leasehold.assets.decoding.payloads import Decoder, Payloads
from dagster_leasehold.assets.decoding.wire_format import Group, SchemaKey, groups, headed
from dagster_leasehold.assets.errors import SchemaUnusable, TransformError
from dagster_leasehold.assets.output.table.columns import (
    Columns,
    arrow_schema,
    columns_of,
    in_stored_types,
    merged,
    stored_schema,
)
from dagster_leasehold.lease_store.errors import shown

_pc: Any = pyarrow.compute

PIECE_RECORDS = 16_384


@dataclass(frozen=True, slots=True)
class Part:
    """Decoded records of one group.

    Attributes:
        rows: their row numbers, in ascending order.
        columns: the columns of the group's schema.
        errors: the error of each record, or null.
    """

    rows: npt.NDArray[np.int64]
    columns: pa.RecordBatch
    errors: pa.Array


@dataclass
class ColumnDecoding:
    """The decoding of one column of binary records.

    Attributes:
        column: the column, `value` or `key`.
        form: its format.
        prefix: a prefix of the names of the new columns.
        reserved_names: the names, in lower case, that no new column can have.
        names: the names of the schemas used so far, for messages.
    """

    column: str
    form: ColumnFormat
    prefix: str
    reserved_names: frozenset[str]
    names: list[str] = field(default_factory=list[str])
    _decoders: dict[SchemaKey, Decoder] = field(default_factory=dict[Any, Any])
    _columns: Columns = field(default_factory=list[Any])

    def decoded(self, values: pa.ChunkedArray) -> tuple[pa.Table, pa.ChunkedArray]:
        """Return the new columns, and the error of each record that cannot be decoded.

        A null value has null columns and no error.

        Raises:
            SchemaUnusable: a schema cannot become columns of the table.
            RegistryUnavailable: a schema cannot be fetched.
        """
        parts: list[Part] = []
        begin = 0
        for chunk in values.chunks:
            for start in range(0, len(chunk), PIECE_RECORDS):
                parts += self._parts(chunk.slice(start, PIECE_RECORDS), begin + start)
            begin += len(chunk)
        schema = arrow_schema(self._columns)
        rows = [part.rows for part in parts]
        batches = [in_stored_types(part.columns, schema) for part in parts]
        table = pa.Table.from_batches(batches, schema)
        errors = pa.chunked_array([part.errors for part in parts], pa.string())
        numbers = np.concatenate(rows) if rows else np.empty(0, np.int64)
        if (np.diff(numbers) < 0).any():
            order = pa.array(np.argsort(numbers))
            table, errors = table.take(order), errors.take(order)
        return table, errors

    def _parts(self, values: pa.Array, begin: int) -> Iterator[Part]:
        present = values.is_valid().to_numpy(zero_copy_only=False)
        payloads = Payloads.of(values)
        rows = np.arange(begin, begin + len(values))
        if not present.all():
            yield self._without(rows[~present], None)
        if not self.form.has_header:
            numbers = np.flatnonzero(present)
            values_present = payloads if present.all() else payloads.at_rows(numbers)
            yield self._part(Group(SchemaKey(-1), rows[present], values_present))
            return
        with_header = headed(payloads, present)
        if (headless := present & ~with_header).any():
            text = f"{self.column} does not begin with the id of a schema"
            yield self._without(rows[headless], text)
        for group in groups(payloads, with_header, with_paths=self.form.has_paths):
            yield self._part(Group(group.key, group.rows + begin, group.payloads))

    def _part(self, group: Group) -> Part:
        decoder = self._decoder(group.key)
        if isinstance(decoder, str):
            return self._without(group.rows, decoder)
        columns, bad = decoder.decode(group.payloads)
        names = [f"{self.prefix}{name}" for name in decoder.fields.names]
        errors = pa.nulls(len(bad), pa.string())
        if bad.any():
            good = pa.array(~bad)
            columns = [_pc.if_else(good, each, pa.scalar(None, each.type)) for each in columns]
            errors = _pc.if_else(good, errors, pa.scalar(f"{self.column} {decoder.complaint}"))
        batch = pa.RecordBatch.from_arrays(columns, names)
        return Part(group.rows, batch, errors)

    @staticmethod
    def _without(rows: Any, error: str | None) -> Part:
        """Return records without decoded columns."""
        errors = pa.array([error] * len(rows), pa.string())
        empty = pa.schema([])
        batch = pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct(empty)))
        return Part(rows, batch, errors)

    def _decoder(self, key: SchemaKey) -> Decoder | str:
        """Return the decoder for a schema, or the error message of its records."""
        if key in self._decoders:
            return self._decoders[key]
        decoder = self.form.decoder(key, self.column)
        if not isinstance(decoder, str):
            self._add_columns(decoder, self.form.schema_name(key))
            self._decoders[key] = decoder
        return decoder

    def _add_columns(self, decoder: Decoder, name: str) -> None:
        fields = [each.with_name(f"{self.prefix}{each.name}") for each in decoder.fields]
        for each in fields:
            if each.name.lower() in self.reserved_names:
                raise SchemaUnusable(
                    f"The {name} has the field {shown(each.name)}, and all records have a column "
                    "with this name: set a prefix in decode, such as `prefix: order_`."
                )
        try:
            columns = columns_of(stored_schema(pa.schema(fields)))
            self._columns = merged(self._columns, columns)
        except TransformError as error:
            before = f", after {', '.join(self.names)}" if self.names else ""
            raise SchemaUnusable(
                f"The {name}{before}, cannot be applied to the table. {error}"
            ) from error
        self.names.append(name)


class RecordDecoding:
    """A transform of Arrow tables that decodes records.

    The value of a decoded record becomes null, since its columns replace it. A record that cannot
    be decoded keeps its value and gets a `quarantine_error`.

    Args:
        value: the format of values.
        key: the format of keys; None to keep them unchanged.
        prefix: a prefix of the names of the values' columns.
        reserved_names: the names of the columns of records.
        transform: the user's transform of the decoded records; None without one.
    """

    KEY_PREFIX = "key_"
    decodes = True

    def __init__(
        self,
        value: ColumnFormat,
        key: ColumnFormat | None,
        prefix: str,
        reserved_names: Sequence[str],
        transform: Any = None,
    ) -> None:
        names = frozenset(name.lower() for name in reserved_names)
        self._value = ColumnDecoding("value", value, prefix, names)
        self._key = None if key is None else ColumnDecoding("key", key, self.KEY_PREFIX, names)
        self._transform = transform
        named = transform or type(self)
        self.__module__, self.__qualname__ = named.__module__, named.__qualname__
        self.__name__, self.__doc__ = named.__name__, named.__doc__

    @property
    def schemas(self) -> tuple[str, ...]:
        """The names of the schemas used so far, for messages."""
        parts = [self._value, *([self._key] if self._key else [])]
        return tuple(name for part in parts for name in part.names)

    def __call__(self, records: pa.Table) -> pa.Table:
        """Return the decoded records, transformed if there is a transform."""
        columns, errors = self._value.decoded(records.column("value"))
        added = [*zip(columns.schema.names, columns.columns, strict=True)]
        if self._key is not None:
            keys, key_errors = self._key.decoded(records.column("key"))
            errors = _pc.coalesce(errors, key_errors)
            added += zip(keys.schema.names, keys.columns, strict=True)
        at = records.schema.get_field_index("value")
        field = records.schema.field(at)
        values = _pc.if_else(errors.is_null(), pa.scalar(None, field.type), records.column(at))
        table = records.set_column(at, field, values)
        for name, column in added:
            if name in table.schema.names:
                raise SchemaUnusable(
                    f"Value and key both have the column {shown(name)}: set a prefix in decode, "
                    "such as `prefix: order_`."
                )
            table = table.append_column(name, column)
        table = table.append_column(ERROR_COLUMN, errors)
        return table if self._transform is None else self._transform(table)
